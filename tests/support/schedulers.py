"""A plugin with schedulers: parts of the default replaced, one written anew, and some at fault.

By ``PluginSettings(files=("schedulers",))``, or by their class paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hookserve.engine.messages import EngineCoreOutput
from hookserve.engine.output import find_stop
from hookserve.engine.request import Request
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.scheduler_interface import SchedulerInterface
from hookserve.engine.step import ModelRunnerOutput, NewRequestData, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Named, hookimpl

POISON = 90
"""A prompt that begins with it makes ``Brittle`` raise."""


@hookimpl
def scheduler() -> list[Named]:
    kinds = (Counting, Brittle, ShortestFirst, OneByOne, Idle)
    return [Named(kind.__name__.lower(), f"schedulers:{kind.__name__}") for kind in kinds]


class Counting(Scheduler):
    """As the default, and counts."""

    num_calls = 0

    def schedule(self) -> SchedulerOutput:
        self.num_calls += 1
        return super().schedule()


class Brittle(Scheduler):
    fault = "schedule"

    def schedule(self) -> SchedulerOutput:
        self._fail("schedule")
        return super().schedule()

    def update_from_output(self, *args: Any) -> list[EngineCoreOutput]:
        self._fail("update_from_output")
        return super().update_from_output(*args)

    def _fail(self, method: str) -> None:
        if method == self.fault and any(r.token_ids[0] == POISON for r in self.requests.values()):
            raise ValueError("the third queue is missing")


class ShortestFirst(Scheduler):
    def _rank_prompts(self, candidates: list[Request]) -> tuple[Request, list[Request]]:
        first, *others = sorted(candidates, key=lambda request: request.num_uncomputed_tokens)
        return first, others


class OneByOne(SchedulerInterface):
    """Nothing of the default: one request at a time, each in the same first blocks, its prompt at
    once."""

    def __init__(
        self, vllm_config: VllmConfig, num_blocks: int, block_size: int, calls: Any = None
    ) -> None:
        super().__init__(vllm_config, num_blocks, block_size, calls)
        self.queue: list[Request] = []
        self.gone: set[str] = set()
        self.block_size = block_size
        self.budget = vllm_config.scheduler_config.max_num_batched_tokens
        self.max_tokens = min(num_blocks * block_size, vllm_config.model_config.max_model_len)

    def add_request(self, request: Request) -> EngineCoreOutput | None:
        if request.num_prompt_tokens > self.budget:
            error = f"At most {self.budget} tokens, please."
            return EngineCoreOutput(
                request.request_id, finish_reason="error", error=error, is_refusal=True
            )
        self.queue.append(request)
        return None

    def finish_requests(self, request_ids: str | Iterable[str], reason: str) -> list[Request]:
        ids = {request_ids} if isinstance(request_ids, str) else set(request_ids)
        ended = [request for request in self.queue if request.request_id in ids]
        self.queue = [request for request in self.queue if request not in ended]
        self.gone |= {request.request_id for request in ended}
        return ended

    def get_num_unfinished_requests(self) -> int:
        return len(self.queue)

    def get_request_counts(self) -> tuple[int, int]:
        return min(1, len(self.queue)), max(0, len(self.queue) - 1)

    def schedule(self) -> SchedulerOutput:
        output = SchedulerOutput(finished_req_ids=self.gone)
        self.gone = set()
        if not self.queue:
            return output
        request = self.queue[0]
        count = request.num_tokens - request.num_computed_tokens
        held = request.block_ids
        needed = -(-request.num_tokens // self.block_size)
        added = list(range(len(held) + 1, needed + 1))
        held.extend(added)
        if request.num_computed_tokens:
            cached = output.scheduled_cached_reqs
            cached.req_ids.append(request.request_id)
            cached.num_computed_tokens.append(request.num_computed_tokens)
            cached.new_block_ids[request.request_id] = added
        else:
            new = NewRequestData(
                request.request_id, request.token_ids, request.params, list(held), 0
            )
            output.scheduled_new_reqs.append(new)
        output.num_scheduled_tokens[request.request_id] = count
        output.total_num_scheduled_tokens = count
        request.num_computed_tokens += count
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        return [
            self._take(request, tokens)
            for request_id, tokens in zip(
                model_runner_output.req_ids, model_runner_output.sampled_token_ids, strict=True
            )
            for request in self.queue
            if request.request_id == request_id
        ]

    def _take(self, request: Request, tokens: Sequence[int]) -> EngineCoreOutput:
        (token,) = tokens
        request.append_token(token)
        stop = find_stop(request, self.max_tokens)
        if stop is not None:
            self.finish_requests(request.request_id, stop.finish_reason)
        reason = None if stop is None else stop.finish_reason
        return EngineCoreOutput(request.request_id, [token], finish_reason=reason)

    def reset_prefix_cache(self) -> None:
        return None


class Idle(Scheduler):
    """Chooses nobody as long as ``patience`` is left."""

    patience = 0

    def schedule(self) -> SchedulerOutput:
        if self.patience > 0:
            self.patience -= 1
            return SchedulerOutput()
        return super().schedule()


class Pathless(Scheduler):
    """Takes nothing of the default's step along."""

    def schedule(self) -> SchedulerOutput:
        return SchedulerOutput()


class OwnVictim(Scheduler):
    def _select_victim(self) -> Request:
        return self.running[0]


class Wrapped(Scheduler):
    """As it is left by who wraps what it finds."""


def _wrap(whole: Any) -> Any:
    def anything(self: Any, *args: Any) -> Any:
        return whole(self, *args)

    return anything


Wrapped.schedule = _wrap(Wrapped.schedule)  # type: ignore[method-assign]
_whole_extend = Scheduler._extend


class Kept(Scheduler):
    """Goes on by what its module kept."""

    def _extend(self, request: Request, output: SchedulerOutput) -> list[int] | None:
        return _whole_extend(self, request, output)


class Stating(Pathless):
    capabilities = frozenset({"preemption"})


class Below(Stating):
    def _extend(self, request: Request, output: SchedulerOutput) -> list[int] | None:
        return super()._extend(request, output)


class Wordless:
    """Has every method but two, and inherits nothing."""

    def __init__(self, *args: Any) -> None: ...

    def add_request(self, request: Any) -> None: ...

    def finish_requests(self, ids: Any, reason: str) -> list[Any]:
        return []

    def get_num_unfinished_requests(self) -> int:
        return 0

    def get_request_counts(self) -> tuple[int, int]:
        return 0, 0

    def has_unfinished_requests(self) -> bool:
        return False

    def get_kv_cache_usage(self) -> float:
        return 0.0

    def num_pending_tokens(self) -> int:
        return 0

    def make_stats(self, step: int, elapsed_s: float | None) -> None: ...

    def check_integrity(self) -> None: ...

    def shutdown(self) -> None: ...

    def reset_prefix_cache(self) -> None: ...


class Half(OneByOne):
    update_from_output = SchedulerInterface.update_from_output


class OldStyle(Scheduler):
    def schedule(self, throttle: bool) -> SchedulerOutput:  # type: ignore[override]
        return super().schedule()


class Careless(Scheduler):
    def __init__(self, *args: Any) -> None:
        raise OSError("no queue\nfor anybody")


class Tongue(Scheduler):
    """Answers with what is no step."""

    answer: Any = None

    def schedule(self) -> SchedulerOutput:
        return super().schedule() if self.answer is None else self.answer[0]
