"""Templates and tokenizers that take their time hold up the request that needs them, and nobody
else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hookserve.engine.text.chat_template import ChatTemplate
from hookserve.engine.text.tokenizer import Tokenizer
from scripted_engine import say

USER = {"role": "user", "content": "hi"}
COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
GIVE_UP_S = 5.0
"""For a server that waits: then all of it goes on, and the test fails."""


@pytest.mark.parametrize(
    ("path", "body", "owner", "method"),
    [
        (CHAT, {"messages": [USER]}, ChatTemplate, "render"),
        (CHAT, {"messages": [USER]}, Tokenizer, "encode"),
        (COMPLETIONS, {"prompt": "hi"}, Tokenizer, "encode"),
        (COMPLETIONS, {"prompt": [65], "bad_words": ["b"]}, Tokenizer, "encode"),
        (TOKENIZE, {"messages": [USER]}, ChatTemplate, "render"),
        (TOKENIZE, {"prompt": "hi"}, Tokenizer, "encode"),
        ("/detokenize", {"tokens": [65]}, Tokenizer, "decode"),
    ],
)
def test_a_slow_text_holds_up_its_own_request_alone(
    serve_script: Any,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
    owner: type[Any],
    method: str,
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    real = getattr(owner, method)
    in_time = []

    def slow(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        in_time.append(may_end.wait(GIVE_UP_S))
        return real(*args, **kwargs)

    async def run() -> None:
        async with serve_script(say("a")) as served:
            monkeypatch.setattr(owner, method, slow)
            reply = asyncio.create_task(served.http.post(path, json=body))
            await asyncio.to_thread(begun.wait, GIVE_UP_S)
            health = await served.http.get("/health")
            other = await served.http.post(COMPLETIONS, json={"prompt": [65]})
            was_held_up = reply.done()
            may_end.set()
            assert (await reply).status_code == 200
        assert (health.status_code, other.status_code) == (200, 200)
        assert in_time and all(in_time) and not was_held_up

    asyncio.run(run())
