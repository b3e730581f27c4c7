"""Ctrl-C while the engine steps in the caller's thread: kept until the step has ended, so that the
books of the cache stay right and the engine stays usable."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class HeldInterrupts:
    """The first interrupt is noted for ``check``; the second one is raised where it strikes."""

    def __init__(self) -> None:
        self._is_noted = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self._is_noted:
            signal.default_int_handler(number, frame)
        self._is_noted = True

    def check(self) -> None:
        """
        Raises:
            KeyboardInterrupt: there was one; it is told once.
        """
        if self._is_noted:
            self._is_noted = False
            raise KeyboardInterrupt


@contextlib.contextmanager
def held_interrupts() -> Iterator[HeldInterrupts]:
    """Interrupts inside are held. Where somebody handles the signal already, and outside of the
    main thread, which gets none, everything stays as it is."""
    held = HeldInterrupts()
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield held
        return
    signal.signal(signal.SIGINT, held.note)
    try:
        yield held
        held.check()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
