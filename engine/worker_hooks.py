"""What plugins are told by a worker: that its model is loaded, and each step.

Views and copies are made only where somebody implements the hook.
"""

from __future__ import annotations

import copy
from typing import Any

from hookserve.hookspecs import Host
from hookserve.hookspecs.step_types import StepBatch

from .late_refusals import late_refusals
from .step import ModelRunnerOutput, SchedulerOutput
from .vllm_config import VllmConfig


class WorkerHooks:
    """The hooks of one worker."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._calls = host.calls
        self._before_step = host.calls.hooks["before_step"]
        self._after_step = host.calls.hooks["after_step"]
        self._num_steps = 0

    def model_loaded(self, model: Any, config: VllmConfig) -> None:
        """
        Raises:
            WorkerPluginsError: a plugin failed; everything is to start again without it.
            RequiredPluginError: one that must work did.
        """
        if self._host.calls.hooks["model_loaded"].guards:
            with late_refusals(self._host):
                self._calls.model_loaded(model, config)

    def before_step(self, scheduled: SchedulerOutput) -> StepBatch | None:
        """Tell of a step; what ``after_step`` is to be given, or ``None``: nobody wants it."""
        if not scheduled.total_num_scheduled_tokens:
            return None
        self._num_steps += 1
        if not (self._before_step.guards or self._after_step.guards):
            return None
        batch = StepBatch(
            step=self._num_steps,
            num_scheduled_tokens=dict(scheduled.num_scheduled_tokens),
            num_new_requests=len(scheduled.scheduled_new_reqs),
        )
        self._calls.before_step(batch)
        return batch

    def after_step(self, batch: StepBatch, output: ModelRunnerOutput) -> None:
        """Tell what was computed; of a copy, so that nobody changes the text by it."""
        if self._after_step.guards:
            self._calls.after_step(batch, copy.deepcopy(output))
