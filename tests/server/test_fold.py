"""Fold equals whole: whatever is asked for and whatever is generated, the events of a stream put
together are the reply that is not streamed, field by field, and both are what the definition says.

The tokenizer of these tests has a token for each byte, and 256 is the end.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookserve.engine.messages import AddRequest, EngineCoreOutput, TokenLogprobs
from hookserve.engine.text.tool_calls import ParserRequest
from hookserve.plugins_builtin.hermes_tool_parser import HermesToolParser
from hookserve.plugins_builtin.reasoning_parsers import Qwen3ReasoningParser
from reply_fold import check_events, events_of, fold

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
END = 256
NUM_EXAMPLES = 500

# -- what is generated -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What the engine says to one sequence: its tokens, in steps of some each, and the end."""

    tokens: tuple[int, ...]
    step: int
    reason: str
    stop_token: int | None = None
    """The last one, where it is a stop token of the request's."""

    def outputs(self, request: AddRequest) -> list[EngineCoreOutput]:
        asked, outputs = request.params, []
        for start in range(0, len(self.tokens), self.step):
            part = self.tokens[start : start + self.step]
            is_last = start + self.step >= len(self.tokens)
            logprobs = None
            if asked.logprobs is not None:
                logprobs = [entry(t, start + at, asked.logprobs) for at, t in enumerate(part)]
            outputs.append(
                EngineCoreOutput(
                    request.request_id,
                    list(part),
                    self.reason if is_last else None,
                    self.stop_token if is_last else None,
                    logprobs=logprobs,
                    prompt_logprobs=about_prompt(request) if start == 0 else None,
                )
            )
        return outputs


def entry(token: int, at: int, count: int) -> TokenLogprobs:
    best = [(ord("a") + i, -0.5 - i) for i in range(count)]
    return TokenLogprobs([token, *(b for b, _ in best)], [-1 - at / 8, *(v for _, v in best)], 7)


def about_prompt(request: AddRequest) -> list[TokenLogprobs | None] | None:
    count = request.params.prompt_logprobs
    if count is None:
        return None
    tokens = request.prompt_token_ids[1:]
    return [None, *(entry(token, 3 * at, count) for at, token in enumerate(tokens))]


CHARACTERS = st.sampled_from(
    ["a", "b", "ab", " ", "é", "🙂", "日本", "e\u0301", "👩\u200d👧", "\ufffd"]
)
PIECES = st.one_of(
    CHARACTERS.map(lambda text: tuple(text.encode())),
    st.binary(min_size=1, max_size=2).map(tuple),
    st.just((END,)),  # one that does not end the text has no text of its own
)
STOP_TEXTS = st.lists(CHARACTERS, min_size=1, max_size=2).map("".join)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    pieces = draw(st.lists(PIECES, min_size=1, max_size=8))
    tokens = tuple(token for piece in pieces for token in piece)
    step = draw(st.integers(1, 6))
    how = draw(st.sampled_from(["length", "end", "stop token"]))
    if how == "length":
        return Answer(tokens, step, "length")
    last, stop_token = (END, None) if how == "end" else (ord("."), ord("."))
    return Answer((*tokens, last), step, "stop", stop_token)


# -- what is asked for -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A request, and an answer for each of its sequences in their order."""

    path: str
    body: dict[str, Any] = field(default_factory=dict)
    answers: tuple[Answer, ...] = ()
    prompts: tuple[str, ...] = ("",)
    """Texts of the prompts; empty for a chat, whose template makes one."""


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "stop": st.one_of(STOP_TEXTS, st.lists(STOP_TEXTS, max_size=3)),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "min_tokens": st.integers(0, 6),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
}
"""Of both routes. A field that a whole reply and a stream could tell apart belongs here."""
OF_COMPLETIONS: dict[str, st.SearchStrategy[Any]] = {
    "echo": st.booleans(),
    "logprobs": st.integers(0, 2),
}
OF_CHATS: dict[str, st.SearchStrategy[Any]] = {
    "logprobs": st.just(True),
    "top_logprobs": st.integers(0, 2),
}
STREAM_OPTIONS = st.fixed_dictionaries(
    {}, optional={"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 3))
    path = draw(st.sampled_from([COMPLETIONS, CHAT]))
    of_route = OF_COMPLETIONS if path == COMPLETIONS else OF_CHATS
    body = draw(st.fixed_dictionaries({}, optional={**FIELDS, **of_route}))
    prompts: tuple[str, ...] = ("",)
    if path == COMPLETIONS:
        lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
        prompts = tuple(f"{i}ñ🙂"[:length] for i, length in enumerate(lengths))
        in_tokens = draw(st.booleans())
        body["prompt"] = [list(text.encode()) for text in prompts] if in_tokens else list(prompts)
    else:
        body["messages"] = [{"role": "user", "content": "a"}]
        if not body.get("logprobs"):
            body.pop("top_logprobs", None)
    body |= {"n": n, "seed": 0, "max_tokens": 60}
    given = tuple(draw(answers()) for _ in range(n * len(prompts)))
    return Case(path, body, given, prompts)


# -- what is right ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Right:
    text: str
    num_tokens: int
    finish_reason: str
    stop_reason: str | int | None


def right(answer: Answer, body: dict[str, Any]) -> Right:
    """The definition, character by character: each appears with the token that completes it, and
    the first stop text to be complete after ``min_tokens`` tokens ends the reply."""
    includes = body.get("include_stop_str_in_output", False)
    utf8, text, whence = codecs.getincrementaldecoder("utf-8")("replace"), "", list[int]()
    for number, token in enumerate(answer.tokens, start=1):
        is_end = answer.reason == "stop" and number == len(answer.tokens)
        if token == END and not is_end and not body.get("skip_special_tokens", True):
            new = utf8.decode(b"<eos>")
        elif token == END:
            shows_end = is_end and includes and not body.get("skip_special_tokens", True)
            new = utf8.decode(b"<eos>" if shows_end else b"")
        else:
            new = "" if is_end and not includes else utf8.decode(bytes([token]))
        text, whence = text + new, whence + [number] * len(new)
    rest = utf8.decode(b"", final=True)
    text, whence = text + rest, whence + [len(answer.tokens)] * len(rest)
    stops = body.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    for end, number in enumerate(whence, start=1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete and number > body.get("min_tokens", 0):
            stop = max(complete, key=len)
            return Right(text[: end if includes else end - len(stop)], number, "stop", stop)
    return Right(text, len(answer.tokens), answer.reason, answer.stop_token)


def check_choice(case: Case, index: int, choice: dict[str, Any]) -> Right:
    body, expected = case.body, right(case.answers[index], case.body)
    prompt = case.prompts[index // body["n"]] if body.get("echo") else ""
    text = choice["text"] if case.path == COMPLETIONS else choice["message"]["content"]
    assert choice["index"] == index
    assert text == prompt + expected.text
    assert choice["finish_reason"] == expected.finish_reason
    assert choice.get("stop_reason") == expected.stop_reason
    tokens = list(case.answers[index].tokens[: expected.num_tokens])
    assert choice.get("token_ids", tokens) == tokens
    assert ("token_ids" in choice) == body.get("return_token_ids", False)
    if body.get("logprobs") is None:
        assert choice["logprobs"] is None
    elif case.path == CHAT:
        spelled = b"".join(bytes(each["bytes"]) for each in choice["logprobs"]["content"])
        assert spelled == b"".join(b"<eos>" if t == END else bytes([t]) for t in tokens)
    else:
        num_before = len(prompt.encode())
        check_offsets(choice["logprobs"], text)
        assert all(len(each) == num_before + len(tokens) for each in choice["logprobs"].values())
        values = choice["logprobs"]["token_logprobs"][num_before:]
        assert values == [-1 - at / 8 for at in range(len(tokens))]
    return expected


def check_offsets(shown: dict[str, list[Any]], text: str) -> None:
    """A token that is a whole character is in the text at its place, unless a stop took it away."""
    assert shown["text_offset"] == sorted(shown["text_offset"])
    for name, offset in zip(shown["tokens"], shown["text_offset"], strict=True):
        if len(name) == 1:
            assert text[offset : offset + 1] in (name, "")


Judge = Callable[[Case, int, dict[str, Any]], Right]
"""Says what is right of a whole reply's choice, and compares it."""


async def check(
    served: Any, case: Case, options: dict[str, bool], judge: Judge = check_choice
) -> set[Any]:
    """Ask for both, compare them, and return how the choices ended."""
    plan = iter(case.answers * 2)
    served.engine.script = lambda request: next(plan).outputs(request)
    whole_reply = await served.http.post(case.path, json=case.body)
    assert whole_reply.status_code == 200, whole_reply.text
    whole = whole_reply.json()
    asked = {**case.body, "stream": True, "stream_options": options}
    streamed = await served.http.post(case.path, json=asked)
    assert streamed.status_code == 200, streamed.text
    events = events_of(streamed.text)
    check_events(events)

    expected = [judge(case, *numbered) for numbered in enumerate(whole["choices"])]
    assert len(expected) == len(case.answers)
    usage = whole.pop("usage")
    assert usage["completion_tokens"] == sum(each.num_tokens for each in expected)
    check_usage([e.get("usage", {}) for e in events], usage, options)

    folded = fold([{k: v for k, v in e.items() if k != "usage"} for e in events])
    for reply in (folded, whole):
        for name in ("id", "created", "object"):
            reply.pop(name)
        for choice in reply["choices"]:
            for call in choice.get("message", {}).get("tool_calls", ()):
                call["id"] = call["id"][:5]  # each reply has its own
    assert folded == whole
    return {(case.path, each.finish_reason, type(each.stop_reason)) for each in expected}


def check_usage(found: list[Any], usage: dict[str, Any], options: dict[str, bool]) -> None:
    """Of each event ``{}`` where there is none."""
    *each, last = found
    if options.get("include_usage"):
        assert last == usage
    else:
        each.append(last)
    if options.get("continuous_usage_stats"):
        counts = [part["completion_tokens"] for part in each]
        assert counts == sorted(counts)
        assert each[-1] == usage
    else:
        assert all(part == (None if options.get("include_usage") else {}) for part in each)


def test_the_fold_of_a_stream_is_the_whole_reply(serve_script: Callable[..., Any]) -> None:
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        served = runner.run(stack.enter_async_context(serve_script(lambda request: [])))
        served.engine.step_s = 0.0
        ends: set[Any] = set()

        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
        )
        @given(case=cases(), options=STREAM_OPTIONS)
        def every(case: Case, options: dict[str, bool]) -> None:
            ends.update(runner.run(check(served, case, options)))

        try:
            every()
            kinds = [("length", NoneType), ("stop", NoneType), ("stop", int), ("stop", str)]
            assert ends == {(path, *kind) for path in (COMPLETIONS, CHAT) for kind in kinds}
        finally:
            runner.run(stack.aclose())


# -- tools and reasoning ---------------------------------------------------------------------------

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CHOICES = ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}]
MARKED = [
    *("<think>", "</think>", "</thi", "<tool_call>", "</tool_call>", "é", "a", " ", "\n", "<", "}"),
    *('{"name":"f","arguments":', '{"a":"}<"}', "}", '[{"name":"f","parameters":', "}]", "🙂"),
]


@st.composite
def tool_cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 2))
    more = {"parallel_tool_calls": st.booleans(), "include_reasoning": st.booleans()}
    body = draw(st.fixed_dictionaries({}, optional={**FIELDS, **OF_CHATS, **more}))
    if not body.get("logprobs"):
        body.pop("top_logprobs", None)
    if draw(st.booleans()):
        body |= {"tools": [TOOL], "tool_choice": draw(st.sampled_from(CHOICES))}
    body |= {"n": n, "seed": 0, "max_tokens": 100, "messages": [{"role": "user", "content": "a"}]}
    return Case(CHAT, body, tuple(draw(marked_answers()) for _ in range(n)))


@st.composite
def marked_answers(draw: st.DrawFn) -> Answer:
    text = "".join(draw(st.lists(st.sampled_from(MARKED), min_size=1, max_size=9)))
    step, is_cut = draw(st.integers(1, 30)), draw(st.booleans())
    tokens = tuple(text.encode())
    return Answer(tokens, step, "length") if is_cut else Answer((*tokens, END), step, "stop")


def check_message(case: Case, index: int, choice: dict[str, Any]) -> Right:
    """What the parsers say of the text, and the rule for how a reply ended."""
    body, expected, message = case.body, right(case.answers[index], case.body), choice["message"]
    tool_choice = body.get("tool_choice", "none")
    is_forced = tool_choice not in ("auto", "none")
    calls = message.get("tool_calls", [])
    made_choice = bool(calls) and not isinstance(tool_choice, dict)
    is_call = expected.finish_reason == "stop" and made_choice
    assert choice["finish_reason"] == ("tool_calls" if is_call else expected.finish_reason)
    assert choice.get("stop_reason") == expected.stop_reason
    tokens = list(case.answers[index].tokens[: expected.num_tokens])
    assert choice.get("token_ids", tokens) == tokens
    if body.get("logprobs"):
        assert len(choice["logprobs"]["content"]) == len(tokens)
    if is_forced:
        assert "reasoning" not in message
        return expected
    request = ParserRequest()
    parser = Qwen3ReasoningParser(None)  # type: ignore[arg-type]
    reasoning, content = parser.extract_reasoning(expected.text, request)
    if tool_choice == "auto":
        found = HermesToolParser(None).extract_tool_calls(content or "", request)  # type: ignore[arg-type]
        content = found.content
        names = [call.function.name for call in found.tool_calls]
        shown = names if body.get("parallel_tool_calls", True) else names[:1]
        assert [call["function"]["name"] for call in calls] == shown
    else:
        assert calls == []
    assert message["content"] == (content or None)
    shows_reasoning = body.get("include_reasoning", True)
    assert message.get("reasoning") == (reasoning or None if shows_reasoning else None)
    return expected


def test_the_fold_of_a_stream_is_the_whole_reply_with_tools_and_reasoning(
    serve_script: Callable[..., Any],
) -> None:
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        serving = serve_script(
            lambda request: [],
            settings={"enable_auto_tool_choice": True},
            tool_call_parser="hermes",
            reasoning_parser="qwen3",
        )
        served = runner.run(stack.enter_async_context(serving))
        served.engine.step_s = 0.0

        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
        )
        @given(case=tool_cases(), options=STREAM_OPTIONS)
        def every(case: Case, options: dict[str, bool]) -> None:
            runner.run(check(served, case, options, check_message))

        try:
            every()
        finally:
            runner.run(stack.aclose())
