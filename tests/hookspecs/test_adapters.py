"""An adapter of another host: when it is asked, what it is told, and what it explains."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hookserve.hookspecs import ApiRequest, Host, Plugin, PluginError, hookimpl
from hookserve.hookspecs import adapters as adapters_module
from hookserve.hookspecs.adapters import Adapter

MakeHost = Callable[..., Host]
GROUP = "other.plugins"


class OtherHost(ModuleType):
    """An adapter's module for the package ``otherhost``."""

    HOST_PACKAGES = ("otherhost",)

    def __init__(self) -> None:
        super().__init__("an_adapter_of_tests")
        self.prepared = 0

    def make_plugins(self, entries: Any) -> list[Plugin]:
        return [
            Plugin(f"d:{each.group}:{each.name}", each.name, each.group, each.load, adapter="other")
            for each in entries
        ]

    def select(self, plugins: Any, settings: Any, say: Any) -> None:
        pass

    def prepare(self) -> None:
        self.prepared += 1

    def explain(self, error: BaseException) -> str | None:
        return "otherhost has no such thing" if "otherhost" in str(error) else None


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherHost]:
    module = OtherHost()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    adapter = Adapter("other", module.__name__, "other.")
    monkeypatch.setattr(adapters_module, "find_adapters", lambda: [adapter])
    yield module


REQUEST = ApiRequest(request_id="1", route="r", model="m", body={}, headers={})


class Asks:
    """Fails about the other host where it is asked."""

    @hookimpl
    async def before_request(self, request: Any) -> Any:
        raise ImportError("no otherhost.thing")


def test_it_is_asked_of_files_and_of_classes_that_the_operator_names(
    make_host: MakeHost, other: OtherHost, site: Path
) -> None:
    host = make_host(Asks())
    assert (other.prepared, host.adapters.packages()) == (0, [])
    (site / "theirs.py").write_text("class Mine: pass\n")
    assert host.registry("model").resolve("theirs:Mine").__name__ == "Mine"
    assert (other.prepared, host.adapters.packages()) == (1, ["otherhost"])
    file = site / "given.py"
    file.write_text(
        "from hookserve.hookspecs import hookimpl\n@hookimpl\ndef register_model(): pass"
    )
    make_host(files=(str(file),))
    assert other.prepared == 2


def test_what_it_knows_of_an_error_stands_behind_it_wherever_the_error_came_from(
    make_host: MakeHost, other: OtherHost, site: Path
) -> None:
    file = site / "broken.py"
    file.write_text("raise ImportError('no otherhost.x')")
    host = make_host(Asks(), files=(str(file),))
    (plugin,) = [each for each in host.plugins if each.name == "broken"]
    assert plugin.error == "ImportError: no otherhost.x; otherhost has no such thing"
    with pytest.raises(PluginError) as raised:
        asyncio.run(host.calls.before_request(REQUEST, None))
    assert raised.value.message.endswith("no otherhost.thing; otherhost has no such thing")
    (site / "named.py").write_text("raise RuntimeError('x') from ImportError('otherhost')")
    with pytest.raises(PluginError, match=r"raised RuntimeError: x; registered: "):
        host.registry("model").resolve("named:Mine")
    (site / "other_named.py").write_text("raise RuntimeError('otherhost') from ImportError('y')")
    told = r"raised RuntimeError: otherhost; otherhost has no such thing; registered: "
    with pytest.raises(PluginError, match=told):
        host.registry("model").resolve("other_named:Mine")


def test_an_error_that_is_its_own_cause_is_told_as_any(make_host: MakeHost, site: Path) -> None:
    file = site / "circular.py"
    file.write_text("error = RuntimeError('x')\nraise error from error")
    host = make_host(files=(str(file),))
    (plugin,) = [each for each in host.plugins if each.name == "circular"]
    assert plugin.error == "RuntimeError: x"


def test_an_error_about_something_else_is_left_alone(make_host: MakeHost, site: Path) -> None:
    file = site / "broken.py"
    file.write_text("raise ImportError('no thing')")
    host = make_host(files=(str(file),))
    (plugin,) = [each for each in host.plugins if each.name == "broken"]
    assert plugin.error == "ImportError: no thing"
