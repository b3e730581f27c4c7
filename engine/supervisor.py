"""``EngineSupervisor``: starts the engine process, compares manifests, and acts on its death.

Plugins that fail in the child are put out everywhere by starting it again without them. What
travels once the engine is ready is ``engine_client``'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from hookserve.hookspecs import Denied, Host, Manifest, compare_manifests
from hookserve.hookspecs.manifest import PluginEntry

from .channel import ChannelClosed, ChannelError
from .child_process import whose_code_runs
from .config import EngineConfig
from .engine_child import ENGINE_COMMAND, EngineChild
from .engine_client import EngineClient
from .errors import EX_SOFTWARE, EngineDeadError, EngineStartError
from .messages import Failed, ManifestSent, PluginsFailed, Proceed, Ready, Shutdown, Start
from .plugin_restarts import PluginRestarts
from .running_engine import LAST_WORDS_S, RunningEngine

logger = logging.getLogger("hookserve.engine.supervisor")

M = TypeVar("M", bound=msgspec.Struct)

STOP_TIMEOUT_S = 5.0


class _ChildEndedError(EngineStartError):
    """It ended without a word."""


class EngineSupervisor:
    """One engine process, from its start to its end; lives on the event loop of the main thread.

    ``died`` is set when the engine is gone without having been asked to stop; by then every
    request has ended with an error, and ``on_death`` was called with a sentence about it.
    """

    def __init__(
        self,
        host: Host,
        engine_config: EngineConfig,
        client: EngineClient,
        on_death: Callable[[str], None] | None = None,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self._host = host
        self._engine_config = engine_config
        self._client = client
        self._on_death = on_death
        self._command = command
        self._child: RunningEngine | None = None
        self._engine_plugins: list[PluginEntry] = []
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False
        self.died = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    async def start(self) -> Ready:
        """Bring the engine up; returns when it has finished its warm-up step.

        Raises:
            EngineStartError: it ended first, with the engine's own sentence where it left one.
            PluginError: a required plugin failed in it, or the processes disagree.
        """
        self._stopping = False
        try:
            child, ready = await self._start_with_equal_plugins()
        except BaseException:
            await self._discard_child()
            raise
        # Before the watcher's first turn: endpoints are given a client that is running.
        self._client.ready = ready
        self._watcher = asyncio.create_task(self._watch(child, ready), name="engine-watcher")
        return ready

    def runs_what_is_out(self) -> bool:
        """Whether the engine has a plugin at work that has been put out here since it started."""
        out = {failure.identity for failure in self._host.failures()}
        return any(each.identity in out and each.state == "active" for each in self._engine_plugins)

    async def restart(self) -> Ready:
        """Replace the engine by one without the plugins that are out by now; raises as ``start``.
        What the old one has in flight ends with an error."""
        logger.warning("the engine starts again without the plugins that failed")
        await self._end(STOP_TIMEOUT_S)
        self._client.detach(EngineDeadError("the engine starts again"))
        return await self.start()

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the engine: by asking it, and by force if it does not end within ``timeout_s``."""
        await self._end(timeout_s)
        if self._watcher is not None:
            self._client.mark_dead(EngineDeadError("the engine was stopped"))

    async def _end(self, timeout_s: float) -> None:
        self._stopping = True
        child = self._child
        if child is None:
            return
        if self._watcher is not None and not child.exited.done():
            stalled = self._client.stalled_s() is not None
            self._client.request_shutdown()
            if stalled or not await child.wait(timeout_s):
                logger.warning(
                    "the engine did not stop when asked%s; it is ended by force",
                    whose_code_runs(child.crash()),
                )
            elif child.crash() is not None:
                logger.warning("%s %s", child.name, child.describe_end())
        await self._discard_child()
        if self._watcher is not None:
            await self._watcher

    def stop_now(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """As ``stop``, without the event loop: it waits where it is called."""
        self._stopping = True
        child, self._child = self._child, None
        if child is not None:
            child.end_now(Shutdown(), timeout_s)
        self._client.mark_dead(EngineDeadError("the engine was stopped"))

    def abandon(self) -> None:
        """End the engine by force, from any thread and without the event loop, as when nobody has
        a reference to it any more."""
        self._stopping = True
        child, self._child = self._child, None
        if child is not None:
            child.abandon()

    def kill(self) -> None:
        """End the engine at once, for a program that exits in the next moment."""
        if self._child is not None:
            self._child.kill()

    # -- start ------------------------------------------------------------------------------

    async def _start_with_equal_plugins(self) -> tuple[RunningEngine, Ready]:
        """Start the child, again without what failed in it or behind it, until all agree."""
        restarts = PluginRestarts(self._host)
        while True:
            child = await self._spawn(tuple(restarts.denied))
            ready, failures = await self._bring_up(child)
            if ready is not None:
                return child, ready
            await self._discard_child()
            restarts.decide(failures)

    async def _bring_up(self, child: RunningEngine) -> tuple[Ready | None, list[Denied]]:
        """Let the child load the model, or say which plugins failed in it or behind it alone, or
        which one crashed."""
        try:
            return await self._let_load(child)
        except _ChildEndedError:
            crash = child.crash()
            if crash is None:
                raise
            return None, [crash]

    async def _let_load(self, child: RunningEngine) -> tuple[Ready | None, list[Denied]]:
        sent = await self._expect(child, ManifestSent)
        manifest = msgspec.convert(sent.manifest, Manifest)
        failures = compare_manifests(self._host.manifest(), manifest)
        if failures:
            return None, failures
        await self._tell(child, Proceed())
        answer: Ready | PluginsFailed = await self._expect(child, Ready, PluginsFailed)
        if isinstance(answer, PluginsFailed):
            return None, answer.failures
        behind = msgspec.convert(answer.worker_manifests, list[Manifest])
        self._engine_plugins = [*manifest.plugins, *(p for each in behind for p in each.plugins)]
        return answer, []

    async def _spawn(self, denied: tuple[Denied, ...]) -> EngineChild:
        try:
            child = self._child = EngineChild.start(self._command)
        except OSError as error:
            raise EngineStartError(
                EX_SOFTWARE, f"the engine process cannot be started: {error}"
            ) from error
        plugins = msgspec.structs.replace(self._host.settings, denied=denied)
        await self._tell(child, Start(self._engine_config, plugins))
        return child

    async def _tell(self, child: RunningEngine, message: Start | Proceed) -> None:
        try:
            await child.channel.send(message)
        except ChannelClosed:
            pass  # it is gone; whoever reads its last words tells why
        except ChannelError as error:
            raise EngineStartError(EX_SOFTWARE, f"{child.name}: {error}") from error

    async def _expect(self, child: RunningEngine, *kinds: type[M]) -> M:
        try:
            message = await child.next_message()
        except ChannelError as error:
            raise EngineStartError(EX_SOFTWARE, f"{child.name}: {error}") from error
        if isinstance(message, kinds):
            return message
        if isinstance(message, Failed):
            if message.detail:
                logger.debug("the engine failed to start:\n%s", message.detail)
            raise EngineStartError(message.exit_code, message.message)
        if message is None:
            await child.wait(LAST_WORDS_S)
            raise _ChildEndedError(
                EX_SOFTWARE,
                f"{child.name} {child.describe_end()} before it was ready",
            )
        raise EngineStartError(
            EX_SOFTWARE,
            f"{child.name} sent {type(message).__name__} instead of {kinds[0].__name__}",
        )

    # -- life -------------------------------------------------------------------------------

    async def _watch(self, child: RunningEngine, ready: Ready) -> None:
        serving = asyncio.create_task(self._client.run(child.channel, ready), name="engine-reader")
        either: set[asyncio.Future[Any]] = {serving, child.exited}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        # Either may come first. The other gets a moment, for the last messages and the exit code.
        await asyncio.wait(either, timeout=LAST_WORDS_S)
        serving.cancel()
        (result,) = await asyncio.gather(serving, return_exceptions=True)
        if self._stopping:
            return
        if isinstance(result, Exception):
            logger.error("reading what the engine sends failed", exc_info=result)
        last_words = result if isinstance(result, Failed) else None
        self._note_death(child, last_words)
        await child.end()

    def _note_death(self, child: RunningEngine, last_words: Failed | None) -> None:
        reason = f"{child.name} {child.describe_end()}"
        if last_words is not None:
            reason = f"the engine stopped: {last_words.message}"
            if last_words.detail:
                logger.debug("the engine's own account:\n%s", last_words.detail)
        logger.error("%s; every request ends with an error", reason)
        if self._on_death is not None:
            self._on_death(reason)
        self._client.mark_dead(EngineDeadError(reason))
        self.died.set()

    async def _discard_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()
