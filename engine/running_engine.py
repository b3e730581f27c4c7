"""``RunningEngine``: an engine that was started, as its supervisor sees it, wherever it runs.

``engine_child`` has the one in a process of its own, ``engine_thread`` the one in this process.
What is said over the channel is the supervisor's and the engine client's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from hookserve.hookspecs import Denied

from .channel import AsyncChannel, ChannelClosed
from .codec import Message

ENGINE_THREAD = "engine"
"""Name of the thread that an engine in the front's own process runs in."""
LAST_WORDS_S = 0.05
"""After the engine ended, how long its last messages may take to be read."""


class RunningEngine(ABC):
    """Made on the event loop. ``exited`` becomes its exit code; ``name`` stands in sentences."""

    def __init__(self, channel: AsyncChannel) -> None:
        self.channel = channel
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def pid(self) -> int: ...

    async def next_message(self) -> Message | None:
        """The next message; ``None`` once the engine is gone and has said everything.

        Raises:
            ChannelError: what it says is no message.
        """
        receive = asyncio.ensure_future(self.channel.recv())
        try:
            either: set[asyncio.Future[Any]] = {receive, self.exited}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not receive.done():
                await asyncio.wait({receive}, timeout=LAST_WORDS_S)
            return receive.result() if receive.done() else None
        except ChannelClosed:
            return None
        finally:
            receive.cancel()

    @abstractmethod
    async def wait(self, timeout_s: float) -> bool:
        """Whether the engine has ended within ``timeout_s``."""

    @abstractmethod
    async def end(self) -> None:
        """Make sure that the engine has ended, and close everything. Anything gentler is said over
        the channel before."""

    @abstractmethod
    def end_now(self, last_message: Message, timeout_s: float) -> None:
        """As ``end``, after ``last_message`` and up to ``timeout_s``, without the event loop."""

    @abstractmethod
    def abandon(self) -> None:
        """As ``end``, from any thread, and whether or not the event loop runs."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, without waiting, where that can be done."""

    @abstractmethod
    def describe_end(self) -> str:
        """How the engine ended, for a sentence: ``"was killed by SIGKILL"``."""

    @abstractmethod
    def crash(self) -> Denied | None:
        """The plugin whose code ran when the engine ended without a word."""
