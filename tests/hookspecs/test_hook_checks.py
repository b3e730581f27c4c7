"""What is refused at registration, with hook, file and line."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookserve.hookspecs import HostError, hookimpl
from hookserve.hookspecs.checks import IMPL_ATTRIBUTE
from hookserve.hookspecs.manager import PluginManager
from hookserve.hookspecs.report import ProcessReport


def hook(**options: Any) -> Any:
    """A marker with options that our own does not offer."""

    def mark(function: Any) -> Any:
        setattr(function, IMPL_ATTRIBUTE, options)
        return function

    return mark


class Wrapper:
    @hook(wrapper=True)
    def shutdown(self, roles: Any) -> Any:
        yield


class OldWrapper:
    @hook(hookwrapper=True)
    def shutdown(self, roles: Any) -> Any:
        yield


class Stars:
    @hookimpl
    def shutdown(self, *roles: Any) -> None: ...


class DoubleStars:
    @hookimpl
    def shutdown(self, **everything: Any) -> None: ...


class KeywordOnly:
    @hookimpl
    def shutdown(self, *, roles: Any) -> None: ...


class UnknownArgument:
    @hookimpl
    def shutdown(self, rolls: Any) -> None: ...


class UnknownDefault:
    @hookimpl
    def shutdown(self, roles: Any, memo: Any = None) -> None: ...


class UnknownHook:
    @hookimpl
    def register_modle(self) -> None: ...


class UnknownSpecname:
    @hookimpl(specname="shutdwon")
    def at_the_end(self, roles: Any) -> None: ...


class Buffered:
    @hookimpl(buffer=True)
    def shutdown(self, roles: Any) -> None: ...


class Waiting:
    @hookimpl
    async def register_model(self) -> None: ...


class AProperty:
    @property
    @hookimpl
    def shutdown(self) -> Any:
        raise AssertionError("a property was evaluated")


class ACachedProperty:
    @functools.cached_property
    @hookimpl
    def shutdown(self) -> Any:
        raise AssertionError("a property was evaluated")


class AGenerator:
    @hookimpl
    def shutdown(self) -> Any:
        yield


class AnAsyncGenerator:
    @hookimpl
    async def request_finished(self) -> Any:
        yield


class Twice:
    @hookimpl
    def shutdown(self) -> None: ...

    @hookimpl(specname="shutdown")
    def the_same(self) -> None: ...


class NoHook:
    def shutdown(self, roles: Any) -> None: ...


REFUSED = [
    (Wrapper, "shutdown is a wrapper"),
    (OldWrapper, "shutdown is a wrapper"),
    (Stars, r"shutdown takes \*roles; name the arguments that it wants of \(roles, ctx\)"),
    (DoubleStars, r"shutdown takes \*\*everything"),
    (KeywordOnly, "shutdown takes 'roles' by keyword only"),
    (UnknownArgument, r"shutdown has no argument 'rolls'; it offers \(roles, ctx\)"),
    (UnknownDefault, "shutdown has no argument 'memo'"),
    (UnknownHook, "there is no hook 'register_modle'; did you mean register_model"),
    (UnknownSpecname, "there is no hook 'shutdwon'; did you mean shutdown"),
    (Buffered, "shutdown does not pass text on"),
    (Waiting, "register_model cannot wait"),
    (AProperty, "shutdown is a property"),
    (ACachedProperty, "shutdown is a property"),
    (AGenerator, "shutdown has a 'yield', so its body would never run"),
    (AnAsyncGenerator, "request_finished has a 'yield'"),
    (Twice, r"shutdown is implemented twice: at .*\.py:\d+ and at "),
]


@pytest.mark.parametrize(("kind", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_plugin_that_breaks_a_rule_is_out_with_file_and_line(
    kind: type, message: str, make_host: Any
) -> None:
    host = make_host(kind())
    (report,) = host.describe()
    assert (report.state, report.stage) == ("out", "register")
    assert re.search(message, str(report.error)), report.error
    assert re.search(rf"{re.escape(__file__)}:\d+$", str(report.error)), report.error
    assert host.pm.list_name_plugin() == []


def test_a_plugin_without_a_hook_is_out(make_host: Any) -> None:
    (report,) = make_host(NoHook()).describe()
    assert "has no hook" in str(report.error)


def test_a_module_whose_class_has_the_hooks_says_which(
    tmp_path: Path, make_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "check_class.py").write_text(
        "from hookserve.hookspecs import hookimpl\n"
        "class Other: ...\n"
        "class Own:\n    @hookimpl\n    def shutdown(self): ...\n"
    )
    (report,) = make_host(files=[str(tmp_path / "check_class.py")]).describe()
    said = "its class Own has some: to use that, name check_class:Own"
    assert str(report.error).endswith(f"{said}, with the folder of its file in PYTHONPATH")
    monkeypatch.syspath_prepend(str(tmp_path))
    (report,) = make_host(files=["check_class"]).describe()
    assert str(report.error).endswith(said)
    (report,) = make_host(files=["check_class:Own"]).describe()
    assert report.state == "active"


def test_a_marked_thing_that_is_no_function_is_not_passed_over(make_host: Any) -> None:
    class Partly:
        shutdown = hookimpl(functools.partial(print))

        @hookimpl
        def request_finished(self) -> None: ...

    (report,) = make_host(Partly()).describe()
    assert (report.state, report.error) == (
        "out",
        "shutdown is marked, but is no function: partial",
    )


def test_a_plugin_whose_attributes_cannot_be_read_is_out_alone(make_host: Any) -> None:
    class Hidden:
        def __getattribute__(self, name: str) -> Any:
            if name == "shutdown":
                raise OSError("not today")
            return object.__getattribute__(self, name)

        @hookimpl
        def shutdown(self) -> None: ...

    class Good:
        @hookimpl
        def shutdown(self) -> None: ...

    hidden, good = sorted(make_host(Hidden(), Good()).describe(), key=lambda report: report.state)[
        ::-1
    ]
    assert (hidden.state, good.state) == ("out", "active")
    assert "its hooks cannot be read: OSError: not today" in str(hidden.error)


def test_properties_of_a_good_plugin_are_never_evaluated(make_host: Any) -> None:
    class Good:
        @property
        def trap(self) -> Any:
            raise AssertionError("a property was evaluated")

        @hookimpl
        def shutdown(self, roles: Any) -> None: ...

    (report,) = make_host(Good()).describe()
    assert report.state == "active", report.error


def test_an_entry_point_that_is_a_function_is_refused(make_host: Any) -> None:
    def register() -> None: ...

    (report,) = make_host(register).describe()
    assert "is the function" in str(report.error)


def test_a_forgotten_marker_is_a_warning(make_host: Any) -> None:
    module = ModuleType("forgetful")
    source = (
        "from hookserve.hookspecs import hookimpl\n"
        "@hookimpl\n"
        "def shutdown(roles): pass\n"
        "def request_finished(record): pass\n"
    )
    exec(compile(source, "forgetful.py", "exec"), vars(module))
    host = make_host(module)
    (warning,) = host.warnings
    assert "object:forgetful" in warning
    assert "request_finished has the name of a hook and no @hookimpl" in warning
    assert "forgetful.py:4" in warning


def test_static_and_class_methods_and_other_names_are_hooks(make_host: Any) -> None:
    told = []

    class Methods:
        @staticmethod
        @hookimpl
        def shutdown(roles: Any) -> None:
            told.append(("static", roles))

        @classmethod
        @hookimpl(specname="process_started")
        def begin(cls, config: Any) -> None:
            told.append((cls.__name__, config))

    host = make_host(Methods())
    host.calls.process_started(host.roles, "the config")
    host.close()
    assert told == [("Methods", "the config"), ("static", host.roles)]


def test_nothing_is_registered_behind_the_hosts_back() -> None:
    pm = PluginManager(lambda: ProcessReport(process="front"))
    with pytest.raises(HostError, match="bootstrap"):
        pm.register(Waiting())
    with pytest.raises(HostError, match="bootstrap"):
        pm.load_setuptools_entrypoints("hookserve")
