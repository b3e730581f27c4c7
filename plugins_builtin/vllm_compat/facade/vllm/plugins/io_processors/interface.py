"""What an IO processor is."""

from __future__ import annotations

from hookserve.engine.io_processor import IOProcessor, IOProcessorInput, IOProcessorOutput

__all__ = ["IOProcessor", "IOProcessorInput", "IOProcessorOutput"]

__surface__ = {
    "IOProcessor": "live: base of the one that --io-processor-plugin names, which is built at the "
    "start; no route asks it, as no pooling model is served so far",
    "IOProcessorInput": "shape: the type of what parse_data gives, for annotations",
    "IOProcessorOutput": "shape: the type of what post_process gives, for annotations",
}
