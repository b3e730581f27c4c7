"""The queue of waiting requests, and who goes before whom: by arrival, or by priority.

Who is taken out of it is ``scheduler``'s decision. Both orders have the same few operations, none
of which takes Python time that grows with the queue.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from .config import SCHEDULING_POLICIES
from .errors import ConfigError
from .request import Request


class RequestQueue(Protocol):
    """Waiting requests, the next one first."""

    def add(self, request: Request) -> None: ...

    def put_back(self, request: Request) -> None:
        """Add a request that ran already and was preempted."""

    def remove(self, request: Request) -> None: ...

    def enter_running(self, running: list[Request], request: Request) -> None:
        """Add the request to those that run, the first victim of a shortage last."""

    def precedence(self, request: Request) -> int:
        """Lower is sooner, whatever the arrival."""

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...


class FCFSQueue(deque[Request]):
    """First come, first served: priorities change nothing."""

    def add(self, request: Request) -> None:
        self.append(request)

    def put_back(self, request: Request) -> None:
        self.appendleft(request)

    def enter_running(self, running: list[Request], request: Request) -> None:
        running.append(request)

    def precedence(self, request: Request) -> int:
        return 0


class PriorityQueue(list[Request]):
    """By priority, and by arrival among equals; those that run are kept in the same order."""

    def add(self, request: Request) -> None:
        insort(self, request, key=_rank)

    put_back = add

    def remove(self, request: Request) -> None:
        del self[bisect_left(self, _rank(request), key=_rank)]

    def enter_running(self, running: list[Request], request: Request) -> None:
        insort(running, request, key=_rank)

    def precedence(self, request: Request) -> int:
        return request.priority


def _rank(request: Request) -> tuple[int, float, str]:
    """The id is unique, so the order is total."""
    return request.priority, request.arrival_ts, request.request_id


def make_queue(policy: str) -> RequestQueue:
    """
    Raises:
        ConfigError: for a name that is not in ``SCHEDULING_POLICIES``.
    """
    if policy == "fcfs":
        return FCFSQueue()
    if policy == "priority":
        return PriorityQueue()
    known = ", ".join(SCHEDULING_POLICIES)
    raise ConfigError(f"scheduling policy {policy!r}: expected one of {known}")
