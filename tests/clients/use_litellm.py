"""`litellm`, as a library: what its gateway sends to an OpenAI-compatible server."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it is fetched otherwise, when imported

import litellm
from checks import KEY, Server, check, main

litellm.suppress_debug_info = True
QUESTION = [{"role": "user", "content": "Name a colour."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}


def ask(server: Server, **fields: Any) -> Any:
    return litellm.completion(
        model=f"openai/{server.model}",
        api_base=server.api,
        api_key=KEY,
        messages=QUESTION,
        max_retries=0,
        **{"max_tokens": 8, **fields},
    )


@check
def chat(server: Server) -> None:
    reply = ask(server, temperature=0)
    assert isinstance(reply.choices[0].message.content, str)
    assert 0 < reply.usage.completion_tokens <= 8


@check
def chat_streamed(server: Server) -> None:
    whole = ask(server, temperature=0).choices[0].message.content
    stream = ask(server, temperature=0, stream=True, stream_options={"include_usage": True})
    events = list(stream)
    pieces = [choice.delta.content or "" for event in events for choice in event.choices]
    assert "".join(pieces) == whole
    built = litellm.stream_chunk_builder(events)
    assert built.choices[0].message.content == whole
    assert built.usage.completion_tokens > 0


@check
def tools(server: Server) -> None:
    reply = ask(server, tools=[TOOL], tool_choice="required", max_tokens=350, seed=1)
    (call, *_) = reply.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["colour"] in ("red", "blue")


@check
def response_format(server: Server) -> None:
    schema = {"name": "paint", "schema": TOOL["function"]["parameters"], "strict": True}
    reply = ask(
        server,
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=350,
        seed=1,
    )
    assert json.loads(reply.choices[0].message.content)["colour"] in ("red", "blue")


@check
def text_completion(server: Server) -> None:
    reply = litellm.text_completion(
        model=f"text-completion-openai/{server.model}",
        api_base=server.api,
        api_key=KEY,
        prompt="One two",
        max_tokens=4,
    )
    assert isinstance(reply.choices[0].text, str)


@check
def errors(server: Server) -> None:
    try:
        ask(server, temperature=9)
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
        return
    raise AssertionError("a temperature of 9 was accepted")


if __name__ == "__main__":
    main("litellm", "openai")
