"""The `openai` package against the server."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
from checks import KEY, Server, check, main
from pydantic import BaseModel

QUESTION: Any = [{"role": "user", "content": "Name a colour."}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Rome", "Oslo"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
GREEDY: Any = {"temperature": 0, "max_tokens": 8}
ROOM: Any = {"max_tokens": 350, "seed": 1}
"""For JSON of a model that knows nothing: it may be generous with blanks."""


class Paint(BaseModel):
    colour: Literal["red", "blue"]
    is_dry: bool


def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.api, api_key=KEY, max_retries=0)


@check
def models(server: Server) -> None:
    found = client(server).models.list()
    assert [each.id for each in found] == [server.model]
    assert client(server).models.retrieve(server.model).owned_by == "hookserve"
    try:
        client(server).models.retrieve("nobody")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error.code
        return
    raise AssertionError("a model that is not there was found")


@check
def chat(server: Server) -> None:
    reply = client(server).chat.completions.create(model=server.model, messages=QUESTION, **GREEDY)
    (choice,) = reply.choices
    assert reply.object == "chat.completion"
    assert reply.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    assert isinstance(choice.message.content, str)
    assert choice.finish_reason in ("stop", "length")
    usage = reply.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 8
    assert reply._request_id


@check
def chat_streamed_with_usage(server: Server) -> None:
    asked: Any = {"model": server.model, "messages": QUESTION, **GREEDY}
    whole = client(server).chat.completions.create(**asked)
    stream = client(server).chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    *events, last = stream
    text = "".join(event.choices[0].delta.content or "" for event in events)
    assert text == whole.choices[0].message.content
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert last.choices == []
    assert last.usage is not None and whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens


@check
def chat_stream_helper(server: Server) -> None:
    with client(server).chat.completions.stream(
        model=server.model, messages=QUESTION, response_format=Paint, **ROOM
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert isinstance(final.choices[0].message.parsed, Paint)


@check
def completions_with_n(server: Server) -> None:
    reply = client(server).completions.create(
        model=server.model, prompt=["One", "Two"], n=2, max_tokens=4, seed=1
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage is not None and reply.usage.completion_tokens <= 16


@check
def completions_with_echo_and_logprobs(server: Server) -> None:
    reply = client(server).completions.create(
        model=server.model, prompt="One two", echo=True, logprobs=2, max_tokens=4, temperature=0
    )
    (choice,) = reply.choices
    assert choice.text.startswith("One two")
    found = choice.logprobs
    assert found is not None and found.tokens and found.token_logprobs and found.text_offset
    assert found.token_logprobs[0] is None
    assert all(value <= 0 for value in found.token_logprobs[1:])
    assert len(found.tokens) == len(found.token_logprobs) == len(found.text_offset)
    assert found.text_offset == sorted(found.text_offset)


@check
def chat_with_logprobs(server: Server) -> None:
    reply = client(server).chat.completions.create(
        model=server.model, messages=QUESTION, logprobs=True, top_logprobs=2, **GREEDY
    )
    found = reply.choices[0].logprobs
    assert found is not None and found.content
    for entry in found.content:
        assert entry.logprob <= 0 and entry.bytes and len(entry.top_logprobs) == 2
        assert entry.logprob == entry.top_logprobs[0].logprob, "greedy takes a likeliest"


@check
def parse_into_a_model(server: Server) -> None:
    reply = client(server).chat.completions.parse(
        model=server.model, messages=QUESTION, response_format=Paint, **ROOM
    )
    assert isinstance(reply.choices[0].message.parsed, Paint)


@check
def tools(server: Server) -> None:
    asked: Any = {"model": server.model, "tools": [WEATHER], **ROOM}
    named: Any = {"type": "function", "function": {"name": "weather"}}
    messages = list(QUESTION)
    for choice in (named, "required"):
        reply = client(server).chat.completions.create(
            **asked, messages=QUESTION, tool_choice=choice, parallel_tool_calls=False
        )
        message = reply.choices[0].message
        assert message.tool_calls
        call: Any = message.tool_calls[0]
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        answers = [
            {"role": "tool", "tool_call_id": each.id, "content": "sun"}
            for each in message.tool_calls
        ]
        messages += [message, *answers]
    reply = client(server).chat.completions.create(
        **{**asked, "max_tokens": 4}, messages=messages, tool_choice="none"
    )
    assert not reply.choices[0].message.tool_calls


@check
def tools_streamed(server: Server) -> None:
    stream = client(server).chat.completions.create(
        model=server.model,
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        stream=True,
        **ROOM,
    )
    name, arguments, reasons = "", "", []
    for event in stream:
        choice = event.choices[0]
        for call in choice.delta.tool_calls or ():
            assert call.function is not None
            name += call.function.name or ""
            arguments += call.function.arguments or ""
        reasons.append(choice.finish_reason)
    assert name == "weather"
    assert 1 <= json.loads(arguments)["days"] <= 9
    assert reasons[-1] in ("stop", "tool_calls")


@check
def errors(server: Server) -> None:
    asked: Any = {"model": server.model, "messages": QUESTION}
    for fields, param in (({"temperature": 9}, "temperature"), ({"extra_body": {"top": 1}}, "top")):
        try:
            client(server).chat.completions.create(**asked, **fields)
        except openai.BadRequestError as error:
            assert error.param == param, error.param
            continue
        raise AssertionError(f"{fields} was accepted")


@check
def asynchronous_and_left_early(server: Server) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=server.api, api_key=KEY) as other:
            stream = await other.chat.completions.create(
                model=server.model, messages=QUESTION, stream=True, max_tokens=50
            )
            async for event in stream:
                assert event.object == "chat.completion.chunk"
                break
            await stream.close()
            replies = await asyncio.gather(
                *[
                    other.completions.create(model=server.model, prompt=f"{i}", max_tokens=2)
                    for i in range(4)
                ]
            )
            assert len({reply.id for reply in replies}) == 4

    asyncio.run(run())


if __name__ == "__main__":
    main("openai")
