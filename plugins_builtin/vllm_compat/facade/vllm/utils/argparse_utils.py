"""``FlexibleArgumentParser``: for programs that read the engine's arguments themselves."""

from __future__ import annotations

from hookserve.engine.cli_arguments import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]

__surface__ = {
    "FlexibleArgumentParser": "live: EngineArgs.add_cli_args fills one for a program of your own; "
    "server run reads its command line by itself, so that options of a plugin's are declared by "
    "the hook cli_options",
}
