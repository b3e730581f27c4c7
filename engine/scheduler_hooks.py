"""What plugins have to say about a step: who is served first, who gives way, what was chosen.

``scheduler`` asks only where somebody implements the hook, and views are made only then. Whether
an answer can be used is checked in the hook's own call (``hookspecs.calls``), so an answer that
cannot is its plugin's failure; what an order or a victim means is the scheduler's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

from hookserve.hookspecs.calls import Calls
from hookserve.hookspecs.guard import Guard
from hookserve.hookspecs.hook import Hook
from hookserve.hookspecs.step_types import QueuedRequest

from .request import Request
from .step import SchedulerOutput


class _Unimplemented:
    """Stands for each hook where there are no plugins."""

    guards: tuple[Guard, ...] = ()


_NOBODY = _Unimplemented()


class SchedulerHooks:
    """The hooks of one scheduler.

    Args:
        calls: the host's; ``None``: there are no plugins.
    """

    def __init__(self, calls: Calls | None = None) -> None:
        self._calls = calls
        hooks: Mapping[str, Hook | _Unimplemented] = {} if calls is None else calls.hooks
        self._order_waiting = hooks.get("order_waiting", _NOBODY)
        self._select_victim = hooks.get("select_victim", _NOBODY)
        self._after_schedule = hooks.get("after_schedule", _NOBODY)

    @property
    def may_reorder(self) -> bool:
        return bool(self._order_waiting.guards)

    def order(self, waiting: Iterable[Request]) -> list[Request] | None:
        """All waiting requests in the order that plugins want, or ``None``: nobody says so."""
        if not self._order_waiting.guards:
            return None
        by_id = {request.request_id: request for request in waiting}
        if not by_id:
            return None
        views = [view_of(request) for request in by_id.values()]
        assert self._calls is not None
        ordered = self._calls.order_waiting(views)
        if ordered is views:
            return None
        return [by_id[view.request_id] for view in ordered]

    def victim(self, running: Sequence[Request]) -> Request | None:
        """Who is to give its blocks up, or ``None``: nobody says so."""
        if not self._select_victim.guards:
            return None
        assert self._calls is not None
        chosen = self._calls.select_victim([view_of(request) for request in running])
        if chosen is None:
            return None
        return next(request for request in running if request.request_id == chosen.value)

    def scheduled(self, output: SchedulerOutput) -> None:
        """Tell what was chosen; of a copy, so that nobody changes the step by it."""
        if self._calls is not None and self._after_schedule.guards:
            self._calls.after_schedule(copy.deepcopy(output))


def view_of(request: Request) -> QueuedRequest:
    return QueuedRequest(
        request_id=request.request_id,
        principal=request.principal,
        priority=request.priority,
        arrival_time=request.arrival_time,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_preemptions=request.num_preemptions,
        cache_salt=request.cache_salt,
    )
