"""`instructor`: answers as pydantic models, by tools and by schemas."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from checks import KEY, Server, check, main
from openai import OpenAI
from pydantic import BaseModel


class Paint(BaseModel):
    colour: Literal["red", "blue"]
    is_dry: bool


QUESTION: Any = [{"role": "user", "content": "Describe a paint."}]


def client(server: Server, mode: instructor.Mode) -> Any:
    return instructor.from_openai(OpenAI(base_url=server.api, api_key=KEY), mode=mode)


def ask(server: Server, mode: instructor.Mode) -> Any:
    return client(server, mode).chat.completions.create(
        model=server.model,
        messages=QUESTION,
        response_model=Paint,
        max_tokens=350,
        seed=1,
        max_retries=0,
    )


@check
def by_a_tool(server: Server) -> None:
    assert isinstance(ask(server, instructor.Mode.TOOLS), Paint)


@check
def by_a_schema(server: Server) -> None:
    assert isinstance(ask(server, instructor.Mode.JSON_SCHEMA), Paint)


@check
def parts_of_a_stream(server: Server) -> None:
    parts = client(server, instructor.Mode.TOOLS).chat.completions.create_partial(
        model=server.model, messages=QUESTION, response_model=Paint, max_tokens=350, seed=1
    )
    last = list(parts)[-1]
    assert last.colour in ("red", "blue")


if __name__ == "__main__":
    main("instructor", "openai")
