"""The fault pack: each stage x each policy x each process, in two real servers that have a plugin
for each cell. What came of it, who was named, and that three streams beside it said what they say
without plugins. What ends a process is in ``test_plugin_crashes_e2e``."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import fault_plugins
from every_hook import SPECS
from fault_plugins import EVERYWHERE, IMPORT, FaultPlugin
from fault_table import (
    ALL,
    AT_CALL_3,
    AT_THE_END,
    AT_THE_END_OF_A_REQUEST,
    AWAITABLE,
    CRASHING_AT_THE_END,
    HOSTILE,
    NOT_THERE,
    OF_A_STEP,
    OF_THE_START,
    PROCESSES,
    RAISING,
    SLOW_AT_START,
    SLOW_AT_THE_END,
    SLOW_IN_A_STEP,
    TWICE,
    policy_of,
)
from harness import RunningServer, run_command, wait_until
from meddling_plugins import APART_IDENTITY, OTHERS, PATCHERS, PROUD, PROUD_IDENTITY, THREADS
from plugin_folder import install_plugin

FRONT_S, STEP_S, STARTUP_S = 0.5, 0.25, 0.3
TIMES = (
    *("--front-hook-timeout", str(FRONT_S)),
    *("--step-hook-timeout", str(STEP_S)),
    *("--startup-hook-timeout", str(STARTUP_S)),
)


# -- the table -------------------------------------------------------------------------------------


def test_the_table_has_each_policy_in_each_process() -> None:
    covered = {(policy_of(plugin.hook), plugin.process) for plugin in ALL}
    covered |= {(policy_of(hook), "front") for hook in fault_plugins.ASKED}
    policies = {info.failure for info in SPECS.values()}
    for policy, (process, roles) in itertools.product(policies, PROCESSES.items()):
        can_be = any(
            info.failure == policy and set(info.roles) & set(roles) for info in SPECS.values()
        )
        assert can_be is ((policy, process) not in NOT_THERE), (policy, process)
        assert can_be is ((policy, process) in covered), (policy, process)


# -- the servers -----------------------------------------------------------------------------------

PROMPTS = [[1, 2, 3], [7, 8, 9], [40, 41]]
MAX_TOKENS = 100
ASKED_FAULTS = {**RAISING, "answers 7": "TypeError", HOSTILE: "TypeError", "sleeps long": ""}
CASES = list(itertools.product(fault_plugins.ASKED, ASKED_FAULTS))
PAIR = {"prompt": [5], "max_tokens": 1, "ignore_eos": True}


def stream(server: RunningServer, prompt: list[int]) -> str:
    body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    text = ""
    with (
        server.client() as client,
        client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply,
    ):
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                text += event["choices"][0]["text"]
    return text


def three_streams(server: RunningServer, beside: Callable[[], Any] = lambda: None) -> list[str]:
    """Their texts; meanwhile ``beside`` runs."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        texts = pool.map(lambda prompt: stream(server, prompt), PROMPTS)
        beside()
        return list(texts)


def three_at_once(server: RunningServer) -> list[str]:
    """The same texts by one request, so that they are surely computed at the same time, which is
    more than the KV cache of one of the servers holds."""
    body = {"prompt": PROMPTS, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    choices = server.post("/v1/completions", body).json()["choices"]
    return [each["text"] for each in sorted(choices, key=lambda each: int(each["index"]))]


class Life:
    """One life of a server with the plugins of the processes that it has."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.texts = [three_streams(server)]
        self.replies: dict[tuple[str, str], httpx.Response] = {}
        self.texts.append(three_streams(server, lambda: self.ask(server)))
        self.texts.append(three_at_once(server))
        switched_off = "file:front_request_finished_sleeps_long: hook request_finished is switched"
        if "front_request_finished" in server.stderr:
            wait_until(lambda: switched_off in server.stderr, 10, "the end of the last requests")
        self.plugins = server.get("/v1/plugins").json()
        self.witness = server.get("/witness")
        server.signal(signal.SIGTERM)
        self.exit_code = server.wait_exit(20)
        self.stderr = server.stderr
        self.lines = self.stderr.splitlines()

    def ask(self, server: RunningServer) -> None:
        """What fails in the front because of a plugin that is asked about it."""

        def send(case: tuple[str, str]) -> httpx.Response:
            return server.post("/v1/completions", PAIR, headers={"X-Fault": "/".join(case)})

        with ThreadPoolExecutor(8) as pool:
            self.replies = dict(zip(CASES, pool.map(send, CASES), strict=True))

    def reports(self, identity: str) -> dict[str, dict[str, Any]]:
        """Process to report."""
        return {
            process: report
            for process, reports in self.plugins["processes"].items()
            for report in reports
            if report["identity"] == identity
        }

    def said(self, *parts: str) -> list[str]:
        """The lines of the log with all of these."""
        return [line for line in self.lines if all(part in line for part in parts)]


def start_life(folder: Path, model: Path, processes: Sequence[str], *flags: str) -> Life:
    (folder / "site").mkdir()
    install_plugin(
        folder / "site", "proud-dist", {"proud": PROUD}, entries={"proud": "proud:plugin"}
    )
    only = "roles = ['worker']"
    install_plugin(folder / "site", "apart-dist", {"apart": THREADS}, toml=only)
    mine = [plugin for plugin in ALL if plugin.process in (*processes, EVERYWHERE)]
    loaded = fault_plugins.write(folder, mine)
    if "front" in processes:
        loaded += fault_plugins.write_asked(folder)
    for name, source in OTHERS.items():
        (folder / f"{name}.py").write_text(source)
        loaded += ["--plugin", str(folder / f"{name}.py")]
    args = [str(model), *TIMES, *loaded, *flags, "--max-model-len", "128"]
    with RunningServer(args, env={"PYTHONPATH": str(folder / "site")}) as server:
        return Life(server)


@pytest.fixture(scope="module")
def lives(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Life]:
    """Both at a time: front and engine, which has not the KV cache for three streams at a time,
    and the server with two workers."""
    cache, two = ("--num-gpu-blocks-override", "16"), ("--tensor-parallel-size", "2")
    wanted = [(("front", "engine"), cache), (("worker",), two)]
    folders = [tmp_path_factory.mktemp("life") for _ in wanted]
    with ThreadPoolExecutor(len(wanted)) as pool:
        begun = [
            pool.submit(start_life, folder, tiny_llama, processes, *flags)
            for folder, (processes, flags) in zip(folders, wanted, strict=True)
        ]
        return [life.result() for life in begun]


@pytest.fixture(scope="module")
def one_worker(lives: list[Life]) -> Life:
    return lives[0]


@pytest.fixture(scope="module")
def two_workers(lives: list[Life]) -> Life:
    return lives[1]


@pytest.fixture
def life_of(request: pytest.FixtureRequest) -> Callable[[FaultPlugin], Life]:
    def find(plugin: FaultPlugin) -> Life:
        name = "two_workers" if plugin.process == "worker" else "one_worker"
        life: Life = request.getfixturevalue(name)
        return life

    return find


@pytest.fixture(params=["one_worker", "two_workers"])
def life(request: pytest.FixtureRequest) -> Life:
    found: Life = request.getfixturevalue(request.param)
    return found


def each(plugins: Sequence[FaultPlugin]) -> Any:
    return pytest.mark.parametrize("plugin", plugins, ids=[plugin.name for plugin in plugins])


LifeOf = Callable[[FaultPlugin], Life]
HEADS = {
    "front": ["(Front pid="],
    "engine": ["(Engine pid="],
    "worker": ["(Worker 0 ", "(Worker 1 "],
}


def names_of(process: str) -> list[str]:
    """What the table calls a process is called so in the reports."""
    return ["worker 0", "worker 1"] if process == "worker" else [process]


# -- what came of it -------------------------------------------------------------------------------


def test_three_streams_beside_all_of_it_say_what_they_say_alone(
    tiny_server: RunningServer, one_worker: Life, two_workers: Life
) -> None:
    alone = [stream(tiny_server, prompt) for prompt in PROMPTS]
    assert all(len(text) > 30 for text in alone)
    for life in (one_worker, two_workers):
        assert life.texts == [alone, alone, alone]


def test_the_server_ends_when_it_is_told_to(life: Life) -> None:
    assert life.exit_code == 0
    assert "Traceback" not in life.stderr.split("stopping: 0 requests open", 1)[1]


STAGES = {IMPORT: "import", "register_model": "register", "hf_config": "register"}


def error_at_start(plugin: FaultPlugin) -> str:
    if plugin.fault in RAISING:
        raised = RAISING[plugin.fault]
        return raised if plugin.hook == IMPORT else f"hook {plugin.hook} raised {raised}"
    said = {
        "register_model answers 7": "register_model returned 7; expected ModelEntry, several, or "
        "None",
        "weights answers 7": "hook weights raised TypeError: 'int' object is not iterable",
        f"register_model {HOSTILE}": "hook register_model raised RuntimeError: hands off",
        f"process_started {AWAITABLE}": "hook process_started raised TypeError: hook "
        "process_started cannot wait, and was given an awaitable",
    }
    return said[f"{plugin.hook} {plugin.fault}"]


@each(OF_THE_START)
def test_who_fails_at_the_start_is_out_everywhere(plugin: FaultPlugin, life_of: LifeOf) -> None:
    life, error, stage = life_of(plugin), error_at_start(plugin), STAGES.get(plugin.hook, "run")
    reports = life.reports(plugin.identity)
    assert reports.keys() == life.plugins["processes"].keys()
    for process, report in reports.items():
        assert (report["state"], report["stage"], report["error"]) == ("out", stage, error), process
        assert report["declarations"] == [], process
        is_here = process == plugin.process
        assert is_here or report["reason"].startswith(f"it failed in the {plugin.process} process")
    where = (
        "" if plugin.process == "front" else f"failed in the {plugin.process} process ({stage}: "
    )
    assert life.said("(Front pid=", " WARNING ", plugin.identity, where + error if where else error)


@pytest.mark.parametrize("process", ["engine", "worker"])
def test_who_is_required_and_fails_there_stops_the_start(
    process: str, tiny_llama: Path, tmp_path: Path
) -> None:
    plugin = FaultPlugin(process, "process_started", "exits")
    flags = [*fault_plugins.write(tmp_path, [plugin]), "--require-plugins", plugin.identity]
    if process == "worker":
        flags += ["--tensor-parallel-size", "2"]
    done = run_command(["run", str(tiny_llama), *flags])
    assert done.returncode == 78, done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"plugin {plugin.identity} failed at stage 'run': {error_at_start(plugin)}" in last
    assert "it is required" in last
    assert "Traceback" not in done.stderr


@each(SLOW_AT_START)
def test_who_is_slow_at_the_start_is_told_and_stays(plugin: FaultPlugin, life_of: LifeOf) -> None:
    life = life_of(plugin)
    for process, report in life.reports(plugin.identity).items():
        assert (report["state"], report["error"]) == ("active", None), process
    what = "its import" if plugin.hook == IMPORT else f"hook {plugin.hook}"
    line = f"plugin {plugin.identity}: {what} still runs after {STARTUP_S:g} s"
    for head in HEADS[plugin.process]:
        assert life.said(head, " WARNING ", line)


def test_the_same_thing_twice_is_one(one_worker: Life, two_workers: Life) -> None:
    for life in (one_worker, two_workers):
        for process, report in life.reports(TWICE.identity).items():
            assert report["state"] == "active"
            declared = [(each["kind"], each["name"]) for each in report["declarations"]]
            assert declared == [("model", "Twice")], process


def hooks_of(life: Life, plugin: FaultPlugin) -> list[dict[str, Any]]:
    """Of the plugin's hook, what each process says that has it; the plugin works everywhere."""
    reports = life.reports(plugin.identity)
    assert {report["state"] for report in reports.values()} == {"active"}
    return [
        hook
        for process in names_of(plugin.process)
        for hook in reports[process]["hooks"]
        if hook["name"] == plugin.hook
    ]


KEPT = {"default": ", and the default is kept", "observe": ""}


def error_in_a_step(plugin: FaultPlugin) -> str:
    if plugin.fault in RAISING:
        return RAISING[plugin.fault]
    if plugin.fault == AWAITABLE:
        return f"TypeError: hook {plugin.hook} cannot wait, and was given an awaitable"
    kind = {"answers 7": "int", HOSTILE: "Hostile"}[plugin.fault]
    return f"TypeError: {plugin.hook} returned a {kind}; expected "


@each(OF_A_STEP)
def test_who_fails_in_a_step_is_counted_and_switched_off(
    plugin: FaultPlugin, life_of: LifeOf
) -> None:
    life, error = life_of(plugin), error_in_a_step(plugin)
    is_rare = plugin.hook == "select_victim"
    for hook in hooks_of(life, plugin):
        assert hook["last_error"].startswith(error)
        assert hook["errors"] == hook["calls"]
        assert 1 <= hook["errors"] <= 5 if is_rare else hook["errors"] == 5
        assert hook["switched_off"] is (hook["errors"] == 5)
    failed = f"plugin {plugin.identity} failed in {plugin.hook}{KEPT[policy_of(plugin.hook)]}; "
    off = f"plugin {plugin.identity}: hook {plugin.hook} is switched off: 5 failures in 60 s"
    for head in HEADS[plugin.process]:
        assert len(life.said(head, " WARNING ", failed)) == 1
        assert life.said(head, error)
        assert is_rare or len(life.said(head, " ERROR ", off)) == 1


@each(AT_CALL_3)
def test_one_failure_among_many_calls_is_one_failure(plugin: FaultPlugin, life_of: LifeOf) -> None:
    for hook in hooks_of(life_of(plugin), plugin):
        assert (hook["errors"], hook["last_error"]) == (1, "ValueError: broken")
        assert hook["calls"] > 3 and not hook["switched_off"]
    failed = f"plugin {plugin.identity} failed in {plugin.hook}"
    for head in HEADS[plugin.process]:
        assert len(life_of(plugin).said(head, " WARNING ", failed)) == 1


@each(SLOW_IN_A_STEP)
def test_who_is_slow_in_a_step_is_switched_off_after_that_call(
    plugin: FaultPlugin, life_of: LifeOf
) -> None:
    life = life_of(plugin)
    for hook in hooks_of(life, plugin):
        assert (hook["calls"], hook["errors"], hook["switched_off"]) == (1, 0, True)
    off = f"plugin {plugin.identity}: hook {plugin.hook} is switched off: one call took "
    for head in HEADS[plugin.process]:
        (line,) = life.said(head, " ERROR ", off)
        assert line.endswith(f" s; it has {STEP_S:g} s")


# -- around a request ------------------------------------------------------------------------------


@pytest.mark.parametrize(("hook", "fault"), CASES)
def test_who_fails_when_asked_about_a_request_fails_that_request(
    hook: str, fault: str, one_worker: Life
) -> None:
    reply = one_worker.replies[hook, fault]
    name = f"file:asked_{hook}"
    kind = "TimeoutError" if fault == "sleeps long" else ASKED_FAULTS[fault].split(":")[0]
    error = reply.json()["error"]
    if hook == "authenticate":
        assert (reply.status_code, error["code"]) == (401, "authentication_failed")
    else:
        assert (reply.status_code, error["code"]) == (500, "plugin_error")
        assert error["message"] == f"the plugin {name} failed in {hook} with {kind}"
    assert one_worker.said("(Front pid=", f"plugin {name} ", kind)


@pytest.mark.parametrize("hook", fault_plugins.ASKED)
def test_who_is_asked_about_requests_is_asked_again(hook: str, one_worker: Life) -> None:
    report = one_worker.reports(f"file:asked_{hook}")["front"]
    counted = next(each for each in report["hooks"] if each["name"] == hook)
    assert (report["state"], counted["switched_off"]) == ("active", False)
    assert counted["errors"] == len(ASKED_FAULTS)
    assert counted["calls"] >= 2 * len(PROMPTS) + len(ASKED_FAULTS)


@each(AT_THE_END_OF_A_REQUEST)
def test_who_fails_when_a_request_is_over_is_counted_and_switched_off(
    plugin: FaultPlugin, one_worker: Life
) -> None:
    (hook,) = hooks_of(one_worker, plugin)
    is_slow = plugin.fault == "sleeps long"
    said = {"sleeps long": f"no end within {FRONT_S:g} s", "answers 7": "TypeError: "}
    error = RAISING.get(plugin.fault) or said[plugin.fault]
    assert hook["switched_off"]
    assert hook["errors"] >= (1 if is_slow else 5)
    failed = f"plugin {plugin.identity} failed in {plugin.hook}; further failures"
    off = f"plugin {plugin.identity}: hook {plugin.hook} is switched off: "
    assert len(one_worker.said("(Front pid=", " WARNING ", failed)) == 1
    assert one_worker.said("(Front pid=", error)
    (line,) = one_worker.said("(Front pid=", " ERROR ", off)
    assert line.endswith(f"it has {FRONT_S:g} s" if is_slow else "5 failures in 60 s")


# -- at the end ------------------------------------------------------------------------------------


@each(AT_THE_END)
def test_who_fails_at_the_end_is_told(plugin: FaultPlugin, life_of: LifeOf) -> None:
    line = f"plugin {plugin.identity} failed in shutdown: {RAISING[plugin.fault]}"
    for head in HEADS[plugin.process]:
        assert len(life_of(plugin).said(head, " WARNING ", line)) == 1


@each(SLOW_AT_THE_END)
def test_who_is_slow_at_the_end_is_waited_for_so_long(plugin: FaultPlugin, life_of: LifeOf) -> None:
    """In the front as long as it has, in others until the front ends them."""
    said = life_of(plugin).said(f"plugin {plugin.identity} failed in shutdown: TimeoutError")
    assert bool(said) is (plugin.process == "front")


@each(CRASHING_AT_THE_END)
def test_who_crashes_at_the_end_is_told(plugin: FaultPlugin, life_of: LifeOf) -> None:
    """By the process that waits for the end of the other, and all the same the end is a clean one
    for who asked for it."""
    ended = f" was killed by SIGSEGV while the code of plugin {plugin.identity} ran"
    waits = "(Front pid=" if plugin.process == "engine" else "(Engine pid="
    lines = life_of(plugin).said(waits, " WARNING ", ended)
    assert len(lines) == len(names_of(plugin.process))
    assert life_of(plugin).exit_code == 0


# -- what plugins do to their process --------------------------------------------------------------


def test_what_a_plugin_that_works_did_is_told_and_what_is_not_its_own_is_back(life: Life) -> None:
    back = "; what was there before is back"
    for process, report in life.reports("file:patches_stays").items():
        assert (report["state"], report["patches"]) == ("active", [])
        told = report["warnings"]
        # The variable is inherited by the front's children: there it is nothing new.
        assert ("changed os.environ: FAULT_stays" in told) is (process == "front")
        assert "changed warnings: filters" in told, process
        assert "changed loggers: root handlers" in told, process
        assert f"changed loggers: hookserve disabled{back}" in told, process
        # The children ignore SIGTERM themselves.
        signals = "SIGUSR1, SIGTERM" if process == "front" else "SIGUSR1"
        assert f"changed signal handlers: {signals}{back}" in told, process
        if process == "front":
            for line in told:
                assert life.said("(Front pid=", " WARNING ", f"plugin file:patches_stays: {line}")


@pytest.mark.parametrize("name", ["fails", "behind"])
def test_what_a_plugin_did_is_undone_where_it_goes_out(name: str, life: Life) -> None:
    reports = life.reports(f"file:patches_{name}")
    for report in reports.values():
        assert (report["state"], report["stage"]) == ("out", "import")
        assert (report["error"], report["patches"]) == ("ValueError: broken", [])
    told = reports["front"]["warnings"]
    assert f"changed os.environ: FAULT_{name}; undone" in told
    assert "changed host code: hookserve.hookspecs.host:Host.problems; undone" in told


def test_nothing_is_left_but_of_who_works(life: Life) -> None:
    assert life.witness.status_code == 200
    seen = life.witness.json()
    assert seen["environ"] == ["FAULT_stays"]
    assert [name for name in seen["handlers"] if name in PATCHERS] == ["stays"]
    assert [name for name in seen["filters"] if name in PATCHERS] == ["stays"]
    assert seen["silenced"] is True, "as who works wanted it, and it is told"
    assert seen["disabled"] is False
    assert "SIG_IGN" not in seen["SIGUSR1"] + seen["SIGTERM"]
    assert seen["problems"] == "hookserve.hookspecs.host"


def test_threads_are_told_and_do_not_keep_the_server(life: Life) -> None:
    for report in life.reports("file:starts_threads").values():
        assert report["state"] == "active"
        assert report["warnings"] == ["started 1 thread: runaway", "started 1 thread: late runaway"]
    assert {"runaway", "late runaway"} <= set(life.witness.json()["threads"])
    assert life.said("(Front pid=", "left behind: ", "runaway")


def test_what_is_done_behind_the_front_alone_is_told_there(life: Life) -> None:
    for process, roles in life.plugins["roles"].items():
        report = life.reports(APART_IDENTITY)[process]
        assert report["state"] == ("active" if "worker" in roles else "other role")
        head = f"pid={life.plugins['pids'][process]}) WARNING "
        for thread in ("runaway", "late runaway"):
            said = life.said(head, f"plugin {APART_IDENTITY}: started 1 thread: {thread}")
            assert len(said) == ("worker" in roles), process


def test_an_object_that_nobody_can_look_at_is_a_plugin(life: Life) -> None:
    for process, report in life.reports(PROUD_IDENTITY).items():
        assert (report["state"], report["error"], report["warnings"]) == ("active", None, [])
        calls = {hook["name"]: (hook["calls"], hook["errors"]) for hook in report["hooks"]}
        assert calls["hf_config"] == (1, 0), process
        steps, errors = calls["before_step"]
        has_worker = "worker" in life.plugins["roles"][process]
        assert errors == 0 and (steps >= MAX_TOKENS if has_worker else steps == 0), process
