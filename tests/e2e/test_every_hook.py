"""Live processes tell of their plugins: where every hook runs and how often, which is what the
plugin itself has written down, and what the log says while they start."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import every_hook
from every_hook import SPECS
from harness import RunningServer, clean_environment, wait_until
from plugin_folder import install_plugin

PROMPT = {"prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0, "ignore_eos": True}

AT_START = {
    name for name, info in SPECS.items() if info.kind is not None or name == "settings_schema"
} | {"process_started", "register_by_call"}
"""Once in each process that has a role of the hook."""
ONCE = {"engine_config", "model_loaded", "weights"}
OF_A_REQUEST = {"before_request", "admit", "metric_labels", "request_finished"}
OF_A_STEP = {"after_schedule", "before_step", "after_step"}
NOT_HERE = {"select_victim", "shutdown", "compile_cache_key"}
"""No cache is under pressure; nobody can be asked after the end; and there are no compiled kernels
for float32."""
SOMETIMES = {"authenticate", "before_response", "order_waiting"}


class Life:
    """One life of a server with the plugin: what it answered, and what the plugin wrote."""

    def __init__(self, server: RunningServer, trace: Path) -> None:
        self.front = server.pid
        assert server.post("/v1/completions", PROMPT).status_code == 200
        # The last hooks of a request run beside its reply.
        is_over = {"metric_labels", "request_finished"}.issubset
        wait_until(lambda: is_over(self.names(trace)), 10, server.output())
        self.reply = server.get("/v1/plugins").json()
        self.before = every_hook.read_calls(trace)
        self.metrics = server.get("/metrics").text
        server.signal(signal.SIGTERM)
        assert server.wait_exit(30) == 0, server.stderr
        self.after = every_hook.read_calls(trace)
        self.stderr = server.stderr

    @staticmethod
    def names(trace: Path) -> set[str]:
        return {name for _, _, name in every_hook.read_calls(trace)}

    def report(self, process: str) -> dict[str, Any]:
        (report,) = [
            plugin
            for plugin in self.reply["processes"][process]
            if plugin["identity"] == every_hook.IDENTITY
        ]
        return report

    def written(self, process: str, *, after: bool = False) -> dict[str, int]:
        """Hook to calls, in one process, without what its command line did before."""
        calls = self.after if after else self.before
        pid, roles = self.reply["pids"][process], tuple(sorted(self.reply["roles"][process]))
        return {name: count for (p, r, name), count in calls.items() if (p, r) == (pid, roles)}


def make_life(folder: Path, model: Path, *args: str, **options: Any) -> Life:
    site, trace = folder / "site", folder / "trace.jsonl"
    site.mkdir(exist_ok=True)
    every_hook.install(site)
    env = {"PYTHONPATH": str(site), every_hook.TRACE: str(trace)}
    with RunningServer([str(model), *args], env=env, **options) as server:
        return Life(server, trace)


TAKING = """
from hookserve.hookspecs import Endpoint, ModelEntry, hookimpl


@hookimpl
def register_model():
    return [ModelEntry("OPTForCausalLM", "nowhere:Model"), *[ModelEntry("Toy", "toy:Toy")] * 2]


@hookimpl
def endpoint():
    return Endpoint("toy", "toy:Routes")
"""
OTHERS = {"unwanted": "", "taking": TAKING, "unlucky": "raise ValueError('no luck')"}


@pytest.fixture(scope="module")
def one_worker(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """The worker is in the engine's process. Other plugins are installed too: one is blocked, one
    fails, one takes a built-in's name and declares a route that nobody opens."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "site").mkdir()
    for name, source in OTHERS.items():
        install_plugin(folder / "site", f"{name}-dist", {name: source})
    args = ["--disable-plugins", "unwanted", "--log-level", "DEBUG"]
    return make_life(folder, tiny_llama, *args)


UNGUARDED = """
import sys

import torch  # before anything of the server

from hookserve.server.cli import main

sys.exit(main(["run", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def two_workers(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Life:
    """Two processes of their own, behind a script that has no ``__name__`` guard and has imported
    torch."""
    folder = tmp_path_factory.mktemp("two")
    script = folder / "script.py"
    script.write_text(UNGUARDED)
    program = [sys.executable, str(script)]
    return make_life(folder, tiny_llama, "--tensor-parallel-size", "2", program=program)


@pytest.fixture(params=["one_worker", "two_workers"])
def life(request: pytest.FixtureRequest) -> Life:
    found: Life = request.getfixturevalue(request.param)
    return found


def test_the_processes_have_their_roles(one_worker: Life, two_workers: Life) -> None:
    assert one_worker.reply["roles"] == {"front": ["front"], "engine": ["engine", "worker"]}
    assert two_workers.reply["roles"] == {
        "front": ["front"],
        "engine": ["engine"],
        "worker 0": ["worker"],
        "worker 1": ["worker"],
    }
    for each in (one_worker, two_workers):
        assert each.reply["unanswered"] == {}
        assert each.reply["pids"]["front"] == each.front
        assert len(set(each.reply["pids"].values())) == len(each.reply["roles"])


def test_every_hook_is_of_a_class_of_its_own() -> None:
    groups = (AT_START, ONCE, OF_A_REQUEST, OF_A_STEP, NOT_HERE, SOMETIMES, {"cli_options"})
    assert sorted(name for group in groups for name in group) == sorted(SPECS)


@pytest.mark.checklist(145)
def test_each_function_ran_where_it_should_and_never_elsewhere(life: Life) -> None:
    steps = set()
    for process, roles in life.reply["roles"].items():
        report = life.report(process)
        assert (report["state"], report["warnings"], report["patches"]) == ("active", [], [])
        hooks = {hook["name"]: hook for hook in report["hooks"]}
        assert sorted(hooks) == sorted(SPECS)
        for name, hook in hooks.items():
            here = bool(set(SPECS[name].roles) & set(roles))
            at = (process, name)
            assert (hook["called_here"], hook["errors"]) == (here, 0), at
            if not here:
                assert (hook["calls"], hook["position"]) == (0, None), at
            elif name in AT_START | ONCE | OF_A_REQUEST:
                assert hook["calls"] == 1, at
            elif name in SOMETIMES:
                assert hook["calls"] >= 1, at
            elif name in OF_A_STEP:
                steps.add(hook["calls"])
            else:
                assert name in NOT_HERE and hook["calls"] == 0, at
    (num_steps,) = steps
    assert num_steps >= PROMPT["max_tokens"], "each step, and in every worker"


def test_the_counters_are_what_the_plugin_itself_has_written(life: Life) -> None:
    for process in life.reply["roles"]:
        counted = {hook["name"]: hook["calls"] for hook in life.report(process)["hooks"]}
        called = {name: count for name, count in counted.items() if count}
        assert called == life.written(process), process


def test_each_process_said_once_that_it_ends_and_no_other_wrote(life: Life) -> None:
    for process in life.reply["roles"]:
        assert life.written(process, after=True)["shutdown"] == 1, process
    pids = set(life.reply["pids"].values())
    assert {pid for pid, _, _ in life.after} == pids
    of_the_command_line = {
        name: count for (_, roles, name), count in life.after.items() if roles == ("cli",)
    }
    assert of_the_command_line.pop("cli_options") == 1
    assert of_the_command_line in ({}, {"settings_schema": 1})


def test_every_worker_says_what_it_built_for_each_op(life: Life) -> None:
    ops = life.reply["ops"]
    assert list(ops) == [name for name, roles in life.reply["roles"].items() if "worker" in roles]
    for rows in ops.values():
        (norm,) = [row for row in rows if row["op"] == "rms_norm"]
        assert (norm["class_name"], norm["owner"]) == ("RMSNorm", "hookserve")
        assert norm["built"] == 5
        assert norm["calls"] >= 5 * PROMPT["max_tokens"]


def test_the_metrics_know_every_process(life: Life) -> None:
    line = 'hookserve_hook_errors_total{{hook="process_started",plugin="{}",process="{}"}} 0.0'
    for process in life.reply["roles"]:
        assert line.format(every_hook.IDENTITY, process) in life.metrics


# -- the log while a process starts --------------------------------------------------------------

ROW = re.compile(r"^\| ([A-Z]+) \| `(.+?)` \| .+ \|$", re.MULTILINE)


def lines_to_look_for(source_root: Path) -> list[re.Pattern[str]]:
    """The rows of the table as patterns of whole lines; words in capitals stand for anything."""
    page = (source_root / "docs" / "plugins.md").read_text()
    patterns = []
    for level, line in ROW.findall(page):
        anything = re.sub(r"\b[A-Z]{2,}\b|\bN\b", r"\\S.*?", re.escape(line))
        patterns.append(re.compile(rf"\((?:\w+) pid=\d+\) {level} \S+ \S+ \[\S+\] {anything}"))
    assert len(patterns) > 10
    return patterns


def lines_of(life: Life, who: str, process: str) -> list[str]:
    head = f"({who} pid={life.reply['pids'][process]}) "
    return [line for line in life.stderr.splitlines() if line.startswith(head)]


def test_the_front_says_what_the_page_says_in_the_order_of_the_page(
    one_worker: Life, source_root: Path
) -> None:
    lines = lines_of(one_worker, "Front", "front")
    found = []
    for pattern in lines_to_look_for(source_root):
        at = [n for n, line in enumerate(lines) if pattern.fullmatch(line)]
        assert at, pattern.pattern
        found.append(at[0])
    assert found == sorted(found)


def test_each_plugin_has_one_line_at_info_or_above_in_each_process(one_worker: Life) -> None:
    states = {
        every_hook.IDENTITY: "active, loaded in ",
        "unwanted-dist:hookserve:unwanted": "blocked by --disable-plugins",
        "taking-dist:hookserve:taking": "active, loaded in ",
        "unlucky-dist:hookserve:unlucky": "out at stage 'import': ValueError: no luck",
    }
    for who, process in (("Front", "front"), ("Engine", "engine")):
        lines = lines_of(one_worker, who, process)
        lines = [line for line in lines if "[startup_log.py:" in line and " DEBUG " not in line]
        assert len(lines) == len(states)
        for identity, state in states.items():
            (line,) = [line for line in lines if f"] plugin {identity}: {state}" in line]
            is_news = "unlucky" in identity and process == "front"
            assert line.split()[2] == ("WARNING" if is_news else "INFO")


def test_the_engine_tells_its_own_story(one_worker: Life) -> None:
    told = "\n".join(lines_of(one_worker, "Engine", "engine"))
    steps = [
        f"plugin {every_hook.IDENTITY}: discovered (every-dist 1.0) in ",
        "plugin hookserve:builtin:endpoints: skipped: runs in front",
        f"plugin {every_hook.IDENTITY}: loaded in ",
        "registered executor 'uni' -> hookserve.engine.executor:UniProcExecutor",
        "plugin hookserve:builtin:executors: first use of executor 'uni'",
        "plugin hookserve:builtin:models: first use of model 'LlamaForCausalLM'",
    ]
    found = [told.find(step) for step in steps]
    assert -1 not in found, steps[found.index(-1)]
    assert found == sorted(found)


# -- offline -------------------------------------------------------------------------------------

IN_A_THREAD = """
import json, sys, threading

from hookserve.engine import LLM, SamplingParams

model, answer = sys.argv[1:]


def work():
    with LLM(model) as llm:
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=6, ignore_eos=True))
        (mine,) = llm.plugins.describe(all_processes=True)
        (plugin,) = [each for each in mine.plugins if each.name == "all_hooks"]
        counted = {hook.name: hook.calls for hook in plugin.hooks if hook.calls}
        json.dump({"roles": mine.roles, "calls": counted}, open(answer, "w"))


thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_an_llm_made_in_a_thread_of_a_command_is_all_roles_in_one(
    tiny_llama: Path, tmp_path: Path
) -> None:
    site, trace, answer = tmp_path / "site", tmp_path / "trace", tmp_path / "answer.json"
    site.mkdir()
    every_hook.install(site)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD, str(tiny_llama), str(answer)],
        env=clean_environment({"PYTHONPATH": str(site), every_hook.TRACE: str(trace)}),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(answer.read_text())
    assert told["roles"] == ["front", "engine", "worker"]
    calls = every_hook.read_calls(trace)
    assert len({pid for pid, _, _ in calls}) == 1
    written = {name: count for (_, _, name), count in calls.items()}
    assert written.pop("shutdown") == 1
    assert told["calls"] == written
    for name in AT_START | ONCE:
        here = bool(set(SPECS[name].roles) & set(told["roles"]))
        assert written.get(name, 0) == here, name
    for name in OF_A_STEP:
        assert written[name] >= 6, name
    assert not written.keys() & OF_A_REQUEST, "these belong to HTTP"
