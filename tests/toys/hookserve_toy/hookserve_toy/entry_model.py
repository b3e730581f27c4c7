"""Entry module for front, engine and worker: a model by its path, and a platform on request."""

from __future__ import annotations

import os
from typing import Any

from hookserve.hookspecs import ModelEntry, hookimpl

from .trace import note

note("import", module=__name__)


@hookimpl
def register_model() -> ModelEntry:
    note("register_model")
    return ModelEntry("ToyForCausalLM", "hookserve_toy.model:ToyForCausalLM")


@hookimpl
def platform() -> str | None:
    wanted = os.environ.get("TOY_PLATFORM") == "1"
    note("platform", wanted=wanted)
    return "hookserve_toy.platform:ToyPlatform" if wanted else None


@hookimpl
def process_started(roles: Any, config: Any) -> None:
    note("process_started", roles=sorted(roles))


@hookimpl
def shutdown(roles: Any) -> None:
    note("shutdown", roles=sorted(roles))
