"""What a plugin changes in its process: undone when it goes out, told when it stays."""

from __future__ import annotations

import builtins
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookserve.hookspecs import (
    Denied,
    Host,
    Plugin,
    PluginError,
    PluginReport,
    RequiredPluginError,
    patch_owners,
)
from hookserve.hookspecs.context import enter, owner_of
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.patch_owners import all_patches
from hookserve.hookspecs.snapshot import Snapshot

MakeHost = Callable[..., Host]

CHANGES = {
    "os.environ: SET": "os.environ['SET'] = 'plugin'",
    "os.environ: TAKEN": "del os.environ['TAKEN']",
    "loggers: root level": "logging.getLogger().setLevel(1)",
    "loggers: root handlers": "logging.getLogger().addHandler(logging.NullHandler())",
    "loggers: hookserve filters": "log.addFilter(lambda record: True)",
    "warnings: filters": "warnings.simplefilter('ignore')",
    "host code: served.code:Server.serve": "code.Server.serve = lambda self: 'plugin'",
    "host code: served.code:Server.more": "code.Server.more = 1",
    "host code: served.code:Server.name": "del code.Server.name",
    "host code: served.code:limit": "code.limit = 2",
    "host data: served.code:table['a']": "code.table['a'] = 2",
    "host data: served.code:words": "code.words.clear()",
    "host data: served.code:kinds": "code.kinds.discard('y')",
    "host data: served.code:Server.names['a']": "code.Server.names.pop('a')",
}
"""What the report calls a change, and the statement that makes it."""

ADDED = {
    "host data: served.code:table['b']": "code.table['b'] = 3",
    "host data: served.code:words": "code.words.append('z')",
    "host data: served.code:kinds": "code.kinds.add('z')",
    "host data: served.code:Server.names['b']": "code.Server.names['b'] = 'c'",
}
"""Changes to what is there to be added to: they stay, and nobody is told."""

PUT_BACK = {
    "signal handlers: SIGTERM": "signal.signal(signal.SIGTERM, lambda *_: None)",
    "loggers: root handlers": "logging.basicConfig(force=True)",
    "loggers: hookserve propagate": "log.propagate = not log.propagate",
    "loggers: hookserve level": "log.setLevel(logging.CRITICAL)",
    "loggers: hookserve.x disabled": "logging.getLogger('hookserve.x').disabled = True",
    "loggers: root logging.disable": "logging.disable()",
}
"""Changes that are undone though the plugin works."""

HEAD = """
import logging, os, signal, sys, warnings
from hookserve.hookspecs import hookimpl
log = logging.getLogger("hookserve")
code = sys.modules["hookserve.served.code"]
"""

HOST_CODE = """
limit = 1
table, words, kinds = {"a": 1}, ["x"], {"y"}
other_name = table

class Server:
    name = "host"
    names = {"a": "b"}

    def serve(self):
        return "host"
"""


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the host, in a process that knows of no patch so far."""
    module = ModuleType("hookserve.served.code")
    exec(HOST_CODE, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(patch_owners, "_places", {})
    return module


@pytest.fixture(autouse=True)
def process(served: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with something to take away, put back in the end whatever became of it."""
    monkeypatch.setenv("TAKEN", "host")
    monkeypatch.delenv("SET", raising=False)
    logging.getLogger("hookserve.x")
    before = logging.NullHandler()
    logging.getLogger().addHandler(before)
    snapshot = Snapshot()
    with warnings.catch_warnings():
        yield
    for change in reversed(snapshot.changes()):
        change.undo()
    logging.getLogger().removeHandler(before)


def write(site: Path, *statements: str, hook: str = "return None", name: str = "changer") -> str:
    path = site / f"{name}.py"
    body = "\n    ".join(hook.splitlines())
    lines = "\n".join(statements)
    path.write_text(f"{HEAD}\n{lines}\n\n@hookimpl\ndef register_model():\n    {body}\n")
    return str(path)


def report_of(host: Host, name: str = "changer") -> PluginReport:
    (report,) = [each for each in host.describe() if each.name == name]
    return report


def labels(snapshot: Snapshot) -> list[str]:
    """What is different now, as reports call it."""
    return [f"{each.namespace.title}: {each.label}" for each in snapshot.changes()]


def shown(label: str) -> str:
    return label.replace(": served", ": hookserve.served")


@pytest.mark.parametrize("label", CHANGES)
def test_a_change_of_a_plugin_that_works_stays_and_is_told(
    label: str, make_host: MakeHost, site: Path
) -> None:
    before = Snapshot()
    host = make_host(files=(write(site, CHANGES[label]),))
    assert labels(before) == [shown(label)]
    report = report_of(host)
    assert report.state == "active"
    assert report.warnings == [f"changed {shown(label)}"]
    assert host.warnings == [f"plugin file:changer: changed {shown(label)}"]
    is_patch = label.startswith("host code")
    assert report.patches == ([shown(label).removeprefix("host code: ")] if is_patch else [])


@pytest.mark.parametrize("label", ADDED)
def test_what_is_added_to_a_table_stays_with_the_plugin(
    label: str, make_host: MakeHost, site: Path
) -> None:
    before = Snapshot()
    host = make_host(files=(write(site, ADDED[label]),))
    assert labels(before) == [shown(label)]
    assert (report_of(host).state, report_of(host).warnings, host.warnings) == ("active", [], [])
    host.deny(Denied("file:changer", "engine", "run", "OSError: no"))
    assert labels(before) == []


@pytest.mark.parametrize("label", PUT_BACK)
def test_what_belongs_to_the_program_is_put_back_and_told(
    label: str, make_host: MakeHost, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = list(logging.getLogger().handlers)
    before = Snapshot()
    host = make_host(files=(write(site, PUT_BACK[label]),))
    report = report_of(host)
    assert report.state == "active"
    assert f"changed {label}; what was there before is back" in report.warnings
    left = [each for each in labels(before) if each != "loggers: root handlers"]
    assert left == []
    assert [each for each in logging.getLogger().handlers if each in handlers] == handlers


STAGES = {
    "import": lambda do: {"statements": [do, "raise OSError('no')"]},
    "hook": lambda do: {"hook": f"{do}\nraise OSError('no')"},
    "generator": lambda do: {"hook": f"yield\n{do}\nraise OSError('no')"},
    "import, then hook": lambda do: {"statements": [do], "hook": "raise OSError('no')"},
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("label", [*CHANGES, "signal handlers: SIGTERM"])
def test_nothing_of_a_plugin_that_fails_is_left(
    label: str, stage: str, make_host: MakeHost, site: Path
) -> None:
    arguments: dict[str, Any] = STAGES[stage]({**CHANGES, **PUT_BACK}[label])
    statements = arguments.pop("statements", [])
    before = Snapshot()
    report = report_of(make_host(files=(write(site, *statements, **arguments),)))
    assert report.state == "out" and report.error is not None and "no" in report.error
    assert labels(before) == []
    assert report.patches == []
    if not label.startswith("signal"):
        assert f"changed {shown(label)}; undone" in report.warnings


def test_a_plugin_that_failed_elsewhere_leaves_nothing_here(
    make_host: MakeHost, site: Path
) -> None:
    before = Snapshot()
    host = make_host(files=(write(site, *CHANGES.values()),))
    assert len(report_of(host).patches) == 4
    host.deny(Denied("file:changer", "engine", "run", "OSError: no"))
    assert labels(before) == []
    assert report_of(host).patches == []
    assert report_of(host).reason == (
        "it failed in the engine process; its modules stay imported here"
    )


def test_nothing_is_left_where_a_required_plugin_stops_the_start(
    make_host: MakeHost, site: Path
) -> None:
    before = Snapshot()
    with pytest.raises(RequiredPluginError):
        make_host(
            files=(write(site, *CHANGES.values(), hook="raise OSError('no')"),),
            require=("changer",),
        )
    assert labels(before) == []


def test_the_changes_of_others_stay(make_host: MakeHost, site: Path, served: ModuleType) -> None:
    """Each of three wraps what it finds, and the one in the middle goes out."""
    wrap = (
        "before = code.Server.serve\n"
        "code.Server.serve = lambda self: before(self) + ' {name}'\n"
        "logging.getLogger().addHandler(logging.NullHandler())\n"
        "logging.getLogger().handlers[-1].name = '{name}'\n"
        "os.environ['{name}'] = '1'"
    )
    files = [write(site, wrap.format(name=name), name=name) for name in ("one", "two", "three")]
    host = make_host(files=tuple(files))
    assert served.Server().serve() == "host one three two", "by identity, three before two"
    host.deny(Denied("file:three", "engine", "run", "OSError: no"))
    named = [getattr(each, "name", None) for each in logging.getLogger().handlers]
    assert [name for name in named if name in ("one", "two", "three")] == ["one", "two"]
    assert [name in os.environ for name in ("one", "two", "three")] == [True, True, False]
    assert served.Server().serve() == "host one three two"
    assert (
        "changed host code: hookserve.served.code:Server.serve; not undone, it was changed again "
        "since" in report_of(host, "three").warnings
    )
    host.deny(Denied("file:two", "engine", "run", "OSError: no"))
    assert served.Server().serve() == "host one three"


def test_a_module_that_the_plugin_is_the_first_to_import_is_watched_too(
    make_host: MakeHost, site: Path, served: ModuleType
) -> None:
    package = ModuleType("hookserve.served")
    package.__path__ = [str(site / "served")]
    sys.modules["hookserve.served"] = package
    (site / "served").mkdir()
    (site / "served" / "later.py").write_text(HOST_CODE)
    patch = "from hookserve.served import later\nlater.Server.serve = lambda self: 'plugin'"
    try:
        host = make_host(files=(write(site, patch),))
        later = sys.modules["hookserve.served.later"]
        assert later.Server().serve() == "plugin"
        assert later.__spec__ is not None and later.__spec__.loader is later.__loader__
        assert report_of(host).patches == ["hookserve.served.later:Server.serve"]
        host.deny(Denied("file:changer", "engine", "run", "OSError: no"))
        assert later.Server().serve() == "host"
        assert not any("snapshot" in type(each).__module__ for each in sys.meta_path)
    finally:
        del sys.modules["hookserve.served"]


def test_what_imports_leave_behind_is_no_change(make_host: MakeHost, site: Path) -> None:
    """A submodule in its package, a filter for one warning of a library's own."""
    quiet = "import hookserve.engine.sampling_params, hookserve.engine.errors"
    filtered = "warnings.filterwarnings('ignore', message='odd', module='odd')"
    host = make_host(files=(write(site, quiet, filtered),))
    assert report_of(host).warnings == [] and report_of(host).patches == []


@pytest.mark.parametrize("works", [True, False])
def test_the_import_of_a_target_is_watched_too(
    works: bool, make_host: MakeHost, site: Path, served: ModuleType
) -> None:
    target = site / f"target_{works}.py"
    end = "class Toy: ..." if works else "raise OSError('no')"
    target.write_text(f"{HEAD}\ncode.Server.serve = lambda self: 'plugin'\n{end}\n")
    entry = f"return ModelEntry('Toy', '{target.stem}:Toy')"
    plugin = write(site, "from hookserve.hookspecs import ModelEntry", hook=entry, name="late")
    host = make_host(files=(plugin,))
    assert report_of(host, "late").warnings == []
    with contextlib.nullcontext() if works else pytest.raises(PluginError, match="no"):
        host.registry("model").resolve("Toy")
    report = report_of(host, "late")
    label = "hookserve.served.code:Server.serve"
    assert report.patches == ([label] if works else [])
    assert report.warnings == [f"changed host code: {label}{'' if works else '; undone'}"]
    assert served.Server().serve() == ("plugin" if works else "host")
    host.deny(Denied("file:late", "engine", "run", "OSError: no"))
    assert served.Server().serve() == "host"


def test_a_patch_tells_whether_it_was_called_since(
    make_host: MakeHost, site: Path, served: ModuleType
) -> None:
    both = "code.Server.serve = lambda self: 'plugin'\ncode.Server.more = lambda self: 2"
    host = make_host(files=(write(site, both),))
    serve, more = ("hookserve.served.code:Server." + name for name in ("serve", "more"))
    assert report_of(host).uncalled_patches == [serve, more]
    held = served.Server.serve
    assert served.Server().serve() == "plugin" and served.Server.serve is held
    assert report_of(host).patches == [serve, more]
    assert report_of(host).uncalled_patches == [more]
    host.deny(Denied("file:changer", "engine", "run", "OSError: no"))
    assert report_of(host).uncalled_patches == []


def test_two_plugins_that_change_one_attribute_are_told(
    make_host: MakeHost, site: Path, served: ModuleType
) -> None:
    change = "code.Server.serve = lambda self, f=code.Server.serve: f(self) + '{}'"
    files = [write(site, change.format(name), name=name) for name in ("first", "second")]
    host = make_host(files=files)
    assert served.Server().serve() == "hostfirstsecond"
    line = "changed hookserve.served.code:Server.serve, which file:first changed before"
    assert line in report_of(host, "second").warnings
    assert not any("before" in told for told in report_of(host, "first").warnings)
    assert report_of(host, "first").uncalled_patches == []


@pytest.mark.parametrize("end", ["pass", "raise OSError('no')"])
def test_threads_stay_and_are_told(make_host: MakeHost, site: Path, end: str) -> None:
    start = (
        "import builtins, threading\n"
        "builtins.stop = threading.Event()\n"
        "for name in ('a', 'b'):\n"
        "    threading.Thread(target=stop.wait, name=name, daemon=True).start()"
    )
    host = make_host(files=(write(site, start, end),))
    try:
        assert report_of(host).warnings == ["started 2 threads: a, b"]
    finally:
        vars(builtins).pop("stop").set()
        for thread in threading.enumerate():
            if thread.name in ("a", "b"):
                thread.join(5)


@pytest.mark.parametrize(
    ("end", "told", "code"),
    [
        ("pass", "a process that it forked from {} returned, and was ended", os.EX_SOFTWARE),
        ("raise OSError('no')", "raised OSError: no, and was ended", os.EX_SOFTWARE),
        ("sys.exit()", "", 0),
    ],
)
def test_a_process_that_a_plugin_forks_is_not_another_host(
    make_host: MakeHost,
    site: Path,
    capfd: pytest.CaptureFixture[str],
    end: str,
    told: str,
    code: int,
) -> None:
    fork = f"child = os.fork()\nif not child:\n    {end}"
    wait = "left = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else None"
    heard = logging.StreamHandler()  # as the server has one
    logging.getLogger("hookserve").addHandler(heard)
    try:
        # The child ends before it comes to the hook, where the parent waits for it.
        host = make_host(files=(write(site, fork, hook=f"global left\n{wait}\nreturn None"),))
    finally:
        logging.getLogger("hookserve").removeHandler(heard)
    assert report_of(host).state == "active"
    assert sys.modules["changer"].left == code
    assert told.format(os.getpid()) in capfd.readouterr().err


def test_a_signal_handler_that_the_program_sets_meanwhile_is_not_the_plugins(
    make_host: MakeHost, site: Path
) -> None:
    """The plugin is loaded in a thread, where nobody can set one."""
    arrived, gate, hosts = threading.Event(), threading.Event(), []
    file = write(site, "import threading", "own = threading.current_thread()", "own.pause()")
    thread: Any = threading.Thread(target=lambda: hosts.append(make_host(files=(file,))))
    thread.pause = lambda: (arrived.set(), gate.wait(10))
    thread.start()
    assert arrived.wait(10)
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        gate.set()
        thread.join(10)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert report_of(hosts[0]).state == "active"


def test_values_that_cannot_be_compared_are_only_told_apart(
    make_host: MakeHost, site: Path, served: ModuleType
) -> None:
    odd = (
        "class Odd:\n"
        "    def __eq__(self, other): raise RuntimeError('compared')\n"
        "    __hash__ = None\n"
        "    def __bool__(self): raise RuntimeError('asked')\n"
        "code.Server.name = Odd()\n"
        "code.limit = Odd()"
    )
    host = make_host(files=(write(site, odd),))
    assert report_of(host).patches == [
        "hookserve.served.code:limit",
        "hookserve.served.code:Server.name",
    ]
    host.deny(Denied("file:changer", "engine", "run", "OSError: no"))
    assert (served.limit, served.Server.name) == (1, "host")


EMBEDDING_PROGRAM = """
import logging, os, signal, sys, warnings
from hookserve.hookspecs.snapshot import Environment, LoggerState, Signals, WarningFilters

logging.basicConfig(level=logging.WARNING)
signal.signal(signal.SIGTERM, lambda *_: None)
watched = [Environment(), Signals(), LoggerState(logging.root)]
before = [each.read() for each in watched]

import hookserve.engine, hookserve.hookspecs, hookserve.server, hookserve.server.cli
from hookserve.server import build_app
assert "torch" not in sys.modules
from hookserve.engine import LLM
llm = LLM(sys.argv[1], plugins=[sys.argv[2]])
assert [each.read() for each in watched] == before
llm.shutdown()
assert [each.read() for each in watched] == before
"""


def test_importing_it_and_an_llm_leave_the_program_its_logs_signals_and_environment(
    tiny_llama: Path, tmp_path: Path
) -> None:
    """Neither does the host itself, nor a plugin that sets up logging and signals as if the
    process were its own."""
    plugin = write(
        tmp_path,
        "logging.basicConfig(level=logging.DEBUG)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        name="rude",
    ).replace("code = ", "")
    text = Path(plugin).read_text().replace('code = sys.modules["hookserve.served.code"]', "")
    Path(plugin).write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", "-c", EMBEDDING_PROGRAM, str(tiny_llama), plugin],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "signal handlers: SIGINT, SIGTERM; what was there before is back" in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("def serve(self): return missing", "raised in what plugin file:changer has put in the"),
        (
            "def serve(self, f=code.Server.serve): return f()",
            "raised below what plugin file:changer",
        ),
    ],
)
def test_an_error_out_of_a_patch_is_told_with_who_made_it(
    make_host: MakeHost, site: Path, served: ModuleType, change: str, said: str
) -> None:
    exec("def fail(): raise OSError('no')", vars(served))
    served.Server.serve = lambda: served.fail()
    host = make_host(files=[write(site, change, "code.Server.serve = serve")])
    plugin = Plugin("some:builtin:one", "one", "builtin", load=lambda: None)

    for _ in range(2):  # the first call goes through what notes it
        with pytest.raises((OSError, NameError)) as caught, enter(plugin):
            served.Server().serve()
        assert said in describe_error(caught.value)
        is_its_own = said.startswith("raised in")
        assert owner_of(caught.value) == ("file:changer" if is_its_own else "some:builtin:one")
    with pytest.raises(ValueError, match="other") as other:
        raise ValueError("other")
    assert describe_error(other.value) == "ValueError: other"
    assert all_patches() == (
        "what plugin file:changer has put in the place of hookserve.served.code:Server.serve"
    )
    host.deny(Denied("file:changer", "engine", "run", "OSError: no"))
    assert describe_error(caught.value).endswith(("OSError: no", "is not defined"))
    assert all_patches() is None


def test_the_hosts_own_code_in_another_place_is_not_a_plugins(
    make_host: MakeHost, site: Path, served: ModuleType
) -> None:
    exec("def fail(): raise OSError('no')", vars(served))
    make_host(files=[write(site, "", "code.Server.serve = staticmethod(code.fail)")])
    with pytest.raises(OSError, match="no") as caught:
        served.Server.serve()
    assert describe_error(caught.value) == "OSError: no"
    assert str(all_patches()).endswith("the place of hookserve.served.code:Server.serve")


def test_a_class_in_the_place_of_another_is_its_plugins_too(
    make_host: MakeHost, site: Path, served: ModuleType
) -> None:
    fails = "class Mine(code.Server):\n    def serve(self): raise OSError('no')"
    make_host(files=[write(site, fails, "code.Server = Mine")])
    with pytest.raises(OSError, match="no") as caught:
        served.Server().serve()
    assert describe_error(caught.value) == (
        "OSError: no; raised in what plugin file:changer has put in the place of "
        "hookserve.served.code:Server"
    )
