"""The messages between engine and worker that ``messages`` does not have already.

A worker is also told ``Proceed``, ``CollectiveRpc``, ``Describe`` and ``Shutdown``, and says
``ManifestSent``, ``RpcResult``, ``Described`` and ``Failed``. A step travels as the plain data of
``step``.
"""

from __future__ import annotations

import msgspec

from hookserve.hookspecs.settings import Denied, PluginSettings

from .config import EngineConfig
from .step import ModelRunnerOutput, SchedulerOutput

# -- engine to worker ---------------------------------------------------------------------------


class StartWorker(msgspec.Struct, frozen=True, tag=True):
    """The first message: everything that the worker needs; it never reads the environment."""

    config: EngineConfig
    plugins: PluginSettings
    """With what failed in any process on the list of those denied."""
    rank: int
    distributed_init_method: str
    """Where the ranks meet, as ``torch.distributed`` takes it."""


class ExecuteModel(msgspec.Struct, frozen=True, tag=True):
    """Compute one step. Rank 0 alone answers, all ranks compute the same tokens."""

    call_id: int
    scheduler_output: SchedulerOutput


# -- worker to engine ---------------------------------------------------------------------------


class ModelExecuted(msgspec.Struct, frozen=True, tag=True):
    call_id: int
    output: ModelRunnerOutput


class CallFailed(msgspec.Struct, frozen=True, tag=True):
    """A method raised; the worker lives on."""

    call_id: int
    exit_code: int
    message: str
    detail: str
    """The traceback, for the log."""
    failures: list[Denied] = []
    """Plugins that failed at it: everything is to start again without them."""


WorkerMessage = StartWorker | ExecuteModel | ModelExecuted | CallFailed
