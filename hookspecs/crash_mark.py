"""``CrashMark``: whose code a child process runs, readable by its parent when the child is gone.

A file in memory that both map. A guard writes the number of a plugin before it enters its code and
takes it back afterwards; a process that is killed in between, or ends itself, leaves it there. The
numbers' meaning is written beside them, so the two need not agree on an order. What follows from
a crash is the parent's business.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from .plugin import Plugin

_SIZE = 1 << 20
"""Bytes; pages that nobody writes take no memory."""
_NAMES = 8
"""Where the identities begin; before them the slot (16 bits) and their length (32 bits)."""
_NOTE = _SIZE - 4096
"""Where the note begins, with its length (32 bits)."""


class CrashMark:
    """One slot for one process. The parent calls ``create``, hands ``fileno`` to the child, and
    reads; the child calls ``open`` and gives the mark to its plugin host.

    Attributes:
        slot: number of the plugin whose code runs, from 1; 0: the host's own code.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, _SIZE)
        view = memoryview(self._map)
        self.slot = view[0:2].cast("H")
        self._length = view[4:8].cast("I")
        self._note_length = view[_NOTE : _NOTE + 4].cast("I")

    @classmethod
    def create(cls) -> CrashMark:
        """A new one, of nobody.

        Raises:
            OSError: the system gives no such file.
        """
        fd = os.memfd_create("hookserve-crash-mark")
        os.ftruncate(fd, _SIZE)
        return cls(fd)

    @classmethod
    def open(cls, fd: int) -> CrashMark:
        """The one behind an inherited file descriptor, which is the mark's from now on."""
        return cls(fd)

    def fileno(self) -> int:
        return self._fd

    def number(self, plugins: Sequence[Plugin]) -> None:
        """Give each plugin a number, from 1, and the place to leave it; called by the host."""
        names = "\n".join(plugin.identity for plugin in plugins).encode()
        assert len(names) <= _NOTE - _NAMES and len(plugins) < 1 << 16
        self._map[_NAMES : _NAMES + len(names)] = names
        self._length[0] = len(names)
        for number, plugin in enumerate(plugins, 1):
            plugin.number, plugin.slot = number, self.slot

    def read(self) -> str | None:
        """The identity of the plugin whose code runs, or ran when the process ended."""
        number = self.slot[0]
        if number == 0:
            return None
        names = self._map[_NAMES : _NAMES + self._length[0]].decode()
        return names.split("\n")[number - 1]

    def clear(self) -> None:
        """Forget what was left, for the next process that inherits this mark."""
        self.slot[0] = 0

    def note(self, text: bytes) -> None:
        """Leave something else for the parent, in place of what was left; what is longer than 4 kB
        is cut. Called by one thread."""
        text = text[: _SIZE - _NOTE - 4]
        self._note_length[0] = 0
        self._map[_NOTE + 4 : _NOTE + 4 + len(text)] = text
        self._note_length[0] = len(text)

    def noted(self) -> bytes:
        """What was left last; empty also while it is written."""
        length = self._note_length[0]
        text = self._map[_NOTE + 4 : _NOTE + 4 + length]
        return text if self._note_length[0] == length else b""

    def close(self) -> None:
        """Give the memory back; call it where nobody runs plugins with it any more."""
        self.slot.release()
        self._length.release()
        self._note_length.release()
        self._map.close()
        os.close(self._fd)
