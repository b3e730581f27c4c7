"""A plugin that patches the seams: each counts its calls in a file and goes on as before.

The plugin is a file of its own, written by ``write_plugin``; what it patches it is told here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

TRACE = "SEAMS_TRACE"
"""The variable that names the file."""
IDENTITY = "file:seams"

FRONT = (
    "hookserve.engine.engine_args:EngineArgs.create_engine_config",
    "hookserve.engine.engine_args:EngineArgs.create_model_config",
    "hookserve.server.openai_chat:ChatCompletionsEndpoint.render_chat_request",
    "hookserve.server.openai_completions:CompletionsEndpoint.render_completion_request",
)
ENGINE = (
    "hookserve.engine.scheduler:Scheduler.__init__",
    "hookserve.engine.scheduler:Scheduler.schedule",
    "hookserve.engine.scheduler:Scheduler.update_from_output",
)
WORKER = (
    "hookserve.engine.worker:Worker.init_device",
    "hookserve.engine.worker:Worker.load_model",
    "hookserve.engine.worker:Worker.determine_available_memory",
    "hookserve.engine.worker:Worker.execute_model",
    "hookserve.engine.model_runner:ModelRunner.load_model",
    "hookserve.engine.model_runner:ModelRunner._update_states",
    "hookserve.engine.model_runner:ModelRunner._prepare_inputs",
    "hookserve.engine.model_runner:ModelRunner.execute_model",
    "hookserve.engine.sampler:Sampler.forward",
    "hookserve.engine.model_loader:DefaultModelLoader._prepare_weights",
    "hookserve.ops.logits_processor:LogitsProcessor._get_logits",
    "hookserve.ops.linear:UnquantizedLinearMethod.apply",
    "hookserve.ops.linear:UnquantizedLinearMethod.process_weights_after_loading",
    "hookserve.ops.attention:Attention.forward",
    "hookserve.ops.attention:Attention.get_kv_cache_spec",
    "hookserve.ops.layernorm:RMSNorm.forward_native",
    "hookserve.ops.activation:SiluAndMul.forward",
    "hookserve.ops.rotary_embedding:RotaryEmbedding._rotate",
    "hookserve.ops.paged_attention:PagedAttentionImpl._decode",
)

_SOURCE = """
import functools
import importlib
import json
import os

from hookserve.hookspecs import hookimpl


def note(name):
    with open(os.environ[{trace!r}], "a") as file:  # one write of one short line does not tear
        file.write(json.dumps([os.getpid(), name]) + "\\n")


def counting(function, name):
    @functools.wraps(function)
    def counted(*args, **kwargs):
        note(name)
        return function(*args, **kwargs)

    return counted


def patch(seams):
    for seam in seams:
        module, _, name = seam.partition(":")
        holder, _, method = name.partition(".")
        cls = getattr(importlib.import_module(module), holder)
        setattr(cls, method, counting(getattr(cls, method), name))


patch({front!r})


@hookimpl
def process_started(roles):
    if "engine" in roles:
        patch({engine!r})
    if "worker" in roles:
        patch({worker!r})
"""
_CLASSES = """
from hookserve.engine.multiproc_executor import MultiprocExecutor
from hookserve.engine.scheduler import Scheduler
from seams import note


class MyScheduler(Scheduler):
    def __init__(self, *args):
        note("MyScheduler.__init__")
        super().__init__(*args)

    def schedule(self):
        note("MyScheduler.schedule")
        return super().schedule()

    def update_from_output(self, scheduled, result):
        note("MyScheduler.update_from_output")
        return super().update_from_output(scheduled, result)


class MyExecutor(MultiprocExecutor):
    def collective_rpc(self, method, *args, **kwargs):
        note(f"MyExecutor.collective_rpc {method}")
        return super().collective_rpc(method, *args, **kwargs)
"""


def write_plugin(folder: Path, executor: str = "executor:UniProcExecutor") -> Path:
    """The plugin's file; beside it ``seam_classes``, subclasses to be named by their path.

    Args:
        executor: whose ``collective_rpc`` is patched: the one that the engine is started with.
    """
    engine = (*ENGINE, f"hookserve.engine.{executor}.collective_rpc")
    source = _SOURCE.format(trace=TRACE, front=FRONT, engine=engine, worker=WORKER)
    (folder / "seams.py").write_text(source)
    (folder / "seam_classes.py").write_text(_CLASSES)
    return folder / "seams.py"


def methods(seams: Iterable[str]) -> set[str]:
    """``Class.method`` of each."""
    return {seam.partition(":")[2] for seam in seams}


def read_calls(trace: Path) -> dict[int, Counter[str]]:
    """By process id, how often each was called."""
    calls: dict[int, Counter[str]] = {}
    for pid, name in map(json.loads, trace.read_text().splitlines()):
        calls.setdefault(pid, Counter())[name] += 1
    return calls
