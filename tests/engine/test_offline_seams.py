"""The seams of offline engines: what a plugin or a program patches or subclasses is what runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scripted_engine
from fake_engine import continuation
from hookserve.engine import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine, SamplingParams
from hookserve.hookspecs import hookimpl

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
COMMAND = (sys.executable, "-P", scripted_engine.__file__, "plain")
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counter[str]]:
    """``count(cls, *names, **given)`` patches methods: each counts its calls, and passes ``given``
    on besides."""
    calls: Counter[str] = Counter()

    def patch(cls: type, *names: str, **given: Any) -> Counter[str]:
        for name in names:
            counted = counting(inspect.getattr_static(cls, name), f"{cls.__name__}.{name}", given)
            monkeypatch.setattr(cls, name, counted)
        return calls

    def counting(method: Any, name: str, given: dict[str, Any]) -> Any:
        function = getattr(method, "__func__", method)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs, **given)

        return classmethod(counted) if isinstance(method, classmethod) else counted

    return patch


def test_each_seam_of_an_llm_is_reached(
    make_fake_llm: Callable[..., LLM], count: Callable[..., Counter[str]]
) -> None:
    class Patching:
        @hookimpl
        def process_started(self) -> None:
            count(LLM, "generate", "chat")

    count(LLMEngine, "from_engine_args")
    calls = count(EngineArgs, "create_engine_config", "create_model_config")
    llm = make_fake_llm(plugins=[Patching()])
    assert llm.generate([[1, 2]], GREEDY)[0].outputs[0].token_ids == continuation([1, 2], 6)
    llm.chat(CHAT, GREEDY, chat_template="a")  # in the fake model's vocabulary
    assert calls == {
        "LLMEngine.from_engine_args": 1,
        "EngineArgs.create_engine_config": 1,
        "EngineArgs.create_model_config": 1,
        "LLM.generate": 1,
        "LLM.chat": 1,
    }


def test_each_seam_of_an_async_llm_is_reached(
    tiny_llama: Path, count: Callable[..., Counter[str]]
) -> None:
    count(AsyncLLM, "__init__", command=COMMAND)
    calls = count(AsyncLLM, "generate")

    class Mine(AsyncLLM):
        pass

    async def run() -> None:
        engine = Mine.from_engine_args(AsyncEngineArgs(model=str(tiny_llama)))
        try:
            outputs = [each async for each in engine.generate([1], GREEDY, "r")]
        finally:
            engine.shutdown()
        assert type(engine) is Mine
        assert list(outputs[-1].outputs[0].token_ids) == [66, 67]

    asyncio.run(run())
    assert calls == {"AsyncLLM.__init__": 1, "AsyncLLM.generate": 1}
