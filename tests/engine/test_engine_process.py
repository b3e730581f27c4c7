"""The engine as a real process, spoken to over its socket."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fake_engine import continuation, make_config, make_request
from hookserve.engine.channel import Channel, ChannelClosed
from hookserve.engine.core import BooksError
from hookserve.engine.errors import WorkerError
from hookserve.engine.messages import (
    Abort,
    CollectiveRpc,
    Describe,
    Described,
    Failed,
    Finish,
    ManifestSent,
    Proceed,
    Ready,
    RpcResult,
    Shutdown,
    Start,
    StepOutputs,
)
from hookserve.engine.process import EngineProcess
from hookserve.hookspecs import PluginSettings

SUPPORT = Path(__file__).parents[1] / "support"
DEADLINE_S = 180.0
"""Generous: importing torch takes most of a minute where much else runs."""
REAL_WORKER, FAKE_WORKER = "hookserve.engine.worker:Worker", "fake_engine:FakeWorker"
HEAD = "import sys\nfrom hookserve.hookspecs import ModelEntry, Named, hookimpl\n"


class Child:
    """A process, and the parent's end of its channel. What takes too long is told as that, and not
    as a channel that closed."""

    def __init__(self, command: list[str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            start = command or [sys.executable, "-P", "-m", "hookserve.engine.process"]
            self.process = subprocess.Popen(
                [*start, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": str(SUPPORT)},
                stderr=subprocess.PIPE,
            )
        self.channel = Channel(ours)

    def expect(self, kind: type[Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_S
        try:
            while (message := self.channel.try_recv()) is None:
                left_s = max(0.0, deadline - time.monotonic())
                assert self.channel.wait(left_s), f"no {kind.__name__} within {DEADLINE_S:g} s"
        except ChannelClosed as error:
            code, errors = self.end()
            raise AssertionError(f"no {kind.__name__}, but {error}; {code=}\n{errors}") from error
        assert isinstance(message, kind), message
        return message

    def load(self, settings: PluginSettings | None = None, **options: Any) -> Ready:
        plugins = settings or PluginSettings(no_plugins=True)
        self.channel.send(Start(make_config(**options), plugins))
        self.manifest = self.expect(ManifestSent).manifest
        self.channel.send(Proceed())
        ready: Ready = self.expect(Ready)
        return ready

    def end(self) -> tuple[int, str]:
        """Exit code and what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors.decode()


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def make(command: list[str] | None = None) -> Child:
        children.append(Child(command))
        return children[-1]

    yield make
    for child in children:
        child.channel.close()
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_from_start_to_tokens_to_a_clean_stop(start):
    child = start()
    ready = child.load()
    assert (ready.num_gpu_blocks, ready.block_size) == (64, 4)
    assert ready.kv_cache_bytes == 64 * 4 * 8
    assert ready.num_threads >= 1 and ready.threads_reason
    assert ready.model_info["model_class"] == "fake_engine.FakeModel"
    assert child.manifest["roles"] == ["engine", "worker"]
    child.channel.send(make_request("a", [1, 2, 3], max_tokens=5))
    child.channel.send(make_request("never", list(range(90)) * 2))
    tokens: list[int] = []
    refused = None
    step = 0
    while len(tokens) < 5 or refused is None:
        report = child.expect(StepOutputs)
        assert report.step >= step
        step = report.step
        for output in report.outputs:
            if output.request_id == "never":
                refused = output
            else:
                tokens += output.new_token_ids
    assert tokens == continuation([1, 2, 3], 5)
    assert refused.finish_reason == "error" and "180 tokens" in refused.error
    assert report.scheduler_stats.num_running_reqs == 0
    assert report.next_step_estimate_s > 0
    child.channel.send(Shutdown())
    code, errors = child.end()
    assert code == 0
    assert "Traceback" not in errors


def test_aborts_and_finishes_free_everything_and_are_reported_when_idle(start):
    child = start()
    child.load(num_blocks=200, max_model_len=512)
    for name in ("a", "b"):
        child.channel.send(make_request(name, [1, 2, 3], max_tokens=400))
    while child.expect(StepOutputs).scheduler_stats.num_running_reqs < 2:
        pass
    child.channel.send(Abort(["a"]))
    child.channel.send(Finish("b", "stop"))
    while True:
        report = child.expect(StepOutputs)
        if report.scheduler_stats.num_running_reqs == 0:
            break
    assert report.outputs == []
    assert report.scheduler_stats.kv_cache_usage == 0.0


def test_an_idle_engine_uses_no_cpu(start):
    child = start()
    child.load()
    child.channel.send(make_request("a", [1, 2, 3]))
    while not any(o.finish_reason for o in child.expect(StepOutputs).outputs):
        pass
    used = 1.0
    for _ in range(20):  # the compute threads' own spinning ends, however busy the machine is
        if used <= 0.02:
            break
        before = cpu_seconds(child.process.pid)
        time.sleep(0.5)
        used = cpu_seconds(child.process.pid) - before
    assert used <= 0.02


def test_reports_and_calls_are_answered_between_steps(start):
    child = start()
    child.load()
    child.channel.send(Describe(1))
    described = child.expect(Described)
    assert described.call_id == 1
    (engine,) = described.processes
    assert (engine.process, engine.pid) == ("engine", child.process.pid)
    assert engine.roles == ["engine", "worker"]
    assert "hookserve:builtin:executors" in {plugin.identity for plugin in engine.plugins}
    child.channel.send(CollectiveRpc(2, "check_health"))
    assert child.expect(RpcResult) == RpcResult(2, [True])
    child.channel.send(CollectiveRpc(3, "no_such_method"))
    assert "no_such_method" in child.expect(RpcResult).error
    child.channel.send(CollectiveRpc(4, "get_model"))
    assert "fake_engine.FakeModel cannot be sent" in child.expect(RpcResult).error


def test_it_leaves_quietly_when_the_parent_closes_the_channel(start):
    for when in ("before Start", "before Proceed", "idle", "busy"):
        child = start()
        if when != "before Start":
            child.channel.send(Start(make_config(), PluginSettings(no_plugins=True)))
            child.expect(ManifestSent)
        if when in ("idle", "busy"):
            child.channel.send(Proceed())
            child.expect(Ready)
        if when == "busy":
            child.channel.send(make_request("a", [1, 2], max_tokens=100))
        child.channel.close()
        begin = time.monotonic()
        code, errors = child.end()
        assert (code, errors) == (0, ""), when
        if when == "idle":
            assert time.monotonic() - begin < 1.0


def test_the_terminals_signals_are_left_to_the_front(start):
    child = start()
    child.load()
    child.process.send_signal(signal.SIGINT)
    child.process.send_signal(signal.SIGTERM)
    child.channel.send(CollectiveRpc(1, "check_health"))
    assert child.expect(RpcResult).result == [True]


def test_it_dies_with_a_parent_that_was_killed(tmp_path):
    """A parent that starts an engine, passes on the socket, says the pid, and sleeps."""
    ours, theirs = socket.socketpair()
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-P', '-m', 'hookserve.engine.process',"
        " '--fd', sys.argv[1]], pass_fds=(int(sys.argv[1]),))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stdout=subprocess.PIPE,
    )
    try:
        # This end stays open, so that the closed channel cannot be what ends the engine.
        pid = int(parent.stdout.readline())
        channel = Channel(ours)
        channel.send(Start(make_config(), PluginSettings(no_plugins=True)))
        assert isinstance(channel.recv(), ManifestSent)
        ended = os.pidfd_open(pid)
        parent.kill()
        assert select.select([ended], [], [], 10.0)[0], "the engine outlives its parent"
        os.close(ended)
        theirs.close()
        with pytest.raises(ChannelClosed):
            channel.recv()
    finally:
        parent.kill()
        parent.communicate()
        ours.close()
        theirs.close()


def test_the_shutdown_hook_runs_also_when_the_executor_fails_to_stop(start, tmp_path):
    (tmp_path / "stops.py").write_text(
        HEAD + "from pathlib import Path\n"
        "from hookserve.engine.executor import UniProcExecutor\n"
        "class Executor(UniProcExecutor):\n"
        "    def shutdown(self): raise OSError('rank 1 hangs')\n"
        "@hookimpl\ndef executor(): return Named('bad', Executor)\n"
        f"@hookimpl\ndef shutdown(): Path({str(tmp_path / 'told')!r}).touch()\n"
    )
    config = make_config()
    parallel = msgspec.structs.replace(config.parallel, distributed_executor_backend="bad")
    plugins = PluginSettings(files=(str(tmp_path / "stops.py"),), allow=())
    child = start()
    child.channel.send(Start(msgspec.structs.replace(config, parallel=parallel), plugins))
    child.expect(ManifestSent)
    child.channel.send(Proceed())
    child.expect(Ready)
    child.channel.send(Shutdown())
    assert "OSError: rank 1 hangs" in child.expect(Failed).message
    assert child.end()[0] == 70
    assert (tmp_path / "told").exists()


def test_a_model_that_raises_ends_the_engine_with_one_sentence(start):
    child = start()
    child.load(worker_cls="fake_engine:RaisingWorker")
    child.channel.send(make_request("a", [90, 2, 3]))
    failed = child.expect(Failed)
    assert failed.exit_code == 70
    assert failed.message == (
        "model RaisingModel failed in a step: ValueError: the third matrix is missing"
    )
    assert "Traceback" in failed.detail
    code, errors = child.end()
    assert code == 70
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"max_num_batched_tokens": 2}, 78, "max_num_batched_tokens 2"),
        ({"dtype": "float64"}, 78, "does not support dtype float64"),
        ({"worker_cls": "hookserve.engine.worker:Worker"}, 74, "/nowhere: there is no such file"),
    ],
)
def test_what_keeps_it_from_loading_is_told_with_its_code(start, options, code, named):
    child = start()
    child.channel.send(Start(make_config(**options), PluginSettings(no_plugins=True)))
    child.expect(ManifestSent)
    child.channel.send(Proceed())
    failed = child.expect(Failed)
    assert failed.exit_code == code
    assert named in failed.message
    assert child.end()[0] == code


PLUGINS = {
    "faulty": """
from hookserve.engine.executor import UniProcExecutor
from hookserve.engine.model_loader import BaseModelLoader

class Executor(UniProcExecutor):
    def _init_executor(self):
        sys.exit(3)

class LateExecutor(UniProcExecutor):
    def execute_model(self, scheduler_output):
        raise KeyError("rank 1")

class Loader(BaseModelLoader):
    def download_model(self, model_config):
        raise OSError("the bucket\\nis gone")

    def load_weights(self, model, model_config): ...

@hookimpl
def executor():
    return [Named("bad", Executor), Named("late", LateExecutor)]

@hookimpl
def model_loader():
    return Named("bucket", Loader)
""",
    "other": """
@hookimpl
def register_model():
    return ModelEntry("FakeForCausalLM", "nowhere:Fake")
""",
    "device": """
from hookserve.plugins_builtin.cpu_platform import CpuPlatform

class Device(CpuPlatform):
    @classmethod
    def available_memory(cls):
        raise OSError("no driver")

@hookimpl
def platform():
    return "device:Device"
""",
}


@pytest.mark.parametrize(
    ("plugins", "section", "changes", "sentence"),
    [
        (
            ("faulty",),
            "parallel",
            {"distributed_executor_backend": "bad"},
            "the engine raised SystemExit: 3 in the code of plugin file:faulty",
        ),
        (
            ("faulty",),
            "parallel",
            {"distributed_executor_backend": "late"},
            "the engine raised KeyError: 'rank 1' in the code of plugin file:faulty",
        ),
        (
            ("faulty", "other"),
            "load",
            {"load_format": "bucket"},
            "model FakeForCausalLM of plugin file:other could not be loaded by loader 'bucket' of "
            "plugin file:faulty: OSError: the bucket",
        ),
        (
            ("device",),
            "parallel",
            {"worker_cls": "nowhere:Worker"},
            "worker class nowhere:Worker raised ModuleNotFoundError: No module named 'nowhere'; "
            "it is what --worker-cls or the platform file:device asked for",
        ),
        (
            ("device",),
            "parallel",
            {},
            "the engine raised OSError: no driver in the code of plugin file:device",
        ),
    ],
)
def test_what_a_plugins_code_raises_in_the_engine_has_its_owner(
    plugins, section, changes, sentence, start, tmp_path
):
    for name in plugins:
        (tmp_path / f"{name}.py").write_text(HEAD + PLUGINS[name])
    files = tuple(str(tmp_path / f"{name}.py") for name in plugins)
    config = make_config(worker_cls=REAL_WORKER if section == "load" else FAKE_WORKER)
    part = msgspec.structs.replace(getattr(config, section), **changes)
    config = msgspec.structs.replace(config, **{section: part})
    child = start()
    child.channel.send(Start(config, PluginSettings(files=files, allow=())))
    child.expect(ManifestSent)
    child.channel.send(Proceed())
    failed = child.expect(Failed)
    assert failed.message == sentence
    code, errors = child.end()
    assert code == failed.exit_code != 0
    assert "Traceback" not in errors


def test_settings_that_name_no_plugin_are_told_before_any_manifest(start):
    child = start()
    child.channel.send(Start(make_config(), PluginSettings(allow=("nobody/nothing",))))
    failed = child.expect(Failed)
    assert failed.exit_code == 78
    assert "nobody/nothing" in failed.message


def test_a_message_out_of_turn_is_an_error_of_the_program(start):
    child = start()
    child.channel.send(Proceed())
    failed = child.expect(Failed)
    assert failed.exit_code == 70
    assert "expected Start, got Proceed" in failed.message


def test_bootstrapping_imports_no_torch(start, tmp_path):
    """Torch comes in after the manifest is out, so that the parent compares meanwhile."""
    script = tmp_path / "watch.py"
    script.write_text(
        "import sys\n"
        "from hookserve.engine import channel, messages, process\n"
        "send = channel.Channel.send\n"
        "def watched(self, message):\n"
        "    assert not isinstance(message, messages.ManifestSent) or 'torch' not in sys.modules\n"
        "    send(self, message)\n"
        "channel.Channel.send = watched\n"
        "sys.exit(process.main())\n"
    )
    child = start([sys.executable, "-P", str(script)])
    child.channel.send(Start(make_config(), PluginSettings(no_plugins=True)))
    assert msgspec.to_builtins(child.expect(ManifestSent))["manifest"]["process"] == "engine"


def test_the_books_are_compared_in_the_first_quiet_moment_after_work(monkeypatch, make_core):
    monkeypatch.setattr("hookserve.engine.process.IDLE_CHECK_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        engine = EngineProcess(Channel(theirs))
        core = make_core()
        lost = core.scheduler.kv_cache.pool.take(1)
        Channel(ours).send(make_request("a", [1, 2, 3], max_tokens=2))
        with pytest.raises(BooksError, match="reference counts differ"):
            engine._loop(core, core.host)
        assert not core.has_work()
        core.scheduler.kv_cache.pool.release(lost)
        ours.close()
        with pytest.raises(ChannelClosed):
            engine._loop(core, core.host)


def test_workers_that_end_in_a_call_end_the_engine_too(monkeypatch, make_core):
    """Nothing is left to watch, and no request may come that would find it out."""
    core = make_core()

    def fail(sentence):
        raise WorkerError(sentence)

    killed = "worker 1 (pid 7) was killed by SIGKILL"
    monkeypatch.setattr(core.executor, "collective_rpc", lambda *given: fail(killed))
    monkeypatch.setattr(core.executor, "check_health", lambda: fail("the workers have ended"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent = Channel(ours)
        parent.send(CollectiveRpc(1, "any", [], {}))
        parent.send(Shutdown())
        with pytest.raises(WorkerError, match="was killed by SIGKILL"):
            EngineProcess(Channel(theirs))._loop(core, core.host)
        assert parent.recv() == RpcResult(1, error=f"any: {killed}")


def test_books_that_do_not_agree_end_the_engine_with_one_sentence(start, tmp_path):
    (tmp_path / "keeps.py").write_text(
        HEAD + "from hookserve.engine.scheduler import Scheduler\n"
        "@hookimpl\n"
        "def process_started():\n"
        "    end = Scheduler._end\n"
        "    def lose(self, request, reason):\n"
        "        end(self, request, reason)\n"
        "        if request.request_id == 'a': self.kv_cache.pool.take(1)\n"
        "    Scheduler._end = lose\n"
    )
    child = start()
    child.load(PluginSettings(files=(str(tmp_path / "keeps.py"),), allow=()))
    child.channel.send(make_request("a", [1, 2, 3], max_tokens=2))
    while isinstance(message := child.channel.recv(), StepOutputs):
        pass
    assert isinstance(message, Failed), message
    assert message.exit_code == 70
    assert message.message.startswith("the books of the KV cache do not agree: reference counts")
    assert "--no-plugins" in message.message
    code, errors = child.end()
    assert code == 70
    assert "Traceback" not in errors
