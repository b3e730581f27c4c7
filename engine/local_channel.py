"""``local_pair``: the two ends of a channel between threads of one process.

Messages are handed over as the objects that they are; only a byte for each goes through a
socketpair, so that both ends wait, and notice the other's end, as those of ``channel`` do.
"""

from __future__ import annotations

import socket
from collections import deque

from .channel import AsyncChannel, Channel, Frames
from .codec import Message


class _HandedOver(Frames):
    """In place of bytes: what this end sends lies in ``outbox`` before its byte is sent, and what
    has arrived in ``inbox``, perhaps a moment before its byte."""

    def __init__(self, outbox: deque[Message], inbox: deque[Message]) -> None:
        super().__init__()
        self._outbox = outbox
        self._inbox = inbox

    def encode(self, message: Message) -> bytearray:
        self._outbox.append(message)
        return bytearray(1)

    def feed(self, data: bytes | memoryview) -> None:
        """Bytes only wake whoever waits."""

    def take(self) -> Message | None:
        return self._inbox.popleft() if self._inbox else None


def local_pair() -> tuple[AsyncChannel, Channel]:
    """An end for an event loop, and one for a thread that blocks."""
    ours, theirs = socket.socketpair()
    there: deque[Message] = deque()
    back: deque[Message] = deque()
    return (
        AsyncChannel(ours, _HandedOver(there, back)),
        Channel(theirs, _HandedOver(back, there)),
    )
