"""``EngineThread``: the engine in a thread of the front's own process, so that a debugger sees all
of it and plugins may be objects. ``ThreadSupervisor`` starts it and acts on its end.

It is spoken to as an engine process is, with the same messages, and steps in the same loop. What
it cannot have is an end by force: code that does not come back keeps the thread.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

from hookserve.hookspecs import Denied, Host

from .channel import Channel, ChannelClosed
from .codec import Message
from .errors import WorkerError, WorkerPluginsError
from .local_channel import local_pair
from .messages import Describe, Described, PluginsFailed, Ready
from .plugin_restarts import PluginRestarts
from .process import EngineProcess
from .running_engine import ENGINE_THREAD, RunningEngine
from .supervisor import EngineSupervisor
from .vllm_config import VllmConfig

if TYPE_CHECKING:
    from .core import EngineCore

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0


class _Engine(EngineProcess):
    """The life of the thread: plugins and configuration are there already."""

    def __init__(self, channel: Channel, host: Host, vllm_config: VllmConfig) -> None:
        super().__init__(channel)
        self._host = host
        self._vllm_config = vllm_config

    def serve(self) -> int:
        # Torch is imported here: the event loop goes on meanwhile.
        from .core import EngineCore
        from .vllm_config import set_current_vllm_config

        try:
            with set_current_vllm_config(self._vllm_config):
                core = EngineCore.start(self._vllm_config, self._host)
        except (WorkerPluginsError, WorkerError) as error:
            if not error.failures:
                raise
            self.channel.send(PluginsFailed(error.failures))
            return 0
        try:
            self.channel.send(core.ready())
            self._loop(core, self._host)
        finally:
            core.shutdown()
        return 0

    def _handle(self, message: Message, core: EngineCore, host: Host) -> None:
        """The front tells of this process itself."""
        if isinstance(message, Describe):
            self.channel.send(Described(message.call_id, core.executor.describe_plugins()))
        else:
            super()._handle(message, core, host)


class EngineThread(RunningEngine):
    """Made, and begun, on the event loop."""

    def __init__(self, host: Host, vllm_config: VllmConfig) -> None:
        ours, theirs = local_pair()
        super().__init__(ours)
        self._loop = asyncio.get_running_loop()
        self._theirs = theirs
        self._engine = _Engine(theirs, host, vllm_config)
        self._code = 0
        # A daemon, so that one that is stuck keeps no program from ending.
        self._thread = threading.Thread(target=self._run, name=ENGINE_THREAD, daemon=True)
        self._thread.start()
        # A program may end without ending its application; a thread that the interpreter stops in
        # the middle of tensor code would take the process down with it.
        atexit.register(self.abandon)

    def _run(self) -> None:
        with contextlib.suppress(ChannelClosed):
            self._code = self._engine.run()
        self._theirs.close()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._on_exit)

    def _on_exit(self) -> None:
        if not self.exited.done():
            self.exited.set_result(self._code)

    @property
    def name(self) -> str:
        return "the engine's thread"

    @property
    def pid(self) -> int:
        return os.getpid()

    async def wait(self, timeout_s: float) -> bool:
        await asyncio.wait({self.exited}, timeout=timeout_s)
        return self.exited.done()

    async def end(self) -> None:
        self.channel.close()
        if await self.wait(END_TIMEOUT_S):
            self._thread.join()  # it only returns now
        else:
            self._tell_stuck()
        atexit.unregister(self.abandon)

    def end_now(self, last_message: Message, timeout_s: float) -> None:
        self.channel.try_send(last_message)
        self._thread.join(timeout_s)
        self.abandon()

    def abandon(self) -> None:
        """Where the event loop runs, or while none does."""
        self.channel.close()
        self._thread.join(END_TIMEOUT_S)
        if self._thread.is_alive():
            self._tell_stuck()
        atexit.unregister(self.abandon)

    def _tell_stuck(self) -> None:
        logger.warning("the engine's thread does not end and is left behind")

    def kill(self) -> None:
        """Nothing: a thread ends with its process alone."""

    def describe_end(self) -> str:
        return "has ended" if not self._thread.is_alive() else "closed its channel"

    def crash(self) -> Denied | None:
        """None: what crashes here takes the front along."""
        return None


class ThreadSupervisor(EngineSupervisor):
    """Of an engine that shares the host's process; the host has its roles."""

    async def _start_with_equal_plugins(self) -> tuple[RunningEngine, Ready]:
        """Start the thread, again without what failed in it. Plugins are one set in one process:
        there is nothing to compare."""
        restarts = PluginRestarts(self._host)
        while True:
            child = self._child = EngineThread(self._host, self._client.vllm_config)
            answer: Ready | PluginsFailed = await self._expect(child, Ready, PluginsFailed)
            if isinstance(answer, Ready):
                self._engine_plugins = self._host.manifest().plugins
                return child, answer
            await self._discard_child()
            restarts.decide(answer.failures)
