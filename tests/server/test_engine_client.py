"""``EngineClient``: stalls, death, plugin calls, and messages that cannot travel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hookserve.engine.engine_client import EngineClient
from hookserve.engine.errors import EngineDeadError
from hookserve.engine.messages import AddRequest, EngineCoreOutput, Ready
from hookserve.engine.output_sink import OutputSink
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from scripted_engine import say


def test_a_stall_is_seen_and_its_end_too(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("ab")) as served:
            client, health = served.runtime.client, served.runtime.health
            client._stall_after_s = 0.05
            served.engine.gate.clear()
            await asyncio.sleep(0.1)
            assert health.problem() is None, "an idle engine cannot stall"
            body = {"prompt": "x"}
            task = asyncio.create_task(served.http.post("/v1/completions", json=body))
            await asyncio.sleep(0.2)
            ready = await served.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["error"]["code"] == "stalled"
            assert (await served.http.get("/livez")).status_code == 200
            refused = await served.http.post("/v1/completions", json=body)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            with pytest.raises(EngineDeadError):
                await client.check_health()
            served.engine.gate.set()
            assert (await task).status_code == 200
            assert (await served.http.get("/readyz")).status_code == 200

    asyncio.run(run())


def test_a_step_that_is_expected_to_be_long_is_no_stall(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("abc")) as served:
            client = served.runtime.client
            client._stall_after_s = 0.05
            served.engine.step_estimate_s = 10.0
            stream = client.generate([1], SamplingParams(), "r")
            await anext(stream)
            served.engine.gate.clear()
            await asyncio.sleep(0.1)
            assert client.stalled_s() is None
            await stream.aclose()

    asyncio.run(run())


def test_generate_yields_the_steps_and_leaving_it_aborts(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("abcd")) as served:
            client = served.runtime.client
            tokens = [o.new_token_ids async for o in client.generate([1], SamplingParams(), "r")]
            assert tokens == [[97], [98], [99], [100]]
            assert served.engine.aborted == []
            stream = client.generate([1], SamplingParams(), "r")
            await anext(stream)
            await stream.aclose()
            await asyncio.sleep(0.02)
            assert served.engine.aborted == [served.engine.requests[1].request_id]

    asyncio.run(run())


def test_abort_ends_every_request_of_that_name(serve_script: Any) -> None:
    def endless(request: AddRequest) -> list[EngineCoreOutput]:
        return [EngineCoreOutput(request.request_id, [97])] * 10_000

    async def run() -> None:
        async with serve_script(endless) as served:
            client = served.runtime.client

            async def last(name: str) -> str | None:
                outputs = [o async for o in client.generate([1], SamplingParams(), name)]
                return outputs[-1].finish_reason

            tasks = [asyncio.create_task(last("same")) for _ in range(2)]
            await asyncio.sleep(0.02)
            await client.abort("other")
            await client.abort("same")
            assert await asyncio.gather(*tasks) == ["abort", "abort"]
            assert client.num_unfinished_requests == 0

    asyncio.run(run())


def test_calls_to_workers_answer_or_say_why(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a")) as served:
            client = served.runtime.client
            with pytest.raises(RuntimeError, match="no such method"):
                await client.collective_rpc("nothing")
            with pytest.raises(RuntimeError, match="object"):
                await client.collective_rpc("nothing", args=[object()])
            assert [report.process for report in await client.describe()] == ["engine"]
            with pytest.raises(TimeoutError, match="has not answered within 0 s"):
                await client.collective_rpc("nothing", timeout=0)

    asyncio.run(run())


def test_death_ends_requests_calls_and_submissions(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("abc")) as served:
            client = served.runtime.client
            served.engine.gate.clear()
            body = {"prompt": "x"}
            whole = asyncio.create_task(served.http.post("/v1/completions", json=body))
            streamed = asyncio.create_task(
                served.http.post("/v1/completions", json={**body, "stream": True})
            )
            await asyncio.sleep(0.05)
            served.runtime.health.set_dead("the engine was killed")
            client.mark_dead(EngineDeadError("the engine was killed"))
            for task in (whole, streamed):
                reply = await asyncio.wait_for(task, 1)
                assert reply.status_code == 503
                assert reply.json()["error"]["code"] == "engine_dead"
            assert client.errored
            assert not client.is_running
            assert client.num_unfinished_requests == 0
            with pytest.raises(EngineDeadError):
                await client.describe()
            with pytest.raises(EngineDeadError):
                client.submit([1], SamplingParams(), None)
            late = await served.http.post("/v1/completions", json=body)
            assert late.status_code == 503

    asyncio.run(run())


def test_a_request_that_is_too_large_for_a_frame_fails_alone(serve_script: Any) -> None:
    async def run() -> None:
        async with serve_script(say("a")) as served:
            client = served.runtime.client
            huge = [2**40] * (8 * 2**20)
            stream = client.generate(huge, SamplingParams(), "huge")
            with pytest.raises(Exception, match="cannot be sent"):
                await anext(stream)
            reply = await served.http.post("/v1/completions", json={"prompt": "x"})
            assert reply.status_code == 200

    asyncio.run(run())


def test_what_an_engine_that_is_replaced_leaves_behind_is_told_at_once(
    make_engine_config: Callable[..., Any],
) -> None:
    """As an error: no report of that engine will follow."""

    async def run() -> None:
        told: list[tuple[Any, Any]] = []
        config = make_engine_config()
        client = EngineClient(
            config, VllmConfig.from_engine_config(config), lambda *stats: told.append(stats)
        )
        client.ready = Ready(
            num_gpu_blocks=4,
            block_size=16,
            kv_cache_bytes=0,
            kv_cache_reason="",
            num_threads=1,
            threads_reason="",
            load_s=0.0,
            warmup_s=0.0,
        )
        sink = OutputSink()
        client.submit([1], SamplingParams(), sink)
        client.detach(EngineDeadError("the engine starts again"))
        ((scheduler, iteration),) = told
        assert scheduler is None
        assert [each.finish_reason for each in iteration.finished_requests] == ["error"]
        with pytest.raises(EngineDeadError, match="starts again"):
            await sink.get()

    asyncio.run(run())
