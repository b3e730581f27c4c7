"""A worker as a process of its own: ``python -P -m hookserve.engine.worker_process --fd N``.

One rank of the model. It does what the engine calls by one inherited socket, and ends when that
closes. What the calls do is ``worker``'s; who starts and watches this process is
``multiproc_executor``.

Order of the start: ``StartWorker`` comes in, plugins are loaded, their manifest goes out, torch is
imported while the engine compares, ``Proceed`` comes in; from then on calls are answered in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hookserve.hookspecs.errors import causes_of
from hookserve.hookspecs.notify_loop import caught
from hookserve.ops.errors import PeerLostError

from .channel import ChannelClosed, ChannelError
from .child_process import ChildProcess, describe_failure, run_child
from .codec import Message
from .errors import WorkerPluginsError
from .log import log_host, own_logging
from .messages import (
    CollectiveRpc,
    Describe,
    Described,
    ManifestSent,
    Proceed,
    RpcResult,
    Shutdown,
)
from .rank_watch import report_waits
from .worker_extensions import call_worker
from .worker_messages import CallFailed, ExecuteModel, ModelExecuted, StartWorker

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

    from .vllm_config import VllmConfig

ROOT_CAUSE_S = 1.0
"""So long a rank that lost another waits before it says so: the engine knows how the other ended,
and ends this one meanwhile."""


class WorkerProcess(ChildProcess):
    """The life of the process, one method for each part."""

    name = "a worker"
    worker: Any = None
    """Made at the first call, whose caller is told which plugins fail at it."""
    _make_worker: Callable[[], Any]

    def serve(self) -> int:
        start = self.channel.recv()
        if not isinstance(start, StartWorker):
            raise ChannelError(f"expected StartWorker, got {type(start).__name__}")
        self.rank = start.rank
        self.name = f"worker {start.rank}"
        self._configure_logging(start)
        self.host, vllm_config = self._bootstrap(start)
        # Importing torch takes longer than anything else here; the engine compares meanwhile.
        from .vllm_config import set_current_vllm_config
        from .worker_class import make_worker

        message = self.channel.recv()
        if not isinstance(message, Proceed):
            raise ChannelError(f"expected Proceed, got {type(message).__name__}")
        if self.crash_mark is not None and vllm_config.parallel_config.tensor_parallel_size > 1:
            report_waits(self.crash_mark)
        with set_current_vllm_config(vllm_config):
            self._make_worker = lambda: make_worker(
                vllm_config, rank=start.rank, init_method=start.distributed_init_method
            )
            self._loop()
        try:
            if self.worker is not None:
                self.worker.shutdown()
        finally:
            self.host.close()
        return 0

    def _configure_logging(self, start: StartWorker) -> None:
        """All ranks do the same, so what is only news is said by the first one; what plugins say by
        the ecosystem's loggers is said by each."""
        level = start.config.log_level
        if start.rank > 0 and level == "INFO":
            level = "WARNING"
        own_logging(
            level,
            f"Worker {start.rank}",
            color=start.config.log_color,
            ecosystem_level=start.config.log_level,
        )

    def _bootstrap(self, start: StartWorker) -> tuple[Host, VllmConfig]:
        """Load the plugins and let the engine compare what came of them."""
        from hookserve.hookspecs import bootstrap

        from .vllm_config import VllmConfig

        vllm_config = VllmConfig.from_engine_config(start.config)
        vllm_config.parallel_config.rank = start.rank
        host = bootstrap({"worker"}, start.plugins, crash_mark=self.crash_mark)
        log_host(host)
        host.calls.process_started(host.roles, vllm_config)
        self.channel.send(ManifestSent(msgspec.to_builtins(host.manifest())))
        return host, vllm_config

    # -- the loop -------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self.stopping:
            message = self.channel.recv()
            try:
                self._handle(message)
            except ChannelClosed:
                raise
            except caught() as error:
                self._let_the_engine_speak_first(error)
                raise

    def _handle(self, message: Message) -> None:
        match message:
            case ExecuteModel():
                output = self.worker.execute_model(message.scheduler_output)
                if self.rank == 0:
                    self.channel.send(ModelExecuted(message.call_id, output))
            case CollectiveRpc():
                self._call(message)
            case Describe():
                mine = self.host.report(self.name)
                self.channel.send(Described(message.call_id, [mine]))
            case Shutdown():
                self.stopping = True
            case _:
                raise ChannelError(f"a worker was sent a {type(message).__name__}")

    def _call(self, message: CollectiveRpc) -> None:
        """Call a method and send what it returns, or what it raised."""
        try:
            if self.worker is None:
                self.worker = self._make_worker()
            result = call_worker(self.worker, message.method, message.args, message.kwargs)
            self.channel.send(RpcResult(message.call_id, result))
        except ChannelClosed:
            raise
        except caught() as error:
            self._let_the_engine_speak_first(error)
            failed = describe_failure(error, self.name)
            out = error.failures if isinstance(error, WorkerPluginsError) else []
            self.channel.send(
                CallFailed(message.call_id, failed.exit_code, failed.message, failed.detail, out)
            )

    def _let_the_engine_speak_first(self, error: BaseException) -> None:
        """A rank that lost another one knows less of it than the engine, which ends it."""
        if lost_a_peer(error):
            self.channel.wait(ROOT_CAUSE_S)


def lost_a_peer(error: BaseException) -> bool:
    """Whether another rank's end is behind this error, whoever has wrapped it since."""
    return any(isinstance(each, PeerLostError) for each in causes_of(error))


def main(argv: Sequence[str] | None = None) -> int:
    return run_child("hookserve.engine.worker_process", WorkerProcess, argv)


if __name__ == "__main__":
    sys.exit(main())
