"""The host of a process: what is declared, what a failure leaves, what is told and reported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from declared import HEADER, declared
from hookserve.hookspecs import (
    Denied,
    Endpoint,
    Host,
    ModelEntry,
    Named,
    PluginConflictError,
    PluginError,
    PluginSettings,
    RequiredPluginError,
    create_plugin_manager,
    hookimpl,
)
from plugin_folder import install_plugin


class Models:
    @hookimpl
    def register_model(self) -> list[ModelEntry]:
        return [ModelEntry("AForCausalLM", "a.model:A"), ModelEntry("BForCausalLM", "a.model:B")]


class Routes:
    def routes(self) -> list[Any]:
        return []


# -- declarations -------------------------------------------------------------------------------


def test_declarations_reach_the_registries_of_their_kinds(make_host: Any) -> None:
    class Everything(Models):
        @hookimpl
        def platform(self) -> str:
            return "p.q:Platform"

        @hookimpl
        def stat_logger(self) -> list[Any]:
            return [Routes, "s.t:Logger"]

        @hookimpl
        def endpoint(self) -> Endpoint:
            return Endpoint("extra", Routes)

        @hookimpl
        def model_source(self) -> Named:
            return Named("ftp", "m.s:Ftp")

        @hookimpl
        def model_loader(self) -> Iterator[Named]:
            yield Named("npz", "m.l:Npz")

        @hookimpl
        def executor(self) -> None:
            return None

    host = make_host(Everything())
    assert host.problems() == []
    assert declared(host, "object:Everything") == {
        "model:AForCausalLM": "active",
        "model:BForCausalLM": "active",
        "platform:Everything": "active",
        f"stat_logger:{__name__}.Routes": "active",
        "stat_logger:s.t.Logger": "active",
        "endpoint:extra": "active",
        "model_source:ftp": "active",
        "model_loader:npz": "active",
    }
    assert host.registry("stat_logger").resolve(f"{__name__}.Routes") is Routes


@pytest.mark.parametrize(
    ("hook", "value", "words"),
    [
        ("register_model", Named("A", "a:A"), "expected ModelEntry, several, or None"),
        ("register_model", [None], "expected ModelEntry"),
        ("register_model", 3, "returned 3"),
        ("register_model", ModelEntry("A", "not a path"), "not of the form"),
        ("register_model", ModelEntry("", "a:A"), "expected a name"),
        ("register_model", ModelEntry("A", 3), "neither"),  # type: ignore[arg-type]
        ("platform", ["a:A"], "expected str or None"),
        ("stat_logger", 3, "expected type or str"),
        ("endpoint", "a:A", "expected Endpoint"),
        ("executor", {"a": "b"}, "expected Named"),
    ],
)
def test_an_answer_of_the_wrong_kind_puts_the_plugin_out(
    hook: str, value: Any, words: str, make_host: Any
) -> None:
    def answer(self: Any) -> Any:
        return value

    plugin = type("Wrong", (), {hook: hookimpl(specname=hook)(answer)})()
    host = make_host(plugin, platform="cpu")
    (report,) = host.describe()
    assert (report.state, report.stage) == ("out", "register")
    assert words in str(report.error), report.error


def test_an_object_is_no_target_where_processes_are_several(make_host: Any) -> None:
    class Direct:
        @hookimpl
        def register_model(self) -> ModelEntry:
            return ModelEntry("A", Models)

    class Front:
        @hookimpl
        def endpoint(self) -> Endpoint:
            return Endpoint("e", Routes)

    together = make_host(Direct())
    assert together.registry("model").resolve("A") is Models
    apart = make_host(Direct(), Front(), roles=["front"])
    (line,) = apart.problems()
    assert "object:Direct" in line and "module:attribute" in line
    assert apart.registry("endpoint").resolve("e") is Routes


# -- failures -----------------------------------------------------------------------------------


class Partly(Models):
    """Fails after another hook of it has succeeded."""

    @hookimpl
    def endpoint(self) -> Endpoint:
        return Endpoint("partly", Routes)

    @hookimpl
    def executor(self) -> Any:
        raise RuntimeError("no executor today")


def test_a_plugin_that_fails_part_way_leaves_nothing(make_host: Any) -> None:
    host = make_host(Partly(), Models())
    (line,) = host.problems()
    assert line == (
        "object:Partly is out, failed at stage 'register': hook executor raised RuntimeError: "
        "no executor today"
    )
    assert declared(host, "object:Partly") == {}
    assert host.registry("endpoint").names() == []
    assert [claim.owner for claim in host.registry("model").claims()] == ["object:Models"] * 2
    assert not host.pm.has_plugin("object:Partly")
    assert all(
        guard.plugin.identity != "object:Partly"
        for hook in host.calls.hooks.values()
        for guard in hook.guards
    )


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")


def fail_without_text() -> Any:
    raise NoText


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: map(int, ["no number"]), "ValueError: invalid literal"),
        (Unshowable, "RuntimeError: cannot be shown"),
        (fail_without_text, "NoText"),
    ],
)
def test_an_answer_that_fails_when_it_is_read_is_its_plugins_failure(
    answer: Any, error: str, make_host: Any
) -> None:
    class Late:
        @hookimpl
        def register_model(self) -> Any:
            return answer()

    host = make_host(Late(), Models())
    (line,) = host.problems()
    assert line.startswith("object:Late is out, failed at stage 'register'")
    assert error in line
    assert host.registry("model").names() == ["AForCausalLM", "BForCausalLM"]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("raise ValueError('cannot')", "ValueError: cannot"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class Panic(BaseException): pass\nraise Panic('bounds')", "Panic: bounds"),
        (
            "class Mute(Exception):\n    def __str__(self): raise SystemExit\nraise Mute",
            "Mute (its text cannot be had: SystemExit)",
        ),
        ("import no_such_module_here", "ModuleNotFoundError"),
        ("class Plugin:\n    def __init__(self): raise OSError('gone')", "OSError: gone"),
    ],
)
def test_a_plugin_that_fails_at_import_is_out_and_others_are_in(
    source: str, error: str, site: Path, make_host: Any
) -> None:
    target = "host_bad:Plugin" if "class Plugin" in source else "host_bad"
    install_plugin(site, "bad-dist", {"host_bad": source}, entries={"bad": target})
    host = make_host(Models())
    (report,) = [report for report in host.describe() if report.name == "bad"]
    assert (report.state, report.stage) == ("out", "import")
    assert str(report.error).startswith(error)
    assert report.load_ms is not None
    assert host.registry("model").names() == ["AForCausalLM", "BForCausalLM"]
    assert [denied.identity for denied in host.failures()] == ["bad-dist:hookserve:bad"]


def test_an_interrupt_while_loading_is_not_swallowed(site: Path, make_host: Any) -> None:
    install_plugin(site, "int-dist", {"host_int": "raise KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        make_host()


def test_a_required_plugin_that_fails_stops_the_start(make_host: Any) -> None:
    with pytest.raises(RequiredPluginError) as raised:
        make_host(Partly(), require=("Partly",))
    assert (raised.value.identity, raised.value.stage) == ("object:Partly", "register")
    assert "it is required" in str(raised.value)
    assert raised.value.exit_code == 78
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_an_essential_built_in_that_fails_stops_the_start_and_another_does_not(
    make_host: Any, add_builtin: Any
) -> None:
    add_builtin("extra", Partly())
    assert make_host().problems()[0].startswith("hookserve:builtin:extra is out")
    add_builtin("core", Partly(), essential=True)
    with pytest.raises(RequiredPluginError, match=r"builtin:core .* cannot do without it"):
        make_host()


def test_a_failure_in_process_started_puts_the_plugin_out(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Late(Models):
        @hookimpl
        def process_started(self) -> None:
            sys.exit(4)

    host = make_host(Late())
    assert host.registry("model").claims() != []
    host.calls.process_started(host.roles, None)
    (failure,) = host.failures()
    assert (failure.identity, failure.process, failure.stage) == ("object:Late", "front", "run")
    assert "SystemExit: 4" in failure.error
    assert host.registry("model").claims() == []
    assert "object:Late is out" in caplog.text


def test_of_several_threads_one_tells_of_the_start_and_the_others_wait(make_host: Any) -> None:
    told, has_begun, may_end = [], threading.Event(), threading.Event()

    class Slow(Models):
        @hookimpl
        def process_started(self) -> None:
            told.append("begun")
            has_begun.set()
            assert may_end.wait(30)
            told.append("over")

    host = make_host(Slow())

    def tell() -> None:
        host.calls.tell_start_once(host.roles, None)
        told.append("told")

    threads = [threading.Thread(target=tell) for _ in range(3)]
    for thread in threads:
        thread.start()
        assert has_begun.wait(30)
    threads[-1].join(0.05)
    assert told == ["begun"] and threads[-1].is_alive()
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert told == ["begun", "over", "told", "told", "told"]
    assert host.problems() == []


def test_deny_rolls_back_what_failed_elsewhere(make_host: Any) -> None:
    host = make_host(Models(), Partly())
    host.deny(Denied("object:Models", "engine", "run", "OSError: only there"))
    assert host.registry("model").names() == []
    (report,) = [report for report in host.describe() if report.identity == "object:Models"]
    assert (report.state, report.stage, report.error) == ("out", "run", "OSError: only there")
    assert report.reason == "it failed in the engine process; its modules stay imported here"
    with pytest.raises(PluginConflictError, match="no such plugin"):
        host.deny(Denied("nobody", "engine", "run", "x"))


def test_deny_of_a_required_plugin_stops(make_host: Any) -> None:
    host = make_host(Models(), require=("Models",))
    with pytest.raises(RequiredPluginError):
        host.deny(Denied("object:Models", "engine", "run", "OSError: only there"))


# -- context --------------------------------------------------------------------------------------


def test_the_context_is_the_plugins_own(
    make_host: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    class First:
        @hookimpl
        def register_model(self, ctx: Any) -> None:
            seen["first"] = ctx
            ctx.stash["n"] = 1
            ctx.logger.warning("told")

        @hookimpl
        def shutdown(self, ctx: Any) -> None:
            seen["n"] = ctx.stash["n"]

    class Second:
        @hookimpl
        def register_model(self, ctx: Any) -> None:
            seen["second"] = ctx

    host = make_host(
        First(), Second(), config={"First": {"depth": 3}}, cache_dir=str(tmp_path / "cache")
    )
    host.close()
    first, second = seen["first"], seen["second"]
    assert (first.identity, first.roles) == ("object:First", host.roles)
    assert dict(first.config) == {"depth": 3} and dict(second.config) == {}
    with pytest.raises(TypeError):
        first.config["depth"] = 4
    assert seen["n"] == 1 and second.stash == {}
    assert first.cache_dir == tmp_path / "cache" / "plugins" / "object--First"
    assert first.cache_dir.is_dir() and second.cache_dir != first.cache_dir
    assert first.logger.name == "hookserve.plugin.object:First"
    assert first.logger.handlers


def test_a_late_registration_from_a_hook_has_its_owner(make_host: Any) -> None:
    holder: list[Host] = []

    class Lazy:
        @hookimpl
        def process_started(self) -> None:
            holder[0].registry("model").register("LateForCausalLM", "late:Model")

    host = make_host(Lazy())
    holder.append(host)
    host.calls.process_started(host.roles, None)
    assert host.registry("model").get("LateForCausalLM").owner == "object:Lazy"
    host = make_host(Lazy())
    holder[0] = host
    host.registry("model").names()
    host.calls.process_started(host.roles, None)
    assert "too late: the table was read at" in host.problems()[0]


def test_enter_takes_an_identity(make_host: Any) -> None:
    host = make_host(Models())
    with host.enter("object:Models"):
        host.registry("model").register("LateForCausalLM", "late:Model")
    assert host.registry("model").get("LateForCausalLM").owner == "object:Models"


# -- inspection -----------------------------------------------------------------------------------


def test_a_manager_without_load_imports_nothing(site: Path, builtins: Any) -> None:
    install_plugin(site, "insp-dist", {"host_insp": "raise SystemExit('imported')"})
    pm = create_plugin_manager({"worker"}, load=False)
    assert [report.state for report in pm.describe()] == ["found"]
    assert pm.list_name_plugin() == []
    assert "host_insp" not in sys.modules


def test_a_manager_for_inspection_reports_what_would_stop_a_server(site: Path) -> None:
    claim = HEADER + (
        '@hookimpl\ndef register_model():\n    return ModelEntry("X", "{name}.model:X")\n'
    )
    for name in ("host_one", "host_two"):
        install_plugin(site, f"{name}-dist", {name: claim.format(name=name)})
    pm = create_plugin_manager({"worker"}, PluginSettings(require=("host_one",)))
    implementations = pm.hook.register_model.get_hookimpls()
    ours = [one.plugin_name for one in implementations if "host_" in one.plugin_name]
    assert ours == ["host-two-dist:hookserve:host_two", "host-one-dist:hookserve:host_one"]
    reports = {report.name: report for report in pm.describe()}
    assert reports["host_one"].required
    (declaration,) = reports["host_two"].declarations
    assert declaration.state == "in conflict with host-one-dist:hookserve:host_one"


def test_a_report_says_everything(site: Path, make_host: Any) -> None:
    source = HEADER + (
        '@hookimpl\ndef register_model():\n    return ModelEntry("X", "types:SimpleNamespace")\n'
        "@hookimpl\ndef shutdown(roles): pass\n"
    )
    toml = "api = '>=1'\nroles = ['front', 'worker']\nhooks = ['register_model', 'executor']\n"
    install_plugin(site, "rep-dist", {"host_rep": source}, toml=toml)
    host = make_host(config={"host_rep": {"a": 1}})
    host.registry("model").resolve("X")
    (report,) = [report for report in host.describe() if report.name == "host_rep"]
    assert report.identity == "rep-dist:hookserve:host_rep"
    assert (report.distribution, report.version, report.group) == ("rep-dist", "1.0", "hookserve")
    assert report.file == str(site / "host_rep" / "__init__.py")
    assert (report.api, report.roles, report.state) == (">=1", ["front", "worker"], "active")
    assert report.config == {"a": 1}
    assert report.load_ms is not None and report.load_ms > 0
    assert {hook.name: hook.called_here for hook in report.hooks} == {
        "register_model": True,
        "shutdown": True,
    }
    assert report.hooks[0].where == f"{report.file}:2"
    assert report.hooks[0].roles == ["front", "engine", "worker", "inspector"]
    (declaration,) = report.declarations
    assert (declaration.target, declaration.used) == ("types:SimpleNamespace", True)
    assert report.warnings == [
        "hookserve.toml names the hooks ['executor', 'register_model'], the code has "
        "['register_model', 'shutdown']"
    ]
    assert report.hooks_by_role() == {
        "front": ["register_model", "shutdown"],
        "worker": ["register_model", "shutdown"],
    }
    assert [hook.calls for hook in report.hooks] == [1, 0]


def test_a_declaration_that_nobody_needed_is_told_apart(make_host: Any) -> None:
    host = make_host(Models())
    host.registry("model").get("AForCausalLM")
    ((first, second),) = [report.declarations for report in host.describe()]
    assert (first.state, first.state_text()) == ("active", "never used")
    lost = msgspec.structs.replace(second, state="overridden by X")
    assert lost.state_text() == "overridden by X"
    assert msgspec.structs.replace(first, used=True).state_text() == "active"


def test_the_place_of_each_implementation_in_the_call_order_is_told(
    add_builtin: Any, make_host: Any
) -> None:
    class Last(Models):
        @hookimpl(trylast=True)
        def shutdown(self) -> None: ...

    class First:
        @hookimpl
        def shutdown(self) -> None: ...

    add_builtin("own", First())
    host = make_host(Last(), First(), roles=["front"])
    assert {
        report.identity: {hook.name: hook.position for hook in report.hooks}
        for report in host.describe()
    } == {
        "object:First": {"shutdown": 0},
        "object:Last": {"register_model": 0, "shutdown": 1},
        "hookserve:builtin:own": {"shutdown": 2},
    }


def test_what_a_plugin_did_before_it_went_out_is_told(make_host: Any) -> None:
    class Short(Models):
        @hookimpl
        def process_started(self) -> None:
            raise ValueError("no")

    host = make_host(Short())
    host.calls.process_started(host.roles, None)
    (report,) = host.describe()
    assert report.state == "out"
    hooks = {hook.name: hook for hook in report.hooks}
    assert (hooks["register_model"].calls, hooks["register_model"].errors) == (1, 0)
    started = hooks["process_started"]
    assert (started.calls, started.errors, started.called_here) == (1, 1, False)
    assert started.last_error is not None and "ValueError: no" in started.last_error
    assert report.traceback is not None and "raise ValueError" in report.traceback


def test_torch_in_a_process_without_it_is_told_by_owner(
    site: Path, make_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (site / "torch.py").write_text("")
    source = HEADER + "import torch\n@hookimpl\ndef shutdown(roles): pass\n"
    install_plugin(site, "heavy-dist", {"host_heavy": source})
    (line,) = make_host(roles=["front"]).warnings
    assert line.startswith("plugin heavy-dist:hookserve:host_heavy: imported torch in a process")
    assert line.endswith(" MiB")


def test_plugin_error_of_a_hook_keeps_its_first_line(make_host: Any) -> None:
    class Long:
        @hookimpl
        def register_model(self) -> None:
            raise PluginError("someone", "register", "own words")

    (line,) = make_host(Long()).problems()
    assert line == "object:Long is out, failed at stage 'register': own words"
