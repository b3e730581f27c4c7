"""``CrashMark``: while a plugin's code runs, whoever else has the memory reads its name there."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hookserve.hookspecs import hookimpl
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.crash_mark import CrashMark


@pytest.fixture
def mark() -> Iterator[CrashMark]:
    made = CrashMark.create()
    yield made
    made.close()


def test_it_is_nobodys_at_first(mark: CrashMark) -> None:
    assert mark.read() is None


def test_it_names_whoever_runs_and_then_whoever_ran_around_it(
    mark: CrashMark, make_host: Any
) -> None:
    seen: list[tuple[str, str | None]] = []

    class Plugin:
        def note(self, where: str) -> None:
            seen.append((where, mark.read()))

    class Outer(Plugin):
        def __init__(self) -> None:
            self.note("made")

        @hookimpl
        def process_started(self) -> None:
            self.note("outer begins")
            host.calls.after_schedule("output")
            self.note("outer ends")

        @hookimpl
        def select_victim(self) -> None:
            self.note("asked")

    class Inner(Plugin):
        @hookimpl
        def after_schedule(self) -> None:
            self.note("inner")

    class Fails(Plugin):
        @hookimpl
        def after_schedule(self) -> None:
            raise ValueError

    roles = ["engine", "worker"]
    host = make_host(Outer(), Inner(), Fails(), roles=roles, crash_mark=mark)
    assert mark.read() is None
    host.calls.process_started(host.roles, None)
    assert mark.read() is None
    host.calls.select_victim([])
    assert mark.read() is None
    assert seen == [
        ("made", None),  # an object is made by whoever hands it over
        ("outer begins", "object:Outer"),
        ("inner", "object:Inner"),
        ("outer ends", "object:Outer"),
        ("asked", "object:Outer"),
    ]


def test_it_is_the_same_memory_for_whoever_opens_it(mark: CrashMark, make_host: Any) -> None:
    class Observer:
        @hookimpl
        def before_step(self) -> None: ...

    host = make_host(Observer(), crash_mark=CrashMark.open(mark.fileno()), roles=["worker"])
    plugin = next(each for each in host.plugins if each.identity == "object:Observer")
    with enter(plugin):
        assert mark.read() == "object:Observer"
        with enter(None):
            assert mark.read() == "object:Observer", "its code is still on the stack"
    assert mark.read() is None
    with enter(plugin):
        mark.clear()
        assert mark.read() is None


def test_a_thread_that_has_entered_nothing_leaves_nothing(mark: CrashMark, make_host: Any) -> None:
    class Observer:
        @hookimpl
        def before_step(self) -> None: ...

    host = make_host(Observer(), crash_mark=mark, roles=["worker"])
    plugin = next(each for each in host.plugins if each.identity == "object:Observer")

    def work() -> None:
        with enter(plugin):
            pass

    with enter(plugin):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert mark.read() is None


CHILD = """
import os, sys
from hookserve.hookspecs import Host, PluginSettings
from hookserve.hookspecs.crash_mark import CrashMark

mark = CrashMark.open(int(sys.argv[1]))
host = Host(["worker"], PluginSettings(files=sys.argv[2:]), crash_mark=mark)
host.calls.before_step(None)
host.registry("model").resolve("Crashes")
"""
QUIET = "from hookserve.hookspecs import hookimpl\n\n@hookimpl\ndef before_step(): ...\n"
AT = {
    "import": "import os\nos._exit(7)",
    "reading its hooks": """
        import os
        class Plugin:
            def __dir__(self):
                os._exit(7)
        import sys
        sys.modules[__name__].__class__ = type("M", (type(sys),), {"__dir__": Plugin.__dir__})
    """,
    "registration": """
        import os
        from hookserve.hookspecs import hookimpl
        @hookimpl
        def register_model():
            os._exit(7)
    """,
    "a declaration": """
        import os
        from hookserve.hookspecs import hookimpl
        @hookimpl
        def register_model():
            yield os._exit(7)
    """,
    "a step": """
        import os
        from hookserve.hookspecs import hookimpl
        @hookimpl
        def before_step():
            os._exit(7)
    """,
    "resolving": """
        import os, sys
        from hookserve.hookspecs import ModelEntry, hookimpl
        @hookimpl
        def register_model():
            class Late:
                def find_spec(self, name, path=None, target=None):
                    if name == "crashing_module":
                        os._exit(7)
            sys.meta_path.insert(0, Late())
            return ModelEntry("Crashes", "crashing_module:Model")
    """,
}


@pytest.mark.parametrize("stage", AT)
def test_a_process_that_ends_in_a_plugins_code_leaves_its_name(
    stage: str, mark: CrashMark, tmp_path: Any
) -> None:
    files = {"a_quiet": QUIET, "b_crashes": textwrap.dedent(AT[stage]), "c_quiet": QUIET}
    for name, source in files.items():
        (tmp_path / f"{name}.py").write_text(source)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(mark.fileno()), *map(str, tmp_path.glob("*.py"))],
        pass_fds=[mark.fileno()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == 7, child.stderr
    assert mark.read() == "file:b_crashes"
