"""`pydantic-ai`: agents whose answers are values."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from checks import KEY, Server, check, main
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Paint(BaseModel):
    colour: Literal["red", "blue"]


def agent(server: Server, output: Any = str, **settings: Any) -> Agent[None, Any]:
    provider = OpenAIProvider(base_url=server.api, api_key=KEY)
    model = OpenAIChatModel(server.model, provider=provider)
    return Agent(
        model, output_type=output, model_settings={"max_tokens": 350, "seed": 1, **settings}
    )


@check
def run(server: Server) -> None:
    result = agent(server, max_tokens=8, temperature=0.5).run_sync("Name a colour.")
    assert isinstance(result.output, str)


@check
def output_by_a_tool(server: Server) -> None:
    assert isinstance(agent(server, Paint).run_sync("Name a colour.").output, Paint)


@check
def output_by_a_schema(server: Server) -> None:
    assert isinstance(agent(server, NativeOutput(Paint)).run_sync("A colour.").output, Paint)


@check
def streamed(server: Server) -> None:
    async def run() -> str:
        async with agent(server, max_tokens=8).run_stream("Name a colour.") as result:
            return "".join([part async for part in result.stream_text(delta=True)])

    assert isinstance(asyncio.run(run()), str)


@check
def history(server: Server) -> None:
    short = agent(server, max_tokens=8)
    first = short.run_sync("Name a colour.")
    second = short.run_sync("Another.", message_history=first.all_messages())
    assert len(second.all_messages()) == 4


if __name__ == "__main__":
    main("pydantic-ai-slim", "openai")
