"""Plugins that are odd in what every object is, or raise what looks like a signal."""

from __future__ import annotations

import dataclasses
import logging
import signal
from typing import Any

import pytest

from hookserve.hookspecs import Host, ModelEntry, hookimpl
from hookserve.hookspecs.settings import Denied


class Plain:
    @hookimpl
    def register_model(self) -> ModelEntry:
        return ModelEntry("Plain", "toy:Plain")


class Proud:
    """Nobody can compare it, or look at it."""

    def _refuse(self, *args: Any) -> Any:
        raise RuntimeError("hands off")

    __eq__ = __bool__ = __len__ = __iter__ = __repr__ = _refuse
    __hash__ = None  # type: ignore[assignment]

    @hookimpl
    def register_model(self) -> ModelEntry:
        return ModelEntry("Proud", "toy:Proud")


class Everything(Plain):
    """Equal to whatever it is compared with."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Value:
    name: str

    @hookimpl
    def register_model(self) -> ModelEntry:
        return ModelEntry(self.name, "toy:Value")


def all_of_them(make_host: Any) -> Host:
    try:
        made: Host = make_host(Proud(), Everything(), Plain(), Value("A"))
    except (RuntimeError, ValueError) as error:
        raise AssertionError("one of them stopped the start") from error
    return made


def test_plugins_are_told_apart_by_what_they_are_and_not_by_what_they_are_equal_to(
    make_host: Any,
) -> None:
    host = all_of_them(make_host)
    assert [plugin.state for plugin in host.plugins] == ["active"] * 4
    assert sorted(host.registry("model").names()) == ["A", "Plain", "Proud"]
    assert len(host.pm.list_name_plugin()) == 4
    names = {each.plugin_name for each in host.pm.hook.register_model.get_hookimpls()}
    assert names == {plugin.identity for plugin in host.plugins}


@pytest.mark.parametrize("name", ["Proud", "Everything", "Plain", "Value"])
def test_any_of_them_can_go(make_host: Any, name: str) -> None:
    host = all_of_them(make_host)
    host.deny(Denied(f"object:{name}", "engine", "run", "no luck"))
    out = [plugin.name for plugin in host.plugins if plugin.state == "out"]
    assert out == [name]
    left = {each.plugin_name for each in host.pm.hook.register_model.get_hookimpls()}
    assert left == {f"object:{other}" for other in ("Proud", "Everything", "Plain", "Value")} - {
        f"object:{name}"
    }
    assert not host.pm.has_plugin(f"object:{name}")


def test_an_interrupt_of_a_plugins_own_does_not_stop_the_end(
    make_host: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    class Interrupts:
        @hookimpl(tryfirst=True)
        def shutdown(self) -> None:
            raise KeyboardInterrupt

    class Good:
        @hookimpl
        def shutdown(self) -> None:
            told.append("good")

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    host = make_host(Interrupts(), Good(), roles=("front",))
    with caplog.at_level(logging.WARNING):
        try:
            host.close()
        except KeyboardInterrupt:
            raise AssertionError("the plugin's interrupt was taken for the operator's") from None
    assert told == ["good"]
    assert "plugin object:Interrupts failed in shutdown: KeyboardInterrupt" in caplog.messages


def test_what_no_encoding_has_and_no_terminal_should_get_is_told_in_escapes(make_host: Any) -> None:
    class Strange(Plain):
        @hookimpl
        def register_model(self) -> ModelEntry:
            raise ValueError("ümläut \udc80 \x1b[31m red\tof\u202e two\nlines")

    (report,) = [each for each in make_host(Strange()).report().plugins if each.state == "out"]
    told = "ValueError: ümläut \\udc80 \\x1b[31m red\tof\\u202e two"
    assert report.error is not None and report.error.endswith(told)
    assert report.traceback is not None and report.traceback.endswith(f"{told}\nlines\n")
