"""The data of steps under vLLM's names: what is the engine's own, and what only has its form."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from fake_engine import make_request
from hookserve.engine.codec import make_decoder, make_encoder
from hookserve.engine.messages import TokenLogprobs
from hookserve.engine.request import Request
from hookserve.engine.sampler import Sampler, SamplingMetadata
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.step import CachedRequestData, ModelRunnerOutput, SchedulerOutput
from hookserve.engine.worker_messages import ModelExecuted

pytestmark = pytest.mark.usefixtures("vllm_facade")


def test_older_and_newer_homes_have_the_same_classes() -> None:
    homes = {
        "Sampler": ("v1.sample.sampler", "model_executor.layers.sampler"),
        "SamplerOutput": ("v1.outputs", "v1.sample.sampler", "v1.sample.rejection_sampler"),
        "SamplingMetadata": ("v1.sample.metadata", "model_executor.sampling_metadata"),
        "process_dict_updates": (
            "v1.sample.logits_processor",
            "v1.sample.logits_processor.builtin",
        ),
        "Request": ("v1.request",),
        "EngineCore": ("v1.engine.core",),
    }
    for name, modules in homes.items():
        found = {getattr(importlib.import_module(f"vllm.{each}"), name) for each in modules}
        (one,) = found
        assert one.__module__.startswith("hookserve.engine."), name


def test_a_sampler_that_a_model_makes_samples_as_the_workers() -> None:
    from vllm.model_executor.layers.sampler import Sampler as Served

    sampler: Any = Served()
    assert type(sampler) is Sampler
    metadata = SamplingMetadata.from_params(
        [SamplingParams(temperature=0.0)] * 2, [torch.Generator(), torch.Generator()]
    )
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert sampler.forward(logits, metadata).sampled_token_ids.tolist() == [[1], [0]]


def test_fields_of_what_the_engine_lacks_are_empty() -> None:
    step = SchedulerOutput.make_empty()
    assert step.total_num_scheduled_tokens == 0 and step.scheduled_new_reqs == []
    assert (step.scheduled_spec_decode_tokens, step.scheduled_encoder_inputs) == ({}, {})
    assert (step.free_encoder_mm_hashes, step.kv_connector_metadata) == ((), None)
    assert not step.has_structured_output_requests
    with pytest.raises(AttributeError):
        step.kv_connector_metadata = "mine"  # type: ignore[misc]
    cached = CachedRequestData.make_empty()
    cached.req_ids += ["a", "b"]
    assert cached.num_reqs == 2 and cached.resumed_req_ids == set()


def test_what_a_runner_answers_has_vllms_names() -> None:
    from vllm.v1.outputs import (
        EMPTY_MODEL_RUNNER_OUTPUT,
        AsyncModelRunnerOutput,
        LogprobsLists,
        LogprobsTensors,
    )

    assert ModelRunnerOutput() == EMPTY_MODEL_RUNNER_OUTPUT
    told: list[TokenLogprobs | None] = [None]
    answer = ModelRunnerOutput(["b", "a"], [[1], [2]], prompt_logprobs={"a": told})
    assert answer.req_id_to_index == {"b": 0, "a": 1}
    assert answer.prompt_logprobs_dict["a"] is told
    tensors = LogprobsTensors(torch.tensor([[4]]), torch.tensor([[-0.5]]), torch.tensor([1]))
    assert tensors.tolists() == LogprobsLists([[4]], [[-0.5]], [1])
    with pytest.raises(TypeError, match="abstract"):
        AsyncModelRunnerOutput()


def test_a_runner_of_a_plugins_makes_its_answer_as_for_vllm() -> None:
    told: list[TokenLogprobs | None] = [None]
    given: dict[str, Any] = {
        "req_ids": ["b", "a"],
        "req_id_to_index": {"b": 0, "a": 1},
        "sampled_token_ids": [[1], []],
        "logprobs": None,
        "prompt_logprobs_dict": {"a": told, "b": None},
        "pooler_output": [None, None],
        "kv_connector_output": None,
        "num_nans_in_logits": {},
    }
    answer = ModelRunnerOutput(**given)
    assert answer == ModelRunnerOutput(["b", "a"], [[1], []], prompt_logprobs={"a": told})
    sent = make_decoder().decode(make_encoder().encode(ModelExecuted(1, answer)))
    assert isinstance(sent, ModelExecuted) and sent.output == answer
    for name, value, said in (
        ("req_id_to_index", {"a": 0, "b": 1}, "other places than req_ids"),
        ("pooler_output", [None, torch.zeros(1)], "no worker pools"),
        ("kv_connector_output", object(), "this engine has no use for it"),
    ):
        with pytest.raises(ValueError, match=said):
            ModelRunnerOutput(**{**given, name: value})
    with pytest.raises(TypeError, match="unexpected keyword argument 'req_idx'"):
        ModelRunnerOutput(req_idx=[])


def test_what_the_front_sends_and_the_cache_knows_have_vllms_names() -> None:
    from vllm.v1.core.kv_cache_utils import BlockHash
    from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
    from vllm.v1.engine import EngineCoreRequest, FinishReason

    message = make_request("a", [*range(8)], max_tokens=3, priority=2)
    assert type(message) is EngineCoreRequest and message.sampling_params.max_tokens == 3
    request = Request(message, 0.0)
    assert [type(each) for each in request.hash_full_blocks(4)] == [BlockHash] * 2
    assert (request.client_index, request.use_structured_output) == (0, False)
    queue = create_request_queue(SchedulingPolicy.PRIORITY)
    urgent = Request(make_request("b", [1], priority=1), 1.0)
    queue.add_request(request)
    queue.add_request(urgent)
    assert queue.pop_request() is urgent
    queue.remove_request(request)
    with pytest.raises(IndexError, match="nobody waits"):
        queue.peek_request()
    assert {str(each) for each in FinishReason} == {"stop", "length", "abort", "error"}
