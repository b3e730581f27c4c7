"""The engine as a process: ``python -P -m hookserve.engine.process --fd N``.

It says what it is told to by one inherited socket, and ends when that closes. What a step is,
``core`` knows; who starts and watches this process is the server's business.

Order of the start: ``Start`` comes in, plugins are loaded, their manifest goes out, torch is
imported while the parent compares, ``Proceed`` comes in, the model is loaded, one warm-up runs,
``Ready`` goes out. Where the workers are processes of their own, this one computes nothing and
leaves torch to them; ``PluginsFailed`` goes out if a plugin failed in one of them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hookserve.hookspecs.context import owner_of
from hookserve.hookspecs.errors import HostError, describe_error, exc_info_of
from hookserve.hookspecs.notify_loop import caught

from .channel import ChannelClosed, ChannelError, wait_readable
from .child_process import ChildProcess, run_child
from .codec import Message
from .errors import HookserveError, WorkerError, WorkerPluginsError
from .log import log_host, own_logging
from .messages import (
    Abort,
    AddRequest,
    CollectiveRpc,
    Describe,
    Described,
    Finish,
    ManifestSent,
    PluginsFailed,
    Proceed,
    ResetPrefixCache,
    RpcResult,
    Shutdown,
    Start,
)

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Role

    from .core import EngineCore
    from .vllm_config import VllmConfig

logger = logging.getLogger("hookserve.engine.process")

IDLE_CHECK_S = 1.0
"""So long without a message after work: then a check that takes milliseconds delays nobody."""


class EngineProcess(ChildProcess):
    """The life of the process, one method for each part."""

    name = "the engine"

    def serve(self) -> int:
        start = self.channel.recv()
        if not isinstance(start, Start):
            raise ChannelError(f"expected Start, got {type(start).__name__}")
        own_logging(start.config.log_level, "Engine", color=start.config.log_color)
        host, vllm_config = self._bootstrap(start)
        try:
            self.core = self._load(host, vllm_config)
        except (WorkerPluginsError, WorkerError) as error:
            if not error.failures:
                raise
            self.channel.send(PluginsFailed(error.failures))
            return 0
        self.channel.send(self.core.ready())
        self._loop(self.core, host)
        try:
            self.core.shutdown()
        finally:
            host.close()
        return 0

    def _bootstrap(self, start: Start) -> tuple[Host, VllmConfig]:
        """Load the plugins and let the parent compare what came of them."""
        from hookserve.hookspecs import bootstrap

        from .vllm_config import VllmConfig

        vllm_config = VllmConfig.from_engine_config(start.config)
        apart = start.config.parallel.workers_are_apart
        roles: set[Role] = {"engine"} if apart else {"engine", "worker"}
        host = bootstrap(roles, start.plugins, crash_mark=self.crash_mark)
        log_host(host)
        host.calls.process_started(host.roles, vllm_config)
        self.channel.send(ManifestSent(msgspec.to_builtins(host.manifest())))
        return host, vllm_config

    def _load(self, host: Host, vllm_config: VllmConfig) -> EngineCore:
        # Importing torch takes longer than anything else here; the parent compares meanwhile.
        from .core import EngineCore
        from .vllm_config import set_current_vllm_config

        message = self.channel.recv()
        if not isinstance(message, Proceed):
            raise ChannelError(f"expected Proceed, got {type(message).__name__}")
        with set_current_vllm_config(vllm_config):
            return EngineCore.start(vllm_config, host)

    # -- the loop -------------------------------------------------------------------------------

    def _loop(self, core: EngineCore, host: Host) -> None:
        """Step while there is work, and sleep on the channel while there is none. The first quiet
        moment after work is used to compare the books."""
        is_checked = True
        while not self.stopping:
            if core.has_work():
                is_checked = False
                self._drain(core, host)
                if core.has_work() and not self.stopping:
                    self.channel.send(core.step())
                    continue
            elif core.grammars.waiting:
                self._wait_for_grammars(core)
                self._drain(core, host)
                core.take_ready()
            else:
                if not is_checked and not self._wait(core, IDLE_CHECK_S):
                    core.check_integrity()
                    is_checked = True
                self._wait(core, None)
                self._handle(self.channel.recv(), core, host)
                self._drain(core, host)
            if not core.has_work():
                report = core.report_idle()
                if report is not None:
                    self.channel.send(report)

    def _wait_for_grammars(self, core: EngineCore) -> None:
        """There is nothing else to do; a worker that ends raises."""
        mine, executor = self.channel.fileno(), core.executor
        if core.wait_for_grammars([mine, *executor.watched_fds()]) - {mine}:
            executor.check_health()

    def _wait(self, core: EngineCore, timeout_s: float | None) -> bool:
        """Whether the parent says something within the time; a worker that ends raises."""
        executor = core.executor
        mine = self.channel.fileno()
        while True:
            readable = wait_readable([mine, *executor.watched_fds()], timeout_s)
            if readable - {mine}:
                executor.check_health()
            if mine in readable or not readable:
                return bool(readable)

    def _drain(self, core: EngineCore, host: Host) -> None:
        """Handle what has arrived, without waiting."""
        while not self.stopping:
            message = self.channel.try_recv()
            if message is None:
                return
            self._handle(message, core, host)

    def _handle(self, message: Message, core: EngineCore, host: Host) -> None:
        match message:
            case AddRequest():
                core.add_request(message)
            case Abort():
                core.abort_requests(message.request_ids)
            case Finish():
                core.finish_request(message.request_id, message.reason)
            case CollectiveRpc():
                self._call_workers(message, core)
            case Describe():
                mine = host.report("engine")
                others = core.executor.describe_plugins()
                self.channel.send(Described(message.call_id, [mine, *others]))
            case ResetPrefixCache():
                self.channel.send(RpcResult(message.call_id, core.reset_prefix_cache()))
            case Shutdown():
                self.stopping = True
            case _:
                raise ChannelError(f"the engine was sent a {type(message).__name__}")

    def _call_workers(self, message: CollectiveRpc, core: EngineCore) -> None:
        try:
            result = core.collective_rpc(
                message.method, message.args, message.kwargs, message.timeout
            )
            self.channel.send(RpcResult(message.call_id, result))
        except ChannelClosed:
            raise
        except caught() as error:
            # The caller asked for something that failed; the engine itself is unharmed.
            logger.warning("collective_rpc %r failed", message.method, exc_info=exc_info_of(error))
            said = isinstance(error, HookserveError | HostError)
            by = "" if said or (owner := owner_of(error)) is None else f" (of plugin {owner})"
            text = f"{message.method}: {error if said else describe_error(error)}{by}"
            self.channel.send(RpcResult(message.call_id, error=text))
            self._raise_if_workers_ended(core, error)

    def _raise_if_workers_ended(self, core: EngineCore, why: BaseException) -> None:
        """By ``why``: it knows how, and nothing that can be watched is left."""
        try:
            core.executor.check_health()
        except HookserveError:
            raise why from None


def main(argv: Sequence[str] | None = None) -> int:
    return run_child("hookserve.engine.process", EngineProcess, argv)


if __name__ == "__main__":
    sys.exit(main())
