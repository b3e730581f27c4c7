"""A scheduler, methods of the workers and routes that call them, all of one plugin, in a server
with two worker processes; and the end that a scheduler which raises leads to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import RunningServer

SOURCE = """
import os

from hookserve.hookspecs import Endpoint, Named, hookimpl, worker_method


class Looking:
    @worker_method
    def look(self, grid):
        weight = self.get_model().lm_head.weight
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "part": weight[:2, :3],
            "rows": weight.shape[0],
            "sum": grid.sum(axis=0),
        }

    @worker_method
    def stumble(self):
        raise LookupError("nothing to see")

    def hidden(self):
        return os.getpid()


class Routes:
    def routes(self):
        from starlette.routing import Route

        return [Route("/x/look", self.look), Route("/x/call/{method}", self.call)]

    async def init_state(self, engine_client, state, settings):
        self.client = engine_client

    async def look(self, request):
        import numpy
        from starlette.responses import JSONResponse

        grid = numpy.arange(6, dtype=numpy.int64).reshape(2, 3)
        answers = await self.client.collective_rpc("look", args=[grid])
        for answer in answers:
            tensor = answer["part"]
            answer["part"] = [type(tensor).__name__, tensor.dtype, tensor.shape, len(tensor.data)]
            answer["sum"] = answer["sum"].tolist()
        return JSONResponse(answers)

    async def call(self, request):
        from starlette.responses import JSONResponse

        try:
            answers = await self.client.collective_rpc(request.path_params["method"])
        except RuntimeError as error:
            return JSONResponse(str(error), 409)
        return JSONResponse(answers)


@hookimpl
def worker_extension():
    return Named("looking", "inner:Looking")


@hookimpl
def endpoint():
    return Endpoint("inner", "inner:Routes")


@hookimpl
def scheduler():
    return Named("fragile", "inner_scheduler:Fragile")
"""
SCHEDULER = """
from hookserve.engine.scheduler import Scheduler


class Fragile(Scheduler):
    def schedule(self):
        if any(request.num_prompt_tokens == 5 for request in self.requests.values()):
            raise ArithmeticError("five is too many")
        return super().schedule()
"""


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("inner")
    (folder / "inner.py").write_text(SOURCE)
    (folder / "inner_scheduler.py").write_text(SCHEDULER)
    args = ["--plugin", str(folder / "inner.py"), "--tensor-parallel-size", "2"]
    args += ["--enable-endpoints", "inner", "--scheduler-cls", "fragile"]
    with RunningServer([str(tiny_llama), *args], env={"PYTHONPATH": str(folder)}) as running:
        yield running


def test_a_route_reaches_an_extension_in_every_worker(server: RunningServer) -> None:
    answers = server.get("/x/look").json()
    assert [answer["rank"] for answer in answers] == [0, 1]
    assert len({answer["pid"] for answer in answers} | {server.pid, os.getpid()}) == 4
    for answer in answers:
        assert answer["part"] == ["TensorValue", "float32", [2, 3], 24], "no torch in front"
        assert answer["sum"] == [3, 5, 7]


def test_what_is_not_exported_or_fails_is_its_callers_error(server: RunningServer) -> None:
    stumbled = server.get("/x/call/stumble")
    assert stumbled.status_code == 409
    assert "LookupError: nothing to see in the code of plugin file:inner" in stumbled.json()
    hidden = server.get("/x/call/hidden").json()
    assert "worker extension 'looking' of plugin file:inner does not export 'hidden'" in hidden
    assert server.get("/x/call/check_health").json() == [True, True], "a worker's own, as ever"
    assert server.get("/readyz").status_code == 200


def test_the_plugin_stands_in_the_table_of_each_process(server: RunningServer) -> None:
    processes = server.get("/v1/plugins").json()["processes"]
    used = {
        (process, declared["kind"])
        for process, plugins in processes.items()
        for plugin in plugins
        if plugin["identity"] == "file:inner"
        for declared in plugin["declarations"]
        if declared["used"]
    }
    assert used == {
        ("front", "endpoint"),
        ("engine", "scheduler"),
        ("worker 0", "worker_extension"),
        ("worker 1", "worker_extension"),
    }


def test_a_scheduler_that_raises_ends_the_server_by_name(server: RunningServer) -> None:
    body = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    assert server.post("/v1/completions", {"prompt": [1, 2, 3], **body}).status_code == 200
    before = len(server.stderr)
    failed = server.post("/v1/completions", {"prompt": [1, 2, 3, 4, 5], **body})
    assert failed.status_code >= 500
    assert "five is too many" in failed.json()["error"]["message"]
    assert server.wait_exit(30) == 70
    said = "scheduler 'fragile' of plugin file:inner: schedule raised ArithmeticError: five is too"
    assert said in server.stderr
    assert "Traceback" not in server.stderr[before:]
