"""`langchain-openai`."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from checks import KEY, Server, check, main
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, SecretStr


class Paint(BaseModel):
    """A paint."""

    colour: Literal["red", "blue"]


def model(server: Server, **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=server.model,
        base_url=server.api,
        api_key=SecretStr(KEY),
        max_retries=0,
        **{"max_tokens": 350, "seed": 1, **fields},
    )


@check
def invoke(server: Server) -> None:
    reply = model(server, max_tokens=8).invoke([("system", "Be brief."), ("human", "Hello")])
    assert isinstance(reply.content, str)
    assert reply.usage_metadata is not None and reply.usage_metadata["output_tokens"] <= 8


@check
def stream(server: Server) -> None:
    greedy = model(server, max_tokens=8, temperature=0, stream_usage=True)
    whole = greedy.invoke("Hello")
    parts = list(greedy.stream("Hello"))
    assert "".join(str(part.content) for part in parts) == whole.content
    assert any(part.usage_metadata for part in parts)


@check
def batch_and_asynchronous(server: Server) -> None:
    assert len(model(server, max_tokens=4).batch(["One", "Two", "Three"])) == 3
    assert asyncio.run(model(server, max_tokens=4).ainvoke("One")).type == "ai"


@check
def structured_output(server: Server) -> None:
    for method in ("json_schema", "function_calling"):
        found = model(server).with_structured_output(Paint, method=method).invoke("A paint?")
        assert isinstance(found, Paint), method


@check
def tools(server: Server) -> None:
    reply = model(server).bind_tools([Paint], tool_choice="any").invoke("A paint?")
    assert reply.tool_calls[0]["name"] == "Paint"
    assert reply.tool_calls[0]["args"]["colour"] in ("red", "blue")


@check
def completions(server: Server) -> None:
    text = OpenAI(model=server.model, base_url=server.api, api_key=SecretStr(KEY), max_tokens=4)
    assert isinstance(text.invoke("One two"), str)


if __name__ == "__main__":
    main("langchain-openai", "openai")
