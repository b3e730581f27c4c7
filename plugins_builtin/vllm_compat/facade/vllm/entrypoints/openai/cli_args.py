"""The older path of ``vllm.entrypoints.launchers.cli_args``."""

from __future__ import annotations

from ..launchers.cli_args import __surface__ as _FLAGS

__older_path_of__ = "vllm.entrypoints.launchers.cli_args"

__all__: list[str] = []

__surface__ = dict(_FLAGS)
