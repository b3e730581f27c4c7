"""Offline chats with tools: what a random model is held to, what it is shown, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine import LLM, SamplingParams
from hookserve.engine.errors import InvalidRequestError
from hookserve.engine.io_processor import IOProcessor
from hookserve.engine.reply_parsers import ReplyParsers
from hookserve.engine.text.forced_calls import MAX_CALLS
from hookserve.hookspecs import Named, UnknownNameError, current, hookimpl
from hookserve.plugins_builtin.reasoning_parsers import Qwen3ReasoningParser

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}"
    " {{ c.function.arguments.city }}{% endfor %}:{{ m.content }} {% endfor %}"
)
SIZES = {"enum": ["small", "large"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"size": SIZES, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["size", "count"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "order", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "cancel"}},
]
NAMED = {"type": "function", "function": {"name": "order"}}
USER = {"role": "user", "content": "hi"}
SAMPLED = SamplingParams(temperature=1, seed=3, max_tokens=450)


PAD = 259
"""The token behind which this model does not think any more."""


class PaddedParser(Qwen3ReasoningParser):
    reasoning_end_str = "<|pad|>"


class Asked(IOProcessor[Any, Any]):
    def parse_data(self, data: object) -> Any: ...

    def pre_process(self, prompt: Any, request_id: str | None = None, **kwargs: Any) -> Any: ...

    def post_process(
        self, model_output: Any, request_id: str | None = None, **kwargs: Any
    ) -> Any: ...


class Padded:
    @hookimpl
    def reasoning_parser(self) -> Named:
        return Named("padded", PaddedParser)

    @hookimpl
    def io_processor(self) -> Named:
        return Named("asked", Asked)


@pytest.fixture(scope="module")
def llm(tiny_llama: Path, torch_threads: None) -> Iterator[LLM]:
    with LLM(
        str(tiny_llama),
        num_gpu_blocks_override=64,
        chat_template=TEMPLATE,
        tool_call_parser="llama3_json",
        reasoning_parser="padded",
        io_processor_plugin="asked",
        plugins=[Padded()],
    ) as llm:
        torch.set_num_threads(1)
        yield llm


def ask(llm: LLM, **more: Any) -> Any:
    options = {"enable_thinking": False}
    (output,) = llm.chat([USER], SAMPLED, use_tqdm=False, chat_template_kwargs=options, **more)
    (answer,) = output.outputs
    assert answer.finish_reason == "stop"
    assert (answer.content, answer.reasoning) == (None, None)
    return output.prompt, answer


def test_an_io_processor_that_is_named_is_built(llm: LLM) -> None:
    made = llm.llm_engine.io_processor
    assert isinstance(made, Asked)
    assert made.vllm_config is llm.llm_engine.vllm_config


def test_a_named_call_fits_its_schema(llm: LLM) -> None:
    prompt, answer = ask(llm, tools=TOOLS, tool_choice=NAMED)
    assert prompt == "order cancel user:hi "
    (call,) = answer.tool_calls
    assert (call.function.name, call.function.arguments) == ("order", answer.text)
    value = json.loads(answer.text)
    assert value.keys() == SCHEMA["properties"].keys()
    assert value["size"] in SIZES["enum"]
    assert 1 <= value["count"] <= 9


def test_required_calls_are_calls_and_come_to_an_end(llm: LLM) -> None:
    """As many as there may be are shorter than what the model may say."""
    tools = [{"type": "function", "function": {"name": name}} for name in "oc"]
    _, answer = ask(llm, tools=tools, tool_choice="required")
    found = [(call.function.name, call.function.arguments) for call in answer.tool_calls]
    assert 1 <= len(found) <= MAX_CALLS
    assert set(found) <= {("o", "{}"), ("c", "{}")}
    assert [each["name"] for each in json.loads(answer.text)] == [name for name, _ in found]


def test_a_form_begins_behind_the_thoughts(llm: LLM) -> None:
    """The model says the marker at once, and as often as it may."""
    params = SamplingParams(temperature=0, max_tokens=60, logit_bias={PAD: 100})
    (output,) = llm.chat([USER], params, tools=TOOLS, tool_choice=NAMED, use_tqdm=False)
    (answer,) = output.outputs
    assert (answer.token_ids[0], answer.token_ids.count(PAD)) == (PAD, 1)
    (call,) = answer.tool_calls or ()
    assert json.loads(call.function.arguments).keys() == SCHEMA["properties"].keys()
    assert answer.finish_reason == "stop"

    never = SamplingParams(temperature=0, max_tokens=8, logit_bias={PAD: -100}, ignore_eos=True)
    (output,) = llm.chat([USER], never, tools=TOOLS, tool_choice=NAMED, use_tqdm=False)
    (answer,) = output.outputs
    assert (answer.reasoning, answer.tool_calls) == (answer.text, [])
    assert answer.finish_reason == "length"


def test_a_text_without_its_form_does_not_end(llm: LLM) -> None:
    """The model would end at once, and stop thinking as its second choice."""
    end = llm.get_tokenizer().eos_token_id
    assert end is not None
    params = SamplingParams(temperature=0, max_tokens=60, logit_bias={end: 100, PAD: 50})
    (output,) = llm.chat([USER], params, tools=TOOLS, tool_choice=NAMED, use_tqdm=False)
    (answer,) = output.outputs
    assert answer.token_ids[0] == PAD
    (call,) = answer.tool_calls or ()
    assert json.loads(call.function.arguments).keys() == SCHEMA["properties"].keys()


def test_text_is_taken_apart_and_stays_whole(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    (output,) = llm.chat([USER], params, use_tqdm=False)
    (answer,) = output.outputs
    assert answer.reasoning == answer.text, "an end of the thoughts never came"
    assert (answer.content, answer.tool_calls) == (None, [])
    options = {"enable_thinking": False}
    (output,) = llm.chat([USER], params, chat_template_kwargs=options, use_tqdm=False)
    assert (output.outputs[0].content, output.outputs[0].reasoning) == (answer.text, None)
    (plain,) = llm.generate("hi", params, use_tqdm=False)
    assert (plain.outputs[0].content, plain.outputs[0].tool_calls) == (None, None)


def test_templates_get_arguments_as_an_object(llm: LLM) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"city": "P"}'}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    params = SamplingParams(max_tokens=1)
    (output,) = llm.chat(messages, params, use_tqdm=False)
    assert output.prompt == "user:hi assistant P: "


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice: expected .*there are none"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice: expected .*order, cancel"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "tool_choice: expected"),
        ({"tools": [{"type": "function"}]}, "tools: .*function"),
        (
            {"tools": TOOLS, "tool_choice": NAMED, "form": {"regex": "a"}},
            "cannot have another form",
        ),
        (
            {"calls": [{"function": {"name": "f", "arguments": "{"}}]},
            r"arguments: expected the JSON",
        ),
        ({"calls": [3]}, r"tool_calls\[0\]: expected a dict"),
    ],
)
def test_what_cannot_be_is_refused(llm: LLM, more: dict[str, Any], words: str) -> None:
    from hookserve.engine.structured_outputs import StructuredOutputsParams

    form, calls = more.pop("form", None), more.pop("calls", None)
    params = SamplingParams(
        max_tokens=1,
        structured_outputs=None if form is None else StructuredOutputsParams(**form),
    )
    messages = [USER, *([{"role": "assistant", "tool_calls": calls}] if calls else [])]
    with pytest.raises(InvalidRequestError, match=words):
        llm.chat(messages, params, use_tqdm=False, **more)


def test_a_parser_that_nobody_has_is_named_with_the_nearest(llm: LLM) -> None:
    with pytest.raises(UnknownNameError, match="did you mean hermes"):
        ReplyParsers.build(current(), llm.get_tokenizer(), "hermse", None)
