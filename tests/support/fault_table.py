"""The table of the fault pack: which plugin does what wrong, at which stage, in which process.

What comes of each cell is for the tests to say.
"""

from __future__ import annotations

import itertools

from every_hook import SPECS
from fault_plugins import EVERYWHERE, IMPORT, FaultPlugin

PROCESSES = {"front": ["front"], "engine": ["engine", "worker"], "worker": ["worker"]}
"""The processes of the table: the worker is in the engine's in one server, and in two of its own in
the other, which has the third row."""

RAISING = {
    "raises": "ValueError: broken",
    "exits": "SystemExit: 3",
    "panics": "Panic: panicked",
    "closes": "GeneratorExit",
    "interrupts": "KeyboardInterrupt",
}
"""What is raised, as it is told. An interrupt of the front's main thread is a real one."""
AWAITABLE = "answers an awaitable"
HOSTILE = "answers what nobody can look at"


def plugins_for(process: str, hook: str, *faults: str) -> list[FaultPlugin]:
    return [FaultPlugin(process, hook, fault) for fault in faults]


def raising_at_start(process: str) -> tuple[str, ...]:
    return tuple(name for name in RAISING if (process, name) != ("front", "interrupts"))


def of_the_start(process: str) -> list[FaultPlugin]:
    raising = raising_at_start(process)
    return [
        *plugins_for(process, IMPORT, *raising),
        *plugins_for(process, "register_model", *raising, "answers 7", HOSTILE),
        FaultPlugin(process, "hf_config", "raises", half="register_model"),
        *plugins_for(process, "process_started", *raising, AWAITABLE),
    ]


OF_THE_START = [
    *of_the_start("front"),
    *of_the_start("engine"),
    *plugins_for("engine", "model_loaded", *RAISING),
    *of_the_start("worker"),
    *plugins_for("worker", "weights", *RAISING, "answers 7"),
]
SLOW_AT_START = [
    *(FaultPlugin("front", hook, "sleeps") for hook in (IMPORT, "register_model")),
    FaultPlugin("engine", IMPORT, "sleeps"),
    FaultPlugin("worker", "process_started", "sleeps"),
]
OF_A_STEP = [
    *itertools.chain.from_iterable(
        plugins_for("engine", hook, *RAISING, "answers 7", HOSTILE)
        for hook in ("order_waiting", "select_victim")
    ),
    *itertools.chain.from_iterable(
        plugins_for(process, hook, *RAISING, AWAITABLE)
        for process, hook in (
            ("engine", "after_schedule"),
            ("engine", "before_step"),
            ("engine", "after_step"),
            ("worker", "before_step"),
            ("worker", "after_step"),
        )
    ),
]
AT_CALL_3 = [
    FaultPlugin(process, hook, "raises at call 3")
    for process, hook in (
        ("front", "request_finished"),
        ("engine", "order_waiting"),
        ("engine", "after_schedule"),
        ("worker", "before_step"),
        ("worker", "after_step"),
    )
]
SLOW_IN_A_STEP = [
    FaultPlugin(process, hook, "sleeps")
    for process, hook in (
        ("engine", "order_waiting"),
        ("engine", "select_victim"),
        ("engine", "after_schedule"),
        ("engine", "after_step"),
        ("worker", "before_step"),
    )
]
AT_THE_END_OF_A_REQUEST = [
    *plugins_for("front", "metric_labels", *RAISING, "answers 7", "sleeps long"),
    *plugins_for("front", "request_finished", *RAISING, "sleeps long"),
]
AT_THE_END = [
    plugin for process in PROCESSES for plugin in plugins_for(process, "shutdown", *RAISING)
]
SLOW_AT_THE_END = [
    FaultPlugin("front", "shutdown", "sleeps long"),
    FaultPlugin("engine", "shutdown", "sleeps"),
    FaultPlugin("worker", "shutdown", "sleeps"),
]
CRASHING_AT_THE_END = [
    FaultPlugin("engine", "shutdown", "segfaults"),
    FaultPlugin("worker", "shutdown", "segfaults"),
]
TWICE = FaultPlugin(EVERYWHERE, "register_model", "registers twice")

ALL = [
    *OF_THE_START,
    *SLOW_AT_START,
    *OF_A_STEP,
    *AT_CALL_3,
    *SLOW_IN_A_STEP,
    *AT_THE_END_OF_A_REQUEST,
    *AT_THE_END,
    *SLOW_AT_THE_END,
    *CRASHING_AT_THE_END,
    TWICE,
]
NOT_THERE = {
    ("request", "engine"): "who asks for a text is spoken to by the front alone",
    ("request", "worker"): "who asks for a text is spoken to by the front alone",
    ("default", "front"): "the scheduler's choices are made where the scheduler is",
    ("default", "worker"): "the scheduler's choices are made where the scheduler is",
}
"""Cells that cannot be reached: no hook of the policy runs in the process."""


def policy_of(hook: str) -> str:
    return "refuse" if hook == IMPORT else SPECS[hook].failure
