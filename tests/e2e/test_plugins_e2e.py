"""Third-party plugins in real processes: what they contribute acts where it must and is imported
nowhere else, and a broken one harms nobody but itself."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer, run_command, wait_until
from plugin_folder import install_plugin
from tiny_llama import write_tiny_llama

Start = Callable[..., RunningServer]
Events = list[dict[str, Any]]

PROMPT = {"prompt": [1, 2, 3], "max_tokens": 6, "temperature": 0, "ignore_eos": True}


# -- the toy package, as a wheel -----------------------------------------------------------------


@pytest.fixture(scope="module")
def toy_site(source_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy package built into a wheel and installed into a folder of its own, offline."""
    base = tmp_path_factory.mktemp("toy")
    shutil.copytree(source_root / "tests" / "toys" / "hookserve_toy", base / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    wheels, site = base / "wheels", base / "site"
    subprocess.run(
        [*pip, "wheel", *offline, "--wheel-dir", str(wheels), str(base / "source")],
        check=True,
        timeout=120,
    )
    (wheel,) = wheels.glob("hookserve_toy-1.2.3-*.whl")
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel)],
        check=True,
        timeout=120,
    )
    return site


@pytest.fixture(scope="module")
def toy_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "toy"
    return write_tiny_llama(folder, architecture="ToyForCausalLM")


def read_trace(path: Path) -> Events:
    return [json.loads(line) for line in path.read_text().splitlines()]


class ToyRun:
    """One life of a server with the toy package: what it answered, who it was, what was noted."""

    def __init__(self, server: RunningServer, trace: Path) -> None:
        self.front, self.engine = server.pid, server.engine_pid
        self.reply = server.post("/v1/completions", PROMPT).json()
        self.route = server.get("/toy").json()
        self.plugins = server.get("/v1/plugins").json()
        server.signal(signal.SIGTERM)
        self.exit_code = server.wait_exit(30)
        self.stderr = server.stderr
        self.events = read_trace(trace)

    def of(self, event: str) -> Events:
        return [one for one in self.events if one["event"] == event]

    def importers(self, module: str) -> list[int]:
        return [one["pid"] for one in self.of("import") if one["module"] == module]


@pytest.fixture(scope="module")
def toy_run(
    toy_site: Path, toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> ToyRun:
    trace = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    env = {"PYTHONPATH": str(toy_site), "TOY_TRACE": str(trace)}
    args = [str(toy_checkpoint), "--enable-endpoints", "toy-front", "--log-stats-interval", "0.5"]
    with RunningServer(args, env=env) as server:
        return ToyRun(server, trace)


def test_the_model_is_the_plugins(toy_run: ToyRun) -> None:
    assert toy_run.reply["choices"][0]["text"] == "AAAAAA"


def test_the_model_is_imported_in_the_engine_alone(toy_run: ToyRun) -> None:
    assert toy_run.importers("hookserve_toy.model") == [toy_run.engine]


def test_an_entry_module_is_imported_once_in_each_of_its_roles(toy_run: ToyRun) -> None:
    assert sorted(toy_run.importers("hookserve_toy.entry_model")) == sorted(
        [toy_run.front, toy_run.engine]
    )
    assert toy_run.importers("hookserve_toy.entry_front") == [toy_run.front]


def test_the_route_answers_and_knows_the_engine(toy_run: ToyRun) -> None:
    assert toy_run.route == {"toy": True, "engine_running": True}
    assert toy_run.importers("hookserve_toy.routes") == [toy_run.front]
    assert [one["pid"] for one in toy_run.of("endpoint_started")] == [toy_run.front]
    assert [one["pid"] for one in toy_run.of("endpoint_stopped")] == [toy_run.front]


def test_the_stat_logger_is_built_once_and_told(toy_run: ToyRun) -> None:
    assert toy_run.importers("hookserve_toy.stats") == [toy_run.front]
    assert [one["engine_index"] for one in toy_run.of("stat_logger_built")] == [0]
    assert len(toy_run.of("stat_logger_initialized")) == 1
    assert [one["pid"] for one in toy_run.of("stat_logger_told")] == [toy_run.front]


def test_a_finished_request_is_told_once_though_the_object_has_two_names(toy_run: ToyRun) -> None:
    (told,) = toy_run.of("request_finished")
    assert told["pid"] == toy_run.front
    assert (told["reason"], told["completion_tokens"]) == ("length", 6)


def test_each_process_is_told_its_roles_at_start_and_end(toy_run: ToyRun) -> None:
    roles = {toy_run.front: ["front"], toy_run.engine: ["engine", "worker"]}
    for event in ("process_started", "shutdown"):
        told = toy_run.of(event)
        assert {one["pid"]: one["roles"] for one in told} == roles, event
        assert len(told) == 2, event
    assert toy_run.exit_code == 0, toy_run.stderr


def test_a_platform_that_is_not_here_is_asked_and_not_imported(toy_run: ToyRun) -> None:
    asked = toy_run.of("platform")
    assert {one["pid"] for one in asked} == {toy_run.front, toy_run.engine}
    assert not any(one["wanted"] for one in asked)
    assert toy_run.importers("hookserve_toy.platform") == []


def test_a_platform_that_is_here_beats_the_built_in_one(
    toy_site: Path, toy_checkpoint: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    env = {"PYTHONPATH": str(toy_site), "TOY_TRACE": str(trace), "TOY_PLATFORM": "1"}
    with RunningServer([str(toy_checkpoint)], env=env) as server:
        engine = server.engine_pid
        assert server.post("/v1/completions", PROMPT).status_code == 200
    importers = [
        one["pid"]
        for one in read_trace(trace)
        if one["event"] == "import" and one["module"] == "hookserve_toy.platform"
    ]
    assert engine in importers


def test_listing_plugins_imports_none_of_them(toy_site: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    env = {"PYTHONPATH": str(toy_site), "TOY_TRACE": str(trace)}
    listed = run_command(["plugins", "list", "--json"], env=env)
    assert listed.returncode == 0, listed.stderr
    assert "hookserve-toy:hookserve:toy-model" in listed.stdout
    assert not trace.exists()
    loaded = run_command(["plugins", "list", "--load", "--json"], env=env)
    assert loaded.returncode == 0, loaded.stderr
    assert trace.exists()


def test_a_blocked_plugin_is_not_imported(toy_site: Path, tiny_llama: Path, tmp_path: Path) -> None:
    """And its routes are not there; blocked by the allow list, by the deny list, by all or none."""
    denied = "toy-model,toy-front,hookserve-toy/toy-front-again"
    for flags in (["--no-plugins"], ["--disable-plugins", denied], ["--plugins", ""]):
        trace = tmp_path / f"trace{len(list(tmp_path.iterdir()))}.jsonl"
        env = {"PYTHONPATH": str(toy_site), "TOY_TRACE": str(trace)}
        done = run_command(["run", str(tiny_llama), "--dry-run", *flags], env=env)
        assert done.returncode == 0, done.stderr
        assert not trace.exists(), flags


# -- broken and conflicting plugins ---------------------------------------------------------------

HEADER = "from hookserve.hookspecs import Endpoint, ModelEntry, hookimpl\n"
ROUTE = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route


class Routes:
    def routes(self):
        return [Route("/broken", lambda request: PlainTextResponse("reached"))]


@hookimpl
def endpoint():
    return Endpoint("broken", Routes)
"""
BROKEN = {
    "raises at import": ("raise ValueError('cannot be imported')", "import", "ValueError"),
    "raises after another hook succeeded": (
        HEADER
        + ROUTE
        + """
@hookimpl(trylast=True)
def register_model():
    raise RuntimeError("no model today")
""",
        "register",
        "RuntimeError",
    ),
    "exits at import": ("import sys\nsys.exit(3)", "import", "SystemExit"),
    "exits in a hook": (
        HEADER
        + ROUTE
        + """
@hookimpl
def process_started(roles):
    import sys
    sys.exit(4)
""",
        "run",
        "SystemExit",
    ),
    "fails in the engine alone": (
        HEADER
        + ROUTE
        + """
@hookimpl
def process_started(roles):
    if "engine" in roles:
        raise OSError("only here")
""",
        "run",
        "OSError",
    ),
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_plugin_is_out_everywhere_and_the_server_serves(
    what: str, site: Path, tiny_llama: Path, running_server: Start
) -> None:
    source, stage, error = BROKEN[what]
    install_plugin(site, "broken-toy", {"broken_toy": source})
    server = running_server(
        [str(tiny_llama), "--enable-endpoints", "broken_toy"], env={"PYTHONPATH": str(site)}
    )
    assert server.post("/v1/completions", PROMPT).status_code == 200
    assert server.status("/broken") == 404
    identity = "broken-toy:hookserve:broken_toy"
    reports = find_reports(server.get("/v1/plugins").json(), identity)
    assert set(reports) == {"front", "engine"}
    for process, report in reports.items():
        text = json.dumps(report)
        assert stage in text, (process, report)
        assert error in text, (process, report)
    assert identity in server.stderr
    assert error in server.stderr


def find_reports(plugins: dict[str, Any], identity: str) -> dict[str, dict[str, Any]]:
    """Process name to the report of one plugin in ``GET /v1/plugins``."""
    return {
        process: report
        for process, reports in plugins["processes"].items()
        for report in reports
        if report["identity"] == identity
    }


def test_a_required_plugin_that_is_broken_stops_the_start(site: Path, tiny_llama: Path) -> None:
    install_plugin(site, "broken-toy", {"broken_toy": BROKEN["raises at import"][0]})
    done = run_command(
        ["run", str(tiny_llama), "--require-plugins", "broken-toy/broken_toy"],
        env={"PYTHONPATH": str(site)},
    )
    assert done.returncode == 78, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "broken-toy:hookserve:broken_toy" in last
    assert "cannot be imported" in last
    assert "Traceback" not in done.stderr


CLAIM = (
    HEADER
    + """
@hookimpl
def register_model():
    return ModelEntry("ClaimedForCausalLM", "{package}.model:Model")
"""
)


def claims(site: Path) -> list[str]:
    for name in ("one", "two"):
        source = CLAIM.format(package=f"toy_{name}")
        install_plugin(site, f"toy-{name}", {f"toy_{name}": source})
    return [f"toy-{name}:hookserve:toy_{name}" for name in ("one", "two")]


def test_two_claims_on_one_architecture_stop_the_start_with_both_names(
    site: Path, tiny_llama: Path
) -> None:
    identities = claims(site)
    done = run_command(["run", str(tiny_llama)], env={"PYTHONPATH": str(site)})
    assert done.returncode == 78, done.stderr
    for word in (*identities, "ClaimedForCausalLM", "--prefer"):
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_the_operator_decides_between_two_claims(site: Path, tiny_llama: Path) -> None:
    identities = claims(site)
    done = run_command(
        [
            "run",
            str(tiny_llama),
            "--dry-run",
            "--prefer",
            f"model:ClaimedForCausalLM={identities[1]}",
        ],
        env={"PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr


def test_routes_that_nobody_opened_are_closed_and_it_is_said_how(
    site: Path, tiny_llama: Path, running_server: Start
) -> None:
    install_plugin(site, "closed-toy", {"closed_toy": HEADER + ROUTE})
    server = running_server([str(tiny_llama)], env={"PYTHONPATH": str(site)})
    assert server.status("/broken") == 404
    (line,) = [line for line in server.stderr.splitlines() if "--enable-endpoints" in line]
    assert "closed-toy" in line


def test_the_unknown_architecture_names_what_could_have_had_it(site: Path, tmp_path: Path) -> None:
    """The nearest names, and every plugin that was blocked or has failed."""
    install_plugin(site, "broken-toy", {"broken_toy": BROKEN["raises at import"][0]})
    install_plugin(site, "blocked-toy", {"blocked_toy": HEADER + ROUTE})
    model = write_tiny_llama(tmp_path / "model", architecture="LamaForCausalLM")
    done = run_command(
        ["run", str(model), "--disable-plugins", "blocked-toy/blocked_toy"],
        env={"PYTHONPATH": str(site)},
    )
    assert done.returncode == 78, done.stderr
    for word in ("LamaForCausalLM", "LlamaForCausalLM", "broken-toy", "blocked-toy"):
        assert word in done.stderr, word
    assert "Traceback" not in done.stderr


# -- a plugin in one file --------------------------------------------------------------------------


@pytest.fixture
def hello(source_root: Path, tmp_path: Path) -> Iterator[Path]:
    """The plugin of the README, as the README prints it."""
    readme = (source_root / "README.md").read_text()
    (block,) = re.findall(r"`hello\.py`:\n\n```python\n(.*?)```", readme, re.DOTALL)
    assert len(block.strip().splitlines()) <= 12
    file = tmp_path / "hello.py"
    file.write_text(block)
    yield file


def test_the_readmes_plugin_acts(hello: Path, tiny_llama: Path, running_server: Start) -> None:
    server = running_server([str(tiny_llama), "--plugin", "./hello.py"], cwd=hello.parent)
    assert server.get("/hello").text.startswith("hello from ")
    server.post("/v1/completions", PROMPT)
    # The hook runs beside the reply, not before it.
    wait_until(lambda: "hello: 6 tokens" in server.stderr, 10, "the plugin's line in the log")
