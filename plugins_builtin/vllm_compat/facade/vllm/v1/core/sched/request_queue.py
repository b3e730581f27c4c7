"""The queue of waiting requests."""

from __future__ import annotations

import enum

from hookserve.engine.request_queue import FCFSQueue as FCFSRequestQueue
from hookserve.engine.request_queue import PriorityQueue as PriorityRequestQueue
from hookserve.engine.request_queue import RequestQueue
from hookserve.engine.request_queue import make_queue as create_request_queue

__all__ = [
    "FCFSRequestQueue",
    "PriorityRequestQueue",
    "RequestQueue",
    "SchedulingPolicy",
    "create_request_queue",
]

__surface__ = {
    "FCFSRequestQueue": "live: Scheduler.waiting, in the order of arrival",
    "PriorityRequestQueue": "live: Scheduler.waiting with --scheduling-policy priority",
    "RequestQueue": "live: base of both",
    "SchedulingPolicy": "live: the policies that create_request_queue and Scheduler.policy know",
    "create_request_queue": "live: the scheduler makes its queue by it",
}


class SchedulingPolicy(enum.StrEnum):
    FCFS = "fcfs"
    PRIORITY = "priority"
