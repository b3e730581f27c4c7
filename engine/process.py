"""The engine as a process: ``python -P -m hookserve.engine.process --fd N``.

It says what it is told to by one inherited socket, and ends when that closes. What a step is,
``core`` knows; who starts and watches this process is the server's business.

Order of the start: ``Start`` comes in, plugins are loaded, their manifest goes out, torch is
imported while the parent compares, ``Proceed`` comes in, the model is loaded, one warm-up runs,
``Ready`` goes out.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hookserve.hookspecs.context import owner_of
from hookserve.hookspecs.errors import HostError, describe_error
from hookserve.hookspecs.notify_loop import caught

from .channel import Channel, ChannelClosed, ChannelError
from .codec import Message
from .errors import EX_SOFTWARE, HookserveError
from .log import configure_logging
from .messages import (
    Abort,
    AddRequest,
    CollectiveRpc,
    Describe,
    Described,
    Failed,
    Finish,
    ManifestSent,
    Proceed,
    RpcResult,
    Shutdown,
    Start,
)

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

    from .core import EngineCore
    from .vllm_config import VllmConfig

logger = logging.getLogger("hookserve.engine.process")

IDLE_CHECK_S = 1.0
"""So long without a message after work: then a check that takes milliseconds delays nobody."""
_PR_SET_PDEATHSIG = 1


class EngineProcess:
    """The life of the process, one method for each part; ``run`` is all of it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.stopping = False

    def run(self) -> int:
        """The exit code.

        Raises:
            ChannelClosed: the parent is gone.
        """
        try:
            return self._serve()
        except ChannelClosed:
            raise
        except caught() as error:  # a plugin's sys.exit must not end the engine without a word
            return self._fail(error)

    def _serve(self) -> int:
        start = self.channel.recv()
        if not isinstance(start, Start):
            raise ChannelError(f"expected Start, got {type(start).__name__}")
        configure_logging(start.config.log_level, "Engine", color=start.config.log_color)
        host, vllm_config = self._bootstrap(start)
        self.core = self._load(host, vllm_config)
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
        host = bootstrap({"engine", "worker"}, start.plugins)
        host.calls.process_started(host.roles, vllm_config)
        self.channel.send(ManifestSent(msgspec.to_builtins(host.manifest())))
        for warning in host.warnings:
            logger.warning("%s", warning)
        return host, vllm_config

    def _load(self, host: Host, vllm_config: VllmConfig) -> EngineCore:
        # Importing torch takes longer than anything else here; the parent compares meanwhile.
        from .core import EngineCore
        from .vllm_config import set_current_vllm_config

        message = self.channel.recv()
        if not isinstance(message, Proceed):
            raise ChannelError(f"expected Proceed, got {type(message).__name__}")
        with set_current_vllm_config(vllm_config):
            core = EngineCore(vllm_config, host)
            core.warm_up()
        return core

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
            else:
                if not is_checked and not self.channel.wait(IDLE_CHECK_S):
                    core.scheduler.check_integrity()
                    is_checked = True
                self._handle(self.channel.recv(), core, host)
                self._drain(core, host)
            if not core.has_work():
                report = core.report_idle()
                if report is not None:
                    self.channel.send(report)

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
                reports = [msgspec.to_builtins(report) for report in host.describe()]
                self.channel.send(Described(message.call_id, reports))
            case Shutdown():
                self.stopping = True
            case _:
                raise ChannelError(f"the engine was sent a {type(message).__name__}")

    def _call_workers(self, message: CollectiveRpc, core: EngineCore) -> None:
        try:
            result = core.collective_rpc(message.method, message.args, message.kwargs)
            self.channel.send(RpcResult(message.call_id, result))
        except ChannelClosed:
            raise
        except caught() as error:
            # The caller asked for something that failed; the engine itself is unharmed.
            logger.warning("collective_rpc %r failed", message.method, exc_info=error)
            text = f"{message.method}: {describe_error(error)}"
            self.channel.send(RpcResult(message.call_id, error=text))

    # -- failure --------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> int:
        """Tell the parent why this process ends, and whose code it was; the exit code."""
        if isinstance(error, HookserveError | HostError):
            code, message = error.exit_code, str(error)
        else:
            owner = owner_of(error)
            by = f" in the code of plugin {owner}" if owner is not None else ""
            code, message = EX_SOFTWARE, f"the engine raised {describe_error(error)}{by}"
        detail = "".join(traceback.format_exception(error))
        logger.debug("%s", detail)
        self.channel.send(Failed(code, message, detail))
        return code


def die_with_parent() -> bool:
    """Ask the kernel to kill this process when its parent dies; false if the parent died before.

    Where there is no such call the closed channel alone tells of the parent's end.
    """
    if sys.platform != "linux":
        return True
    import ctypes

    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hookserve.engine.process")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the parent")
    arguments = parser.parse_args(argv)
    # The terminal sends these to the whole group; only the front decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not die_with_parent():
        return 0
    channel = Channel(socket.socket(fileno=arguments.fd))
    try:
        return EngineProcess(channel).run()
    except ChannelClosed:
        # Nobody is left to tell anything to; leave without waiting for threads.
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
