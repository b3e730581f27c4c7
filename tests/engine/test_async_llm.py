"""``AsyncLLM`` over a process that plays an engine: two tokens a request, ``[9]`` never ends, and
``[8]`` kills it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import scripted_engine
from hookserve.engine import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams
from hookserve.engine.errors import (
    ConfigError,
    EngineDeadError,
    EngineStartError,
    InvalidRequestError,
)
from hookserve.engine.stat_logger_base import StatLoggerBase
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import HostError, PluginSettings, bootstrap, current

PARAMS = SamplingParams(max_tokens=50)
COMMAND = (sys.executable, "-P", scripted_engine.__file__)


@pytest.fixture
def make(tiny_llama: Path) -> Iterator[Any]:
    """``make(mode)``: an engine whose process runs the script."""
    made = []

    def make(mode: str = "plain") -> AsyncLLM:
        host = bootstrap(["front"], PluginSettings(no_plugins=True))
        host.hold()
        config = AsyncEngineArgs(model=str(tiny_llama)).to_engine_config(host)
        engine = AsyncLLM(config, host, command=(*COMMAND, mode))
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.shutdown()


class Counting(StatLoggerBase):
    made: ClassVar[list[Counting]] = []

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.config, self.index, self.num_tokens, self.is_ready = (
            vllm_config,
            engine_index,
            0,
            False,
        )
        self.made.append(self)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if iteration_stats is not None:
            self.num_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        self.is_ready = True


@pytest.mark.parametrize("how", ["from_engine_args", "from_vllm_config"])
def test_a_program_has_loggers_and_a_configuration_of_its_own(
    how: str, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = AsyncLLM.__init__.__kwdefaults__ or {}
    script = {**defaults, "command": (*COMMAND, "plain")}
    monkeypatch.setattr(AsyncLLM.__init__, "__kwdefaults__", script)
    monkeypatch.setattr(Counting, "made", [])
    given: Any = AsyncEngineArgs(model=str(tiny_llama), max_num_seqs=7)
    if how == "from_vllm_config":
        given = given.create_engine_config(usage_context="API_SERVER")
        given.scheduler_config.max_num_seqs = 3

    async def run() -> None:
        engine = getattr(AsyncLLM, how)(
            given, usage_context="API_SERVER", stat_loggers=[Counting, lambda *a: Counting(*a)]
        )
        try:
            await collect(engine.generate([1], PARAMS, "r"))
            assert len(engine.vllm_config.instance_id) == 5
            for mine in Counting.made:
                assert (mine.index, mine.num_tokens, mine.is_ready) == (0, 2, True)
                assert mine.config is engine.vllm_config
            max_num_seqs = engine.engine_config.scheduler.max_num_seqs
            assert max_num_seqs == {"from_engine_args": 7, "from_vllm_config": 3}[how]
        finally:
            engine.shutdown()

    asyncio.run(run())
    assert len(Counting.made) == 2


def test_a_configuration_that_is_put_together_by_hand_starts_no_engine() -> None:
    with pytest.raises(ConfigError, match="expected one that EngineArgs"):
        AsyncLLM.from_vllm_config(VllmConfig())


async def collect(outputs: AsyncIterator[Any]) -> list[Any]:
    return [
        (list(each.outputs[0].token_ids), each.outputs[0].finish_reason, each.finished)
        async for each in outputs
    ]


def test_outputs_come_as_they_were_asked_for(make: Any) -> None:
    async def run() -> None:
        engine = make()
        assert not engine.is_running
        kinds = list(RequestOutputKind)
        params = [SamplingParams(max_tokens=50, output_kind=kind) for kind in kinds]
        seen = await asyncio.gather(
            *[collect(engine.generate([1], each, str(at))) for at, each in enumerate(params)]
        )
        assert dict(zip(kinds, seen, strict=True)) == {
            RequestOutputKind.CUMULATIVE: [([66], None, False), ([66, 67], "length", True)],
            RequestOutputKind.DELTA: [([66], None, False), ([67], "length", True)],
            RequestOutputKind.FINAL_ONLY: [([66, 67], "length", True)],
        }
        assert engine.is_running
        assert engine.get_num_unfinished_requests() == 0
        await engine.check_health()

    asyncio.run(run())


def test_a_prompt_is_tokenized_and_a_stop_in_text_is_told(make: Any) -> None:
    async def run() -> None:
        engine = make()
        first = engine.get_tokenizer().decode([66])
        params = SamplingParams(max_tokens=50, stop=first)
        (output,) = [each async for each in engine.generate("a", params, "r")]
        assert output.prompt == "a"
        assert output.prompt_token_ids == engine.get_tokenizer().encode("a")
        assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("", first)
        assert output.finished
        with pytest.raises(InvalidRequestError, match="token id 300"):
            await anext(engine.generate([300], PARAMS, "r"))

    asyncio.run(run())


def test_abort_ends_what_has_that_name_and_leaving_ends_it_too(make: Any) -> None:
    async def run() -> None:
        engine = make()

        async def first_then_abort() -> Any:
            last = None
            async for output in engine.generate([9], PARAMS, "mine"):
                if last is None:
                    await engine.abort(["mine", "nobody"])
                last = output
            return last

        last = await asyncio.wait_for(first_then_abort(), 10)
        assert (last.outputs[0].finish_reason, last.finished) == ("abort", True)
        other = engine.generate([9], PARAMS, "other")
        await anext(other)
        assert engine.get_num_unfinished_requests() == 1
        await other.aclose()
        assert engine.get_num_unfinished_requests() == 0

    asyncio.run(run())


def test_an_abort_counts_before_the_engine_has_the_request(make: Any) -> None:
    async def run() -> None:
        engine = make()
        early = asyncio.create_task(collect(engine.generate([9], PARAMS, "early")))
        await asyncio.sleep(0)
        await engine.abort("early")
        assert await asyncio.wait_for(early, 30) == [([], "abort", True)]
        assert engine.get_num_unfinished_requests() == 0

    asyncio.run(run())


def test_a_killed_engine_ends_every_request_with_an_error(make: Any) -> None:
    async def run() -> None:
        engine = make()
        endless = asyncio.create_task(collect(engine.generate([9], PARAMS, "a")))
        await engine.start()
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await collect(engine.generate([8], PARAMS, "b"))
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await endless
        assert engine.errored
        assert not engine.is_running
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await engine.check_health()

    asyncio.run(run())


def test_an_engine_that_does_not_come_up_says_why_each_time(make: Any) -> None:
    async def run() -> None:
        engine = make("refuse")
        for _ in range(2):
            with pytest.raises(EngineStartError, match="tensor x is missing"):
                await collect(engine.generate([1], PARAMS, "a"))
        assert engine.errored

    asyncio.run(run())


def pid_of(engine: AsyncLLM) -> int:
    pid = engine._supervisor.pid
    assert pid is not None
    return pid


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_shutdown_ends_the_process_at_once_whether_or_not_the_loop_runs(make: Any) -> None:
    async def begin(engine: AsyncLLM) -> int:
        await collect(engine.generate([1], PARAMS, "a"))
        return pid_of(engine)

    async def within() -> None:
        engine = make()
        pid = await begin(engine)
        waiting = asyncio.create_task(collect(engine.generate([9], PARAMS, "a")))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        engine.shutdown()
        assert time.monotonic() - started < 4
        assert is_gone(pid)
        with pytest.raises(EngineDeadError, match="stopped"):
            await waiting
        with pytest.raises(EngineDeadError, match="stopped"):
            await engine.start()

    asyncio.run(within())
    engine = make()
    pid = asyncio.run(begin(engine))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(begin(engine))
    engine.shutdown()
    assert is_gone(pid)
    with pytest.raises(HostError):
        current()


def test_it_tells_of_the_plugins_of_both_processes_from_another_thread(make: Any) -> None:
    async def run(engine: AsyncLLM) -> None:
        describe = engine.plugins.describe
        (front,) = describe(all_processes=True)
        await engine.start()
        front, behind = await asyncio.to_thread(describe, True)
        assert (front.process, front.pid, front.roles) == ("front", os.getpid(), ["front"])
        assert (behind.process, behind.pid) == ("engine", pid_of(engine))
        assert behind.roles == ["engine", "worker"]
        states = {each.identity: each.state for each in behind.plugins}
        assert states["hookserve:builtin:executors"] == "active"
        with pytest.raises(HostError, match="to_thread"):
            describe(all_processes=True)

    engine = make()
    asyncio.run(run(engine))
    _, gone = engine.plugins.describe(all_processes=True)
    assert gone.problem == "the event loop of the engine has ended"
    engine.shutdown()
    (front,) = engine.plugins.describe(all_processes=True)
    assert front.process == "front"


def test_the_last_reference_ends_the_process(tiny_llama: Path, make: Any) -> None:
    async def begin() -> int:
        host = bootstrap(["front"], PluginSettings(no_plugins=True))
        host.hold()
        config = AsyncEngineArgs(model=str(tiny_llama)).to_engine_config(host)
        engine = AsyncLLM(config, host, command=(*COMMAND, "plain"))
        await collect(engine.generate([1], PARAMS, "a"))
        return pid_of(engine)

    pid = asyncio.run(begin())
    gc.collect()
    assert is_gone(pid)
    with pytest.raises(HostError):
        current()


def test_an_engine_of_a_thread_lives_as_long_as_its_loop(make: Any) -> None:
    answers: list[Any] = []

    async def run() -> None:
        engine = make()
        answers.append(await collect(engine.generate([1], PARAMS, "a")))
        engine.shutdown()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    thread.join()
    assert answers == [[([66], None, False), ([66, 67], "length", True)]]


def test_plugin_objects_cannot_cross_to_the_engine(tiny_llama: Path) -> None:
    class Thing:
        pass

    with pytest.raises(ConfigError, match="Thing is an object, and the engine's process cannot"):
        AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(tiny_llama)), plugins=[Thing()])
    with pytest.raises(HostError):
        current()


def test_a_forked_process_neither_uses_nor_ends_it(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        engine = make()
        await engine.start()
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(EngineDeadError, match=r"made in process \d+"):
                await collect(engine.generate([1], PARAMS, "a"))
            engine.shutdown()
        assert engine.is_running
        engine.shutdown()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "more"), [(5, {}), ("sleep", {"kwargs": {1: 1}}), ("sleep", {"timeout": "1"})]
)
def test_a_call_of_the_workers_that_is_none_does_not_reach_the_engine(
    make: Any, method: Any, more: dict[str, Any]
) -> None:
    async def run() -> None:
        engine = make()
        with pytest.raises(TypeError, match="collective_rpc: expected"):
            await engine.collective_rpc(method, **more)
        assert engine.is_running
        engine.shutdown()

    asyncio.run(run())
