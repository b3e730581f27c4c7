"""A scheduler and an executor that leave a line in the log, and a scheduler that always fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.executor.uniproc_executor import UniProcExecutor

logger = init_logger("vllm.samples.engine")


class SampleScheduler(Scheduler):
    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        output = super().schedule(throttle_prefills)
        if output.scheduled_new_reqs:
            logger.info("sample: scheduled %d new", len(output.scheduled_new_reqs))
        return output


class FailingScheduler(Scheduler):
    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        raise Exception("this scheduler always fails")


class SampleExecutor(UniProcExecutor):
    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        logger.info_once("sample: executor calls %s", method)
        return super().collective_rpc(method, timeout, args, kwargs, **options)
