"""The parser of the flags, as a platform is shown it."""

from __future__ import annotations

import argparse
import logging
import sys
import types
from typing import Any

import pytest

from hookserve.hookspecs import PluginSettings, bootstrap, hookimpl
from hookserve.plugins_builtin.cpu_platform import CpuPlatform
from hookserve.server.platform_options import show_options


class Widening(CpuPlatform):
    """Widens the choices of an option that is there, and adds one of its own."""

    parsers: list[Any] = []  # noqa: RUF012

    @classmethod
    def pre_register_and_update(cls, parser: argparse.ArgumentParser | None = None) -> None:
        cls.parsers.append(parser)
        assert parser is not None
        assert "--quantization" in parser._option_string_actions
        parser.add_argument("--board-speed", type=int, default=3)


class Offers:
    @hookimpl
    def platform(self) -> str:
        return "widening_platform:Widening"


@pytest.mark.parametrize("is_of_the_class", [True, False])
def test_options_that_it_adds_are_told_to_have_no_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_of_the_class: bool
) -> None:
    """Also where the method is one of the object."""

    class Plain(CpuPlatform):
        def pre_register_and_update(self, parser: Any = None) -> None:  # type: ignore[override]
            Widening.pre_register_and_update(parser)

    Widening.parsers.clear()
    module = types.ModuleType("widening_platform")
    module.Widening = Widening if is_of_the_class else Plain  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "widening_platform", module)
    host = bootstrap(["front"], PluginSettings(allow=()), objects=[Offers()])
    try:
        with caplog.at_level(logging.WARNING):
            show_options(host)
    finally:
        host.close()
    (parser,) = Widening.parsers
    assert parser is not None
    (line,) = [each for each in caplog.messages if "--board-speed" in each]
    assert "adds --board-speed, which nobody can give" in line
    assert host.platform().owner in line and "--additional-config" in line


def test_the_built_in_one_is_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookserve.server.platform_options.Parser", None)
    host = bootstrap(["front"], PluginSettings(allow=()))
    try:
        show_options(host)
    finally:
        host.close()
