"""Frames over a socketpair: a u32 length, then one msgpack message.

``Channel`` blocks and belongs to one thread; ``AsyncChannel`` is for an event loop. Both are
bounded: a frame by its size, what waits to be sent by count and bytes. Who is at the other end,
and what a message means, is left to the callers.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Iterable

import msgspec

from .codec import Message, make_decoder, make_encoder

MAX_FRAME_BYTES = 64 * 2**20
MAX_PENDING_FRAMES = 4096
MAX_PENDING_BYTES = 256 * 2**20

_HEAD = struct.Struct("<I")
_READ_BYTES = 256 * 1024


class ChannelError(Exception):
    """A frame that breaks the protocol: too big, not a message, or one that cannot be made."""


class ChannelClosed(ChannelError):
    """The other end is gone."""


class ChannelOverflow(ChannelError):
    """Too much waits to be sent; the other end does not read."""


class Frames:
    """Encodes messages to frames and takes messages from the bytes received so far."""

    def __init__(self) -> None:
        self._encoder = make_encoder()
        self._decoder = make_decoder()
        self._received = bytearray()
        self._start = 0

    def encode(self, message: Message) -> bytearray:
        frame = bytearray(_HEAD.size)
        try:
            self._encoder.encode_into(message, frame, _HEAD.size)
        except TypeError:
            raise
        except Exception as error:  # a number too large, a list in itself, a tensor without data
            raise ChannelError(
                f"a {type(message).__name__} cannot be sent: {type(error).__name__}: {error}"
            ) from error
        size = len(frame) - _HEAD.size
        if size > MAX_FRAME_BYTES:
            raise ChannelError(
                f"a {type(message).__name__} of {size} bytes is larger than the "
                f"{MAX_FRAME_BYTES} bytes that one message may have"
            )
        _HEAD.pack_into(frame, 0, size)
        return frame

    def feed(self, data: bytes | memoryview) -> None:
        if self._start == len(self._received):
            self._received.clear()
            self._start = 0
        self._received += data

    def take(self) -> Message | None:
        """The next whole message, or ``None``."""
        begin = self._start + _HEAD.size
        if len(self._received) < begin:
            return None
        (size,) = _HEAD.unpack_from(self._received, self._start)
        if size > MAX_FRAME_BYTES:
            raise ChannelError(
                f"the other end announced a message of {size} bytes; {MAX_FRAME_BYTES} is the limit"
            )
        end = begin + size
        if len(self._received) < end:
            self._drop_consumed()
            return None
        try:
            with memoryview(self._received) as view, view[begin:end] as body:
                message = self._decoder.decode(body)
        except (msgspec.DecodeError, ValueError) as error:
            raise ChannelError(f"the other end sent what is not a message: {error}") from error
        self._start = end
        return message

    def _drop_consumed(self) -> None:
        if self._start:
            del self._received[: self._start]
            self._start = 0


class Channel:
    """The blocking form, for a process that does one thing at a time."""

    def __init__(self, sock: socket.socket, frames: Frames | None = None) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._frames = frames or Frames()

    def send(self, message: Message) -> None:
        """Send one message; blocks while the other end does not read.

        Raises:
            ChannelClosed: the other end is gone.
            ChannelError: the message is too large, or holds a value that has no bytes.
            TypeError: the message holds an object that cannot cross processes.
        """
        self.send_frame(self.encode(message))

    def encode(self, message: Message) -> bytearray:
        """The frame of a message, to be sent on several channels; raises as ``send`` does."""
        return self._frames.encode(message)

    def send_frame(self, frame: bytearray) -> None:
        """Send what ``encode`` made.

        Raises:
            ChannelClosed: the other end is gone.
        """
        try:
            self._sock.sendall(frame)
        except OSError as error:
            raise ChannelClosed(f"cannot send: {error}") from error

    def recv(self) -> Message:
        """The next message; blocks, using no CPU, until there is one."""
        while True:
            message = self._frames.take()
            if message is not None:
                return message
            self._read(0)

    def try_recv(self) -> Message | None:
        """The next message if it is here already, else ``None``."""
        while True:
            message = self._frames.take()
            if message is not None:
                return message
            try:
                self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None

    def wait(self, timeout_s: float) -> bool:
        """Whether there is something to read within the time; the other end's death counts."""
        return bool(wait_readable([self.fileno()], timeout_s))

    def _read(self, flags: int) -> None:
        try:
            data = self._sock.recv(_READ_BYTES, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ChannelClosed(f"cannot receive: {error}") from error
        if not data:
            raise ChannelClosed("the other end closed the channel")
        self._frames.feed(data)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()


def wait_readable(fds: Iterable[int], timeout_s: float | None) -> set[int]:
    """Those of the descriptors that have something to read, or whose other end is gone; empty
    when the time is over. ``None``: however long it takes."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1e3)}


def _mark(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


class AsyncChannel:
    """The form for an event loop: the calls that wait are coroutines.

    Several tasks may send at once; one task receives.
    """

    def __init__(self, sock: socket.socket, frames: Frames | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._frames = frames or Frames()
        self._sending = asyncio.Lock()
        self._pending_frames = 0
        self._pending_bytes = 0
        self._readable: asyncio.Future[None] | None = None
        """What a ``recv`` waits for, or has waited for last."""

    async def send(self, message: Message) -> None:
        """Send one message; returns when the kernel has taken all of it.

        A frame that was begun is always sent whole, also when the caller is cancelled: half a
        frame would make every later one unreadable.

        Raises:
            ChannelClosed: the other end is gone.
            ChannelOverflow: more than the bound waits to be sent already.
            ChannelError: the message is too large, or holds a value that has no bytes.
            TypeError: the message holds an object that cannot cross processes.
        """
        frame = self._frames.encode(message)
        if self._pending_frames == 0 and self._send_at_once(frame):
            return
        if (
            self._pending_frames >= MAX_PENDING_FRAMES
            or self._pending_bytes + len(frame) > MAX_PENDING_BYTES
        ):
            raise ChannelOverflow(
                f"{self._pending_frames} messages ({self._pending_bytes} bytes) wait to be sent"
            )
        self._pending_frames += 1
        self._pending_bytes += len(frame)
        await asyncio.shield(asyncio.ensure_future(self._send_in_turn(frame)))

    def _send_at_once(self, frame: bytearray) -> bool:
        """Send without waiting if the kernel has room; what it did not take stays in ``frame``."""
        try:
            sent = self._sock.send(frame)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(f"cannot send: {error}") from error
        del frame[:sent]
        return not frame

    async def _send_in_turn(self, frame: bytearray) -> None:
        size = len(frame)
        try:
            async with self._sending:
                await asyncio.get_running_loop().sock_sendall(self._sock, frame)
        except OSError as error:
            raise ChannelClosed(f"cannot send: {error}") from error
        finally:
            self._pending_frames -= 1
            self._pending_bytes -= size

    def try_send(self, message: Message) -> bool:
        """Send without an event loop, whether or not the kernel has room: false if it has not taken
        all of it, and then nothing more can be sent."""
        if self._pending_frames:
            return False
        try:
            return self._send_at_once(self._frames.encode(message))
        except ChannelClosed:
            return False

    async def recv(self) -> Message:
        """The next message.

        Raises:
            ChannelClosed: the other end is gone.
        """
        while True:
            message = self._frames.take()
            if message is not None:
                return message
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                # Waiting apart from reading: a caller that is cancelled loses no bytes.
                await self._wait_until_readable()
                continue
            except OSError as error:
                raise ChannelClosed(f"cannot receive: {error}") from error
            if not data:
                raise ChannelClosed("the other end closed the channel")
            self._frames.feed(data)

    async def _wait_until_readable(self) -> None:
        loop = asyncio.get_running_loop()
        self._readable = loop.create_future()
        loop.add_reader(self._sock.fileno(), _mark, self._readable)
        try:
            await self._readable
        finally:
            self._forget_reader()

    def _forget_reader(self) -> None:
        """Not once the socket is closed: by then its number may be somebody else's."""
        number = self._sock.fileno()
        if number >= 0 and self._readable is not None:
            self._readable.get_loop().remove_reader(number)

    def try_recv(self) -> Message | None:
        """The next message if all of it was read already, else ``None``; never reads."""
        return self._frames.take()

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """To be called where the event loop runs, or while none does; ends a ``recv``."""
        if self._readable is not None and not self._readable.get_loop().is_closed():
            self._forget_reader()
            _mark(self._readable)
        self._sock.close()
