"""``LLM`` over a tiny checkpoint: prompts, chats, parameters, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine import LLM, LLMEngine, SamplingParams
from hookserve.engine.errors import InvalidRequestError, NotServedError
from hookserve.engine.text.chat_template import render_chat

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def shared(tiny_llama: Path, torch_threads: None) -> Iterator[LLM]:
    with LLM(str(tiny_llama), num_gpu_blocks_override=64, max_num_batched_tokens=64) as llm:
        torch.set_num_threads(1)  # products so small are slower shared
        yield llm


def tokens_of(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[list[int]]:
    return [each.outputs[0].token_ids for each in llm.generate(prompts, params)]


def test_prompts_in_every_form_give_one_output_each_in_order(shared: LLM) -> None:
    tokenizer = shared.get_tokenizer()
    ids = tokenizer.encode("hello")
    outputs = shared.generate(["hello", ids, {"prompt": "hello"}, "other"], GREEDY)
    assert [each.prompt for each in outputs] == ["hello", None, "hello", "other"]
    assert [each.prompt_token_ids for each in outputs[:3]] == [ids] * 3
    first = outputs[0].outputs[0]
    assert len(first.token_ids) == 6
    assert first.text == tokenizer.decode(first.token_ids)
    assert (first.index, first.finish_reason, first.finished()) == (0, "length", True)
    assert [each.outputs[0].token_ids for each in outputs[:3]] == [first.token_ids] * 3
    assert all(each.finished and each.metrics is None for each in outputs)
    assert tokens_of(shared, ids) == tokens_of(shared, "hello") == [first.token_ids]


def test_each_prompt_may_have_its_own_parameters(shared: LLM) -> None:
    lengths = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 4, 2)]
    outputs = tokens_of(shared, ["a", "b", "c"], lengths)
    assert [len(each) for each in outputs] == [1, 4, 2]
    assert tokens_of(shared, "b", lengths[1]) == [outputs[1]]


def test_a_chat_is_the_templates_text_without_a_second_bos(shared: LLM) -> None:
    tokenizer = shared.get_tokenizer()
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    text = render_chat(tokenizer, [{"role": "user", "content": "hi"}], add_generation_prompt=True)
    (output,) = shared.chat(messages, GREEDY)
    assert output.prompt == text
    assert output.prompt_token_ids == tokenizer.encode(text, add_special_tokens=False)
    one, two = shared.chat([messages, messages], GREEDY, chat_template="{{ messages[0].role }}!")
    assert one.prompt == two.prompt == "user!"
    (open_ended,) = shared.chat(messages, GREEDY, add_generation_prompt=False)
    assert text.startswith(open_ended.prompt) and open_ended.prompt != text


def test_sequences_of_one_prompt_are_those_of_their_seeds(shared: LLM) -> None:
    def sampled(seed: int, **more: Any) -> SamplingParams:
        return SamplingParams(seed=seed, max_tokens=5, ignore_eos=True, **more)

    alone = [tokens_of(shared, "x", sampled(seed))[0] for seed in (7, 8, 9)]
    (output,) = shared.generate("x", sampled(7, n=3))
    assert [each.index for each in output.outputs] == [0, 1, 2]
    assert [each.token_ids for each in output.outputs] == alone
    (best,) = shared.generate("x", sampled(7, n=1, best_of=3, logprobs=0))
    likelihoods = [
        shared.generate("x", sampled(seed, logprobs=0))[0].outputs[0].cumulative_logprob
        for seed in (7, 8, 9)
    ]
    assert best.outputs[0].cumulative_logprob == pytest.approx(max(likelihoods), abs=1e-4)


def test_a_stop_string_ends_the_text_before_it(shared: LLM) -> None:
    (whole,) = shared.generate("stop", GREEDY)
    text = whole.outputs[0].text
    stop = text[2:4]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, stop=stop)
    (cut,) = shared.generate("stop", params)
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert not shared.llm_engine.core.has_work()


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        (["a", [300]], GREEDY, r"prompt\[0\]: token id 300"),
        (["a", [1] * 512], GREEDY, "512 tokens"),
        (["a", ""], [GREEDY], "one for each of 2 prompts, got 1"),
        (["a", "b"], [GREEDY, None], r"sampling_params\[1\]: expected SamplingParams"),
        (["a"], SamplingParams(stop_token_ids=[900]), "stop_token_ids"),
    ],
)
def test_one_bad_request_stops_all_before_any_runs(
    shared: LLM, monkeypatch: pytest.MonkeyPatch, prompts: Any, params: Any, words: str
) -> None:
    steps: list[None] = []
    monkeypatch.setattr(LLMEngine, "step", lambda self: steps.append(None))
    with pytest.raises(ValueError, match=words):
        shared.generate(prompts, params)
    assert steps == []


def test_chats_that_cannot_be_are_refused(shared: LLM) -> None:
    for messages, words in (
        ([], "a list of messages"),
        ([{"content": "x"}], r"messages\[0\]: expected a dict with a role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "only parts of type 'text'"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            shared.chat(messages, GREEDY)
    with pytest.raises(InvalidRequestError, match="chat_template"):
        shared.chat([{"role": "user", "content": "x"}], chat_template="{% if %}")


@pytest.mark.parametrize("given", [True, "soon", 1.5, None, 2**63])
def test_a_priority_that_is_no_number_is_refused_before_the_queue_compares_it(
    shared: LLM, given: Any
) -> None:
    with pytest.raises(InvalidRequestError, match="priority: expected a whole number"):
        shared.generate(["a", "b"], GREEDY, priority=[0, given])
    assert not shared.llm_engine.core.has_work()


@pytest.mark.parametrize(
    ("prompt", "more", "words"),
    [
        ({"prompt": "a", "cache_salt": "\ud800"}, {}, "cache_salt: '.ud800' has a surrogate at 0"),
        ("a", {"stop": ["b", "c\udc00"]}, "stop: 'c.udc00' has a surrogate at 1"),
        ("a", {"bad_words": "\ud83d"}, "bad_words: '.ud83d' has a surrogate at 0"),
    ],
)
def test_half_a_surrogate_pair_is_named(
    shared: LLM, prompt: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        shared.generate(prompt, SamplingParams(**more))


def test_parameters_of_another_kind_are_refused_one_by_one_too(shared: LLM) -> None:
    wrong: Any = {"n": 1}
    with pytest.raises(InvalidRequestError, match="expected SamplingParams, got dict"):
        shared.llm_engine.add_request("x", "a", wrong)


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "template", 1])
def test_a_template_option_cannot_be_what_is_given_elsewhere(shared: LLM, name: Any) -> None:
    chat = [{"role": "user", "content": "x"}]
    with pytest.raises(InvalidRequestError, match=r"chat_template_kwargs: .* is no name"):
        shared.chat(chat, GREEDY, chat_template_kwargs={name: 1})


def test_workers_answer(shared: LLM) -> None:
    assert shared.collective_rpc("check_health") == [True]
    with pytest.raises(AttributeError, match="_secret"):
        shared.collective_rpc("_secret")


def test_prefixes_are_forgotten_when_that_is_asked(shared: LLM) -> None:
    prompt = list(range(3, 45))
    shared.generate([prompt], GREEDY)
    assert shared.generate([prompt], GREEDY)[0].num_cached_tokens == 32
    assert shared.reset_prefix_cache() is True
    assert shared.generate([prompt], GREEDY)[0].num_cached_tokens == 0


def test_what_no_engine_has_may_be_none(shared: LLM) -> None:
    shared.generate(["a"], GREEDY, lora_request=None, tokenization_kwargs=None)
    with pytest.raises(NotServedError, match="generate: lora_request has no meaning for this"):
        shared.generate(["a"], GREEDY, lora_request=object())  # type: ignore[arg-type]
    with pytest.raises(NotServedError, match="chat: mm_processor_kwargs has no meaning for this"):
        shared.chat([{"role": "user", "content": "a"}], mm_processor_kwargs={"a": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("beam_search", r"there is no beam search here; use SamplingParams\(n=\.\.\., best_of="),
        ("encode", "no pooling model is served here; models generate"),
        ("embed", "no pooling model"),
        ("classify", "no pooling model"),
        ("reward", "no pooling model"),
        ("score", "no pooling model"),
        ("enqueue", "an LLM takes its prompts and answers them in one call"),
        ("wait_for_completion", "an LLM takes its prompts"),
        ("get_metrics", "an engine in this process keeps no metrics"),
        ("reset_mm_cache", "models here take text alone"),
        ("sleep", "an engine here gives its memory back at its end alone; call shutdown"),
        ("wake_up", "an engine here gives"),
        ("start_profile", "this server profiles no engine"),
        ("stop_profile", "this server profiles no engine"),
        ("update_weights", "weights are read at the start alone"),
    ],
)
def test_what_it_cannot_do_raises_and_says_so(name: str, why: str) -> None:
    with pytest.raises(NotServedError, match=f"^{name}: {why}"):
        getattr(LLM, name)(object(), ["a"], use_tqdm=False)


@pytest.mark.parametrize(
    "name",
    ["add_lora", "list_loras", "pin_lora", "remove_lora", "reset_mm_cache", "sleep", "wake_up"],
)
def test_its_engine_says_so_too(shared: LLM, name: str) -> None:
    with pytest.raises(NotServedError, match=f"^{name}: .{{20}}"):
        getattr(shared.llm_engine, name)()


def test_what_a_list_was_given_in_its_place_is_looked_at(shared: LLM) -> None:
    params = SamplingParams(max_tokens=4)
    params.stop.append(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"stop: \[5\] is not "):
        shared.generate(["a"], params)
    with pytest.raises(ValueError, match=r"stop: \[5\] is not "):
        shared.llm_engine.add_request("wrong", "a", params)


def test_no_priorities_are_not_one_for_each_prompt(shared: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="one for each of 1 prompts, got 0"):
        shared.generate(["a"], GREEDY, priority=[])
