"""The base of parsers of other configurations than ``config.json``; there are none."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "ConfigParserBase": "refused: a configuration is read from config.json or GGUF metadata, "
    "whatever its format; the hook hf_config changes it",
}
