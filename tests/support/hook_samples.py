"""One call of each hook: arguments of the right shapes, and what the example of the hook's page is
expected to do with them.

The hook's page has the example; ``tests/hookspecs/test_hook_docs.py`` calls it.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hookserve.hookspecs import (
    ApiRequest,
    EngineLoad,
    Host,
    Principal,
    QueuedRequest,
    Refusal,
    RequestHead,
    RequestRecord,
    ResponseDelta,
    StepBatch,
)

HEAD = RequestHead(
    method="POST",
    path="/v1/chat/completions",
    query="",
    headers={"authorization": "Bearer sesame", "x-tenant": "blue"},
    client="127.0.0.1",
)
PRINCIPAL = Principal("blue", attributes={"tenant": "blue"})
REQUEST = ApiRequest(
    request_id="chatcmpl-1",
    route="/v1/chat/completions",
    model="m",
    body={"model": "m", "messages": [{"role": "user", "content": "My card is 4111 1111."}]},
    headers=HEAD.headers,
)
RECORD = RequestRecord(
    request_id="chatcmpl-1",
    route="/v1/chat/completions",
    model="m",
    num_prompt_tokens=12,
    num_completion_tokens=30,
    finish_reason="stop",
    error=None,
    arrival_time=1.7e9,
    ttft_s=0.1,
    latency_s=0.9,
)
LOAD = EngineLoad(num_running=32, num_waiting=100, num_unfinished=140, kv_cache_usage=0.97)
BATCH = StepBatch(step=1, num_scheduled_tokens={"a": 12, "b": 1}, num_new_requests=1)


def queued(request_id: str, priority: int, arrival_time: float) -> QueuedRequest:
    return QueuedRequest(
        request_id=request_id,
        principal="blue",
        priority=priority,
        arrival_time=arrival_time,
        num_prompt_tokens=12 * priority + 1,
        num_output_tokens=priority,
        num_computed_tokens=0,
        num_preemptions=0,
        cache_salt=None,
    )


def make_queue() -> list[QueuedRequest]:
    return [queued("c", 2, 1.0), queued("a", 0, 2.0), queued("b", 1, 3.0)]


def is_no_answer(answer: Any) -> bool:
    return answer is None


class Sample(NamedTuple):
    """Arguments (without ``ctx``), made anew for each call, and whether the example's answer to
    them, as the method of ``Calls`` gives it, is what its page says."""

    arguments: Callable[[], tuple[Any, ...]]
    is_right: Callable[[Any], bool] = is_no_answer


SAMPLES: Mapping[str, Sample] = {
    "process_started": Sample(lambda: (frozenset({"worker"}), None)),
    "engine_config": Sample(
        lambda: ({"model": "m", "max_num_seqs": 256, "seed": 0},),
        lambda answer: (
            {name: change.value for name, change in answer.items()} == {"max_num_seqs": 64}
        ),
    ),
    "cli_options": Sample(
        lambda: (argparse.ArgumentParser(add_help=False),),
        lambda answer: answer.format_usage().count("--") == 1,
    ),
    "compile_cache_key": Sample(
        lambda: (None,), lambda answer: answer == ["example-dist:hookserve:example=fast-gelu-2"]
    ),
    "model_loaded": Sample(lambda: (make_model(), None)),
    "weights": Sample(
        lambda: (
            iter([("old.a.weight", make_tensor()), ("old.b.weight", make_tensor())]),
            None,
        ),
        lambda answer: [name for name, _ in answer] == ["model.a.weight", "model.b.weight"],
    ),
    "authenticate": Sample(lambda: (HEAD,), lambda answer: isinstance(answer.value, Principal)),
    "before_request": Sample(
        lambda: (REQUEST, PRINCIPAL),
        lambda answer: isinstance(answer, ApiRequest) and answer.body != REQUEST.body,
    ),
    "admit": Sample(
        lambda: (REQUEST, PRINCIPAL, LOAD), lambda answer: isinstance(answer.value, Refusal)
    ),
    "before_response": Sample(
        lambda: (REQUEST, ResponseDelta(0, "Your card is 4111 1111.")),
        lambda answer: isinstance(answer, ResponseDelta) and "4111" not in answer.text,
    ),
    "metric_labels": Sample(
        lambda: (REQUEST, PRINCIPAL),
        lambda answer: [owned.value for owned in answer] == [{"tenant": "blue"}],
    ),
    "order_waiting": Sample(
        lambda: (make_queue(),),
        lambda answer: [request.request_id for request in answer] == ["a", "b", "c"],
    ),
    "select_victim": Sample(
        lambda: (make_queue(),), lambda answer: answer.value in {"a", "b", "c"}
    ),
    "after_schedule": Sample(lambda: (make_scheduler_output(),)),
    "before_step": Sample(lambda: (BATCH,)),
    "after_step": Sample(lambda: (BATCH, make_runner_output())),
    "request_finished": Sample(lambda: (RECORD,)),
    "shutdown": Sample(lambda: (frozenset({"worker"}),)),
}
"""Of each hook that is called; registration hooks take no arguments."""


def make_model() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def make_tensor() -> Any:
    import torch

    return torch.ones(2, 2)


def make_scheduler_output() -> Any:
    from hookserve.engine.step import SchedulerOutput

    return SchedulerOutput(num_scheduled_tokens={"a": 12, "b": 1}, total_num_scheduled_tokens=13)


def make_runner_output() -> Any:
    from hookserve.engine.step import ModelRunnerOutput

    return ModelRunnerOutput(req_ids=["a", "b"], sampled_token_ids=[[5], [6]])


def call_hook(host: Host, name: str, arguments: tuple[Any, ...]) -> Any:
    """Call a hook as the host's users do."""
    answer = getattr(host.calls, name)(*arguments)
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    return await answer
