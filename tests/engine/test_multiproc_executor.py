"""Worker processes: what passes between them and the engine, and what their ends lead to.

The workers here have no torch, so that each start takes a moment; the model's side of tensor
parallelism is in tests/e2e/test_tensor_parallel.py.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
import torch

from fake_engine import make_config
from harness import process_parents, wait_until
from hookserve.engine import multiproc_executor
from hookserve.engine.channel import wait_readable
from hookserve.engine.errors import WorkerError, WorkerPluginsError
from hookserve.engine.executor import UniProcExecutor
from hookserve.engine.multiproc_executor import MultiprocExecutor
from hookserve.engine.rank_watch import Wait
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.step import CachedRequestData, NewRequestData, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Denied, PluginConflictError, PluginSettings, bootstrap

SUPPORT = Path(__file__).parents[1] / "support"
Start = Callable[..., MultiprocExecutor]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Start]:
    """``start(name of the worker class, ranks=2, plugin sources by name)``."""
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}{os.pathsep}{tmp_path}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made: list[Any] = []

    def make(worker: str = "StubWorker", ranks: int = 2, **plugins: str) -> MultiprocExecutor:
        for name, source in plugins.items():
            (tmp_path / f"{name}.py").write_text(source)
        files = tuple(str(tmp_path / f"{name}.py") for name in plugins)
        made.append(bootstrap({"engine"}, PluginSettings(files=files, allow=())))
        config = make_config(worker_cls=f"stub_worker:{worker}")
        parallel = msgspec.structs.replace(config.parallel, tensor_parallel_size=ranks)
        config = msgspec.structs.replace(config, parallel=parallel)
        executor = MultiprocExecutor(VllmConfig.from_engine_config(config))
        made.append(executor)
        return executor

    yield make
    for each in reversed(made):
        each.shutdown() if isinstance(each, MultiprocExecutor) else each.close()


@pytest.fixture
def plain_host() -> Iterator[None]:
    """Without plugins, where engine and worker are one process."""
    host = bootstrap({"engine", "worker"}, PluginSettings(no_plugins=True))
    yield
    host.close()


def pids(executor: MultiprocExecutor) -> list[int]:
    return [worker.pid for worker in executor.workers]


def all_gone(pids: list[int]) -> bool:
    return not set(pids) & process_parents().keys()


def test_each_rank_is_a_process_and_answers_in_its_place(start: Start) -> None:
    executor = start(ranks=3)
    answers = executor.collective_rpc("where")
    assert [answer[:3] for answer in answers] == [[0, True, 0], [1, False, 1], [2, False, 2]]
    found = [answer[3] for answer in answers]
    assert found == pids(executor) and len({*found, os.getpid()}) == 4
    for *_, calls, has_torch in answers:
        assert calls == ["init_device", "load_model"]
        assert not has_torch
    executor.shutdown()
    assert all_gone(found)


def test_the_ranks_meet_by_a_file_that_no_death_can_leave_behind(start: Start) -> None:
    """A process that is killed removes nothing."""
    one, other = start("MeetingWorker").collective_rpc("met_by")
    assert one == other, "the same file"
    assert one[0] == 0, "it has a name"


def test_values_cross_in_both_directions_and_others_are_refused_by_type(start: Start) -> None:
    executor = start()
    tensor = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    grid = numpy.arange(6, dtype=numpy.int16).reshape(2, 3)
    for value in ({"a": [1, None, "x", b"y"]}, 2.5, []):
        assert executor.collective_rpc("echo", args=(value,), kwargs={"times": 2}) == [
            [value, 0, 0],
            [value, 1, 1],
        ]
    # The workers have no torch: they hold the tensor as it came and send it on.
    for answer in executor.collective_rpc("echo", args=({"t": tensor, "g": grid},)):
        assert torch.equal(answer[0]["t"], tensor) and answer[0]["t"].dtype is torch.bfloat16
        assert numpy.array_equal(answer[0]["g"], grid) and answer[0]["g"].dtype == numpy.int16
    with pytest.raises(TypeError, match=r"_thread\.lock cannot be sent"):
        executor.collective_rpc("echo", args=(threading.Lock(),))
    with pytest.raises(WorkerError, match=r"stub_worker\.StubWorker cannot be sent between"):
        executor.collective_rpc("odd")
    assert executor.collective_rpc("echo", args=(1,)) == [[1, 0], [1, 1]], "the ranks are in step"


def test_one_process_passes_any_object_as_it_is(plain_host: None) -> None:
    config = make_config(worker_cls="stub_worker:StubWorker")
    executor = UniProcExecutor(VllmConfig.from_engine_config(config))
    marker = object()
    assert executor.collective_rpc("echo", args=(marker,))[0][0] is marker
    assert executor.collective_rpc("sleep", 5.0, (1, 9.0)) == [0]
    with pytest.raises(TimeoutError, match=r"worker 0 .* 0\.01 s"):
        executor.collective_rpc("sleep", 0.01, (0, 0.05))


def test_what_a_method_raises_comes_back_and_harms_nobody(start: Start) -> None:
    executor = start()
    with pytest.raises(WorkerError) as caught:
        executor.collective_rpc("complain", args=(1,))
    assert str(caught.value) == "worker 1 raised LookupError: rank 1 has nothing"
    assert "in complain" in "".join(caught.value.__notes__), "the worker's own traceback"
    with pytest.raises(WorkerError, match=r"AttributeError: .*no_such_method"):
        executor.collective_rpc("no_such_method")
    assert executor.collective_rpc("complain", args=(7,)) == [0, 1]


def test_the_next_call_waits_until_all_ranks_are_through_one_that_failed(start: Start) -> None:
    """A rank that is still in it could meet another one there."""
    executor = start()
    with pytest.raises(WorkerError, match="worker 0 raised LookupError"):
        executor.collective_rpc("complain_or_sleep", args=(0, 0.5))
    with pytest.raises(TimeoutError, match=r"still in a call that failed on one rank, 0\.05 s"):
        executor.collective_rpc("complain", 0.05, (7,))
    one, other = executor.collective_rpc("woke_at")
    assert one[1] > other[0] > 0.0, "rank 0 was asked after rank 1 had woken"
    assert executor.collective_rpc("complain", args=(7,)) == [0, 1]


def test_a_call_in_which_all_ranks_wait_for_each_other_ends_with_a_sentence(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = start()
    found = pids(executor)
    for worker, where in zip(executor.workers, ("send (called at a.py:1)", ""), strict=True):
        monkeypatch.setattr(worker, "read_wait", lambda where=where: Wait(where, 31.0))
    told = (
        r"^sleep: the workers have waited for each other for 31 s, and none can go on: worker 0 in "
        r"send \(called at a\.py:1\), worker 1 is through; every rank must enter the same exchanges"
    )
    with pytest.raises(WorkerError, match=told):
        executor.collective_rpc("sleep", args=(0, 4.0))
    assert all_gone(found)


def test_a_late_answer_is_a_timeout_and_is_not_taken_for_the_next_one(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 is held until the next call has been sent, so it answers both in turn."""
    executor = start()
    late = pids(executor)[1]
    os.kill(late, signal.SIGSTOP)
    with pytest.raises(TimeoutError, match=r"workers \[(0, )?1\] have not answered within 0.5 s"):
        executor.collective_rpc("echo", 0.5, ("late",))
    tell_all = executor._tell_all

    def tell_and_let_go(message: Any) -> None:
        tell_all(message)
        os.kill(late, signal.SIGCONT)

    monkeypatch.setattr(executor, "_tell_all", tell_and_let_go)
    assert executor.collective_rpc("echo", args=("next",)) == [["next", 0], ["next", 1]]


def test_a_step_travels_whole_and_rank_0_alone_answers(start: Start) -> None:
    executor = start()
    params = SamplingParams(seed=3, temperature=0.5, logit_bias={5: 1.0})
    step = SchedulerOutput(
        scheduled_new_reqs=[NewRequestData("a", array("i", [1, 2, 3]), params, [7, 8], 0)],
        scheduled_cached_reqs=CachedRequestData(
            ["b"], [4], {"b": [9]}, {"b": array("i", [5, 6, 7])}
        ),
        num_scheduled_tokens={"b": 1, "a": 3},
        total_num_scheduled_tokens=4,
        finished_req_ids={"c"},
    )
    for _ in range(3):
        output = executor.execute_model(step)
        assert output.req_ids == ["a"]
        assert output.sampled_token_ids == [[1, 2, 3, 7, 8]]
        assert output.errors == {"b": "[5, 6, 7]"}
    assert executor.collective_rpc("echo", args=(0,)) == [[0, 0], [0, 1]]


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_that_ends_ends_all_others_at_once(rank: int, start: Start) -> None:
    """Seen while the engine waits for nothing, and by every later call."""
    executor = start()
    before = pids(executor)
    assert not wait_readable(executor.watched_fds(), 0.0)
    executor.check_health()
    os.kill(before[rank], signal.SIGKILL)
    assert wait_readable(executor.watched_fds(), 5.0)
    with pytest.raises(WorkerError, match=rf"worker {rank} \(pid {before[rank]}\).*SIGKILL") as one:
        executor.check_health()
    assert one.value.exit_code == 70
    assert all_gone(before)
    with pytest.raises(WorkerError, match="have ended"):
        executor.collective_rpc("echo", args=(1,))


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        (["", "die"], r"worker 1 \(pid \d+\) was killed by SIGKILL"),
        (["lose", "die"], r"worker 1 \(pid \d+\) was killed by SIGKILL"),
        (["", "raise"], "worker 1 raised ValueError: the left half is missing"),
        (["lose", "raise"], "worker 1 raised ValueError: the left half is missing"),
    ],
    ids=["dies", "dies, and the other notices", "raises", "raises, and the other notices"],
)
def test_a_step_that_fails_on_one_rank_is_told_by_its_cause(
    faults: list[str], sentence: str, start: Start
) -> None:
    executor = start()
    before = pids(executor)
    executor.collective_rpc("fail_next", args=(faults,))
    with pytest.raises(WorkerError, match=sentence):
        for _ in range(1000):
            executor.execute_model(SchedulerOutput())
            time.sleep(0.005)
    assert all_gone(before)


@pytest.mark.parametrize(
    ("worker", "code", "sentence"),
    [
        ("UnreadableWorker", 74, "/m/model.safetensors: tensor 'w' ends behind the file's end"),
        ("BrokenWorker", 70, r"worker \d raised OSError: no driver"),
        ("ExitingWorker", 70, r"worker 0 \(pid \d+\) ended with exit code 3"),
        ("NoSuchWorker", 78, "worker class stub_worker:NoSuchWorker raised ImportError"),
    ],
)
def test_what_keeps_a_worker_from_starting_comes_with_its_code(
    worker: str, code: int, sentence: str, start: Start
) -> None:
    children = {pid for pid, parent in process_parents().items() if parent == os.getpid()}
    with pytest.raises(WorkerError, match=sentence) as caught:
        start(worker)
    assert caught.value.exit_code == code
    left = {pid for pid, parent in process_parents().items() if parent == os.getpid()} - children
    assert not left


def test_a_worker_that_does_not_stop_is_ended_by_force(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hookserve.engine.multiproc_executor.STOP_TIMEOUT_S", 0.2)
    executor = start("DeafWorker")
    before = pids(executor)
    executor.shutdown()
    assert all_gone(before)
    assert "worker 1 did not stop when asked" in caplog.text


def test_workers_started_in_a_thread_live_on_when_the_thread_has_ended(start: Start) -> None:
    """The kernel ends a child with the thread that started it."""
    made: list[MultiprocExecutor] = []
    thread = threading.Thread(target=lambda: made.append(start()))
    thread.start()
    thread.join(30)
    time.sleep(0.1)
    (executor,) = made
    assert executor.collective_rpc("echo", args=(1,)) == [[1, 0], [1, 1]]
    before = pids(executor)
    executor.shutdown()
    wait_until(lambda: not any(t.name.startswith("spawner") for t in threading.enumerate()), 5, "")
    assert all_gone(before)


# -- plugins ---------------------------------------------------------------------------------------

HEAD = "from hookserve.hookspecs import ModelEntry, hookimpl\n"


def test_a_plugin_that_fails_in_the_worker_alone_is_named_to_the_engine(start: Start) -> None:
    source = HEAD + (
        "@hookimpl\ndef process_started(roles):\n"
        "    if 'worker' in roles: raise OSError('not here')"
    )
    with pytest.raises(WorkerPluginsError) as caught:
        start(failing=source)
    (failure,) = caught.value.failures
    assert failure.identity == "file:failing"
    assert (failure.process, failure.stage) == ("worker", "run")
    assert "OSError: not here" in failure.error


@pytest.mark.parametrize(
    ("name", "source", "how"),
    [
        ("killer", "if here: os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        (
            "leaver",
            "@hookimpl\ndef register_model():\n    if here: os._exit(0)",
            "ended with exit code 0",
        ),
    ],
)
def test_a_plugin_whose_code_ran_when_a_worker_ended_is_named(
    name: str, source: str, how: str, start: Start
) -> None:
    own = "import os, sys\nhere = 'hookserve.engine.worker_process' in sys.orig_argv\n"
    hook = "\n@hookimpl\ndef process_started(): ...\n"
    wanted = rf"worker \d \(pid \d+\) {how} while the code of plugin file:{name} ran"
    with pytest.raises(WorkerError, match=wanted) as caught:
        start(**{name: HEAD + own + source + hook})
    crash = Denied(f"file:{name}", "worker", "crash", f"its code ran when the process {how}")
    assert caught.value.failures == [crash]


def test_each_worker_reports_its_own_plugins(start: Start) -> None:
    source = HEAD + (
        "@hookimpl\ndef register_model(): return ModelEntry('Toy', 'nowhere:Model')\n"
        "@hookimpl\ndef process_started(roles): ...\n"
    )
    reports = start(toy=source).describe_plugins()
    assert [report.process for report in reports] == ["worker 0", "worker 1"]
    assert len({report.pid for report in reports}) == 2
    for report in reports:
        (toy,) = [plugin for plugin in report.plugins if plugin.identity == "file:toy"]
        assert (report.roles, report.problem, toy.state) == (["worker"], None, "active")
        assert {hook.name: hook.called_here for hook in toy.hooks} == {
            "register_model": True,
            "process_started": True,
        }


def test_a_worker_that_does_not_answer_is_named_and_not_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiproc_executor, "DESCRIBE_TIMEOUT_S", 0.5)
    executor = start()
    stopped = executor.workers[1].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        answered, silent = executor.describe_plugins()
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert (answered.process, answered.problem) == ("worker 0", None)
    assert (silent.process, silent.pid) == ("worker 1", stopped)
    assert silent.problem == "no answer within 0.5 s"
    answers = executor.collective_rpc("where")
    assert [answer[0] for answer in answers] == [0, 1], "what it answers later is dropped"


def test_a_worker_that_declares_something_else_stops_the_start(start: Start) -> None:
    source = HEAD + (
        "@hookimpl\ndef register_model(ctx):\n"
        "    return ModelEntry('Odd' if 'worker' in ctx.roles else 'Even', 'nowhere:Model')"
    )
    with pytest.raises(PluginConflictError, match=r"model differs between processes.*file:two"):
        start(two=source)
