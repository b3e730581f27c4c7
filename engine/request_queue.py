"""The queue of waiting requests, and who goes before whom: by arrival, or by priority.

Who is taken out of it is ``scheduler``'s decision. Both orders have the same few operations, none
of which takes Python time that grows with the queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator

from .config import SCHEDULING_POLICIES
from .errors import ConfigError
from .request import Request


class RequestQueue(ABC):
    """Waiting requests, the next one first; the ecosystem's names are offered beside ours."""

    @abstractmethod
    def add(self, request: Request) -> None: ...

    @abstractmethod
    def put_back(self, request: Request) -> None:
        """Add a request that ran already and was preempted."""

    @abstractmethod
    def remove(self, request: Request, /) -> None: ...

    @abstractmethod
    def enter_running(self, running: list[Request], request: Request) -> None:
        """Add the request to those that run, the first victim of a shortage last."""

    @abstractmethod
    def precedence(self, request: Request) -> int:
        """Lower is sooner, whatever the arrival."""

    @abstractmethod
    def __iter__(self) -> Iterator[Request]: ...

    @abstractmethod
    def __len__(self) -> int: ...

    def add_request(self, request: Request) -> None:
        self.add(request)

    def peek_request(self) -> Request:
        """Raises ``IndexError`` where nobody waits."""
        for request in self:
            return request
        raise IndexError("nobody waits")

    def pop_request(self) -> Request:
        """Raises ``IndexError`` where nobody waits."""
        request = self.peek_request()
        self.remove(request)
        return request

    def prepend_request(self, request: Request) -> None:
        self.put_back(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """As ``prepend_request`` of each, one after the other."""
        for request in requests:
            self.put_back(request)

    def remove_request(self, request: Request) -> None:
        self.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove(request)


class FCFSQueue(deque[Request], RequestQueue):
    """First come, first served: priorities change nothing."""

    def add(self, request: Request) -> None:
        self.append(request)

    def put_back(self, request: Request) -> None:
        self.appendleft(request)

    def enter_running(self, running: list[Request], request: Request) -> None:
        running.append(request)

    def precedence(self, request: Request) -> int:
        return 0


class PriorityQueue(list[Request], RequestQueue):
    """By priority, and by arrival among equals; those that run are kept in the same order."""

    def add(self, request: Request) -> None:
        insort(self, request, key=_rank)

    put_back = add

    def remove(self, request: Request, /) -> None:
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
