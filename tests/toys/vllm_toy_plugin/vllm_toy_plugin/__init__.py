"""A package as authors write them for vLLM: it imports that alone. What it does, and in which
process, it notes in the file that TOY_PLUGIN_TRACE names, if any."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def note(event: str, **fields: Any) -> None:
    """Append what happened as a line of JSON: event, process id, and how the process was begun."""
    path = os.environ.get("TOY_PLUGIN_TRACE")
    if path is None:
        return
    line = json.dumps({"event": event, "pid": os.getpid(), "argv": sys.orig_argv, **fields})
    with open(path, "a", encoding="utf-8") as trace:
        trace.write(line + "\n")


def register() -> None:
    """The general plugin: names the model by its path, and imports the op, which registers."""
    from vllm import ModelRegistry

    note("register")
    if "ToyLlamaForCausalLM" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(
            "ToyLlamaForCausalLM", "vllm_toy_plugin.model:ToyLlamaForCausalLM"
        )
    from . import ops  # noqa: F401
