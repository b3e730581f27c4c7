"""The `openai` package, and what the document says of replies, against one server of a small random
model. ``make clients`` tries the same script, and other clients, with the default model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer
from openapi_check import check_events, check_reply

TOOLS = [
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    # A random model would rather write blanks between the tokens of JSON than come to an end.
    '--structured-outputs-config={"disable_any_whitespace": true}',
]
MESSAGES = [{"role": "user", "content": "Hello"}]
PAINT = {"type": "object", "properties": {"red": {"enum": [1, 2]}}, "required": ["red"]}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": PAINT}}
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"

# Path, and the body of a POST.
ASKED: list[tuple[str, dict[str, Any] | None]] = [
    ("/livez", None),
    ("/readyz", None),
    ("/health", None),
    ("/version", None),
    ("/v1/models", None),
    ("/v1/models/m", None),
    ("/v1/models/nobody", None),
    ("/v1/plugins", None),
    ("/tokenize", {"prompt": "Hello"}),
    ("/tokenize", {"messages": MESSAGES, "return_token_strs": True}),
    ("/detokenize", {"tokens": [65, 66]}),
    ("/detokenize", {"tokens": [10**6]}),
    (COMPLETION, {"prompt": "Hi", "max_tokens": 3}),
    (COMPLETION, {"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "logprobs": 2, "echo": True}),
    (COMPLETION, {"prompt": "Hi", "prompt_logprobs": 1, "return_token_ids": True}),
    (COMPLETION, {"prompt": "Hi", "stop_token_ids": list(range(256)), "logit_bias": {"65": 9}}),
    (COMPLETION, {"prompt": "Hi", "temperature": 9}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "n": 2}),
    (CHAT, {"messages": MESSAGES, "max_tokens": 3, "prompt_logprobs": 0, "return_token_ids": True}),
    (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 24}),
    (CHAT, {"messages": []}),
]
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
WITH_COUNTS = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
STREAMED: list[tuple[str, dict[str, Any]]] = [
    (path, {**body, **extra})
    for path, body in ASKED
    if path in (COMPLETION, CHAT) and body and "prompt_logprobs" not in body
    for extra in (WITH_USAGE, {**WITH_COUNTS, "return_token_ids": True})
    if body.get("temperature") != 9 and body.get("messages") != []
]


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[RunningServer]:
    args = [str(tiny_llama), "--served-model-name", "m", "--kv-cache-memory-bytes", "64MiB"]
    with RunningServer([*args, *TOOLS]) as started:
        yield started


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return server.get("/openapi.json").json()


def test_replies_are_as_the_document_says(server: RunningServer, document: Any) -> None:
    statuses = set()
    for path, body in ASKED:
        reply = server.get(path) if body is None else server.post(path, body)
        statuses.add(reply.status_code)
        check_reply(document, path, reply.status_code, reply.json())
    assert statuses == {200, 400, 404}


def test_events_are_as_the_document_says(server: RunningServer, document: Any) -> None:
    for path, body in STREAMED:
        reply = server.post(path, body)
        assert reply.status_code == 200, reply.text
        assert check_events(document, path, reply.text) >= 1


def test_the_openai_package(server: RunningServer, source_root: Path, tmp_path: Path) -> None:
    script = source_root / "tests" / "clients" / "use_openai.py"
    done = subprocess.run(
        [sys.executable, str(script), server.base_url, "m"],
        cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    checks = {each["check"]: each["problem"] for each in found if "check" in each}
    assert len(checks) >= 12
    assert not any(checks.values()), "\n".join(filter(None, checks.values()))
