"""How far a batch is, for whoever waits for it: ``ProgressBar`` writes a line that renews itself.

It is for people at a terminal: on a stream that is none it writes nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from .outputs import RequestOutput

_MIN_INTERVAL_S = 0.1
_TITLE = "Processed prompts"


class Progress(Protocol):
    """Told of each request that ends."""

    def add(self, output: RequestOutput) -> None: ...

    def close(self) -> None: ...


def make_progress(wanted: bool | Callable[..., Any], total: int) -> Progress:
    """
    Args:
        wanted: whether to show anything; or what makes a bar as ``tqdm.tqdm`` does.
        total: number of requests.
    """
    if callable(wanted):
        return _ForeignBar(wanted(total=total, desc=_TITLE, unit="req"))
    return ProgressBar(total) if wanted and sys.stderr.isatty() else _Nothing()


class _Nothing:
    def add(self, output: RequestOutput) -> None:
        pass

    def close(self) -> None:
        pass


class _ForeignBar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def add(self, output: RequestOutput) -> None:
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()


class ProgressBar:
    """``Processed prompts: 3/8, 1.52 req/s, input 200.1 tokens/s, output 30.4 tokens/s``"""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._total = total
        self._num_done = 0
        self._num_input = 0
        self._num_output = 0
        self._started = time.monotonic()
        self._drawn = -_MIN_INTERVAL_S
        self._width = 0
        self._draw(self._started)

    def add(self, output: RequestOutput) -> None:
        self._num_done += 1
        self._num_input += len(output.prompt_token_ids)
        self._num_output += sum(len(each.token_ids) for each in output.outputs)
        now = time.monotonic()
        if now - self._drawn >= _MIN_INTERVAL_S:
            self._draw(now)

    def close(self) -> None:
        self._draw(time.monotonic())
        self._stream.write("\n")
        self._stream.flush()

    def _draw(self, now: float) -> None:
        seconds = max(now - self._started, 1e-9)
        line = (
            f"{_TITLE}: {self._num_done}/{self._total}, {self._num_done / seconds:.2f} req/s, "
            f"input {self._num_input / seconds:.1f} tokens/s, "
            f"output {self._num_output / seconds:.1f} tokens/s"
        )
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)
        self._drawn = now
