"""Schedulers as plugins write them for vLLM, by class paths. Importing this imports ``vllm``."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus


class Watching(Scheduler):
    """As the default, and looks at everything in vLLM's form."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self, SchedulerInterface) and not args
        assert self.kv_cache_config.num_blocks == self.kv_cache_manager.pool.num_blocks
        assert self.kv_cache_manager.block_pool.get_num_free_blocks() == 64
        assert self.kv_cache_manager.block_pool.num_gpu_blocks == 64
        assert self.kv_cache_manager.usage == 0.0
        assert self.max_num_running_reqs == self.scheduler_config.max_num_seqs
        self.added: list[str] = []
        self.ended: list[tuple[str, RequestStatus]] = []
        self.told: dict[str, list[int]] = {}
        self.reasons: dict[str, Any] = {}

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        output = super().schedule(throttle_prefills)
        assert output.scheduled_spec_decode_tokens == {} and output.kv_connector_metadata is None
        return output

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        request.mark = f"{request.sampling_params.max_tokens}"
        self.added.append(request.request_id)

    def finish_requests(self, request_ids: Any, finished_status: RequestStatus) -> list[Request]:
        ended = super().finish_requests(request_ids, finished_status)
        self.ended += [(each.request_id, each.status) for each in ended]
        return ended

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        told = super().update_from_output(scheduler_output, model_runner_output)
        for outputs in told.values():
            for each in outputs.outputs:
                self.told.setdefault(each.request_id, []).extend(each.new_token_ids)
                if each.finished:
                    each.stop_reason = 77
                    self.reasons[each.request_id] = each.finish_reason == FinishReason.LENGTH
        return told

    def make_stats(self) -> Any:
        stats = super().make_stats()
        assert stats.num_running_reqs == len(self.running)
        stats.num_running_reqs += 1000
        return stats


class ByName(AsyncScheduler):
    """Written before vLLM had all of its arguments."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, structured_output_manager: Any,
                 log_stats: bool = False) -> None:  # fmt: skip
        super().__init__(vllm_config, kv_cache_config, structured_output_manager)
        self.was_given = structured_output_manager, log_stats

    def schedule(self) -> SchedulerOutput:
        return super().schedule()


class LongestFirst(Scheduler):
    """Sorts those that wait with the queue's own methods."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        waiting = sorted(self.waiting, key=lambda request: request.num_prompt_tokens)
        self.waiting.remove_requests(waiting)
        self.waiting.prepend_requests(waiting)
        if waiting:
            assert self.waiting.peek_request() is waiting[-1]
        return super().schedule(throttle_prefills)

    def _rank_prompts(self, candidates: list[Request]) -> tuple[Request, list[Request]]:
        return candidates[0], candidates[1:]


class Holding(Scheduler):
    """Keeps those that come until the next step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held: list[Request] = []

    def add_request(self, request: Request) -> None:
        self.held.append(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self.held) or super().has_unfinished_requests()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        while self.held:
            super().add_request(self.held.pop())
        return super().schedule(throttle_prefills)


class Forgetful(Scheduler):
    """Tells what no engine understands."""

    def update_from_output(self, *args: Any) -> Any:
        return list(super().update_from_output(*args).values())


class Raising(Scheduler):
    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        raise ValueError("the third queue is missing")


class Own(SchedulerInterface):
    """Nothing of the default: no request ever comes."""

    made: ClassVar[list[Any]] = []

    def __init__(self, vllm_config: Any, kv_cache_config: Any, block_size: int) -> None:
        self.made.append((kv_cache_config.num_blocks, block_size))

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        return SchedulerOutput.make_empty()

    def update_from_output(self, *args: Any) -> dict[int, EngineCoreOutputs]:
        return {}

    def add_request(self, request: Request) -> None: ...

    def finish_requests(self, request_ids: Any, finished_status: RequestStatus) -> Any: ...

    def get_num_unfinished_requests(self) -> int:
        return 0

    def get_request_counts(self) -> tuple[int, int]:
        return 0, 0

    def reset_prefix_cache(self, *args: bool) -> bool:
        return True

    def make_stats(self) -> None: ...

    def shutdown(self) -> None: ...
