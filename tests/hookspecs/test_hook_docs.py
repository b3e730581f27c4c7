"""The page of the hooks, the specifications and what the host really calls say the same."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import ROLES, specs
from hookserve.hookspecs.calls import HOOK_CLASSES, Calls, Collect
from hookserve.hookspecs.declarations import EXPECTED
from hookserve.hookspecs.manager import read_specs
from plugin_folder import install_plugin

SPECS = read_specs(specs)
LINES = ("Returns", "Runs in", "Called", "Fails", "Since")


@pytest.fixture(scope="module")
def sections(source_root: Path) -> dict[str, str]:
    """Hook name to its section of the page."""
    page = (source_root / "docs" / "hooks.md").read_text()
    parts = re.split(r"^## `(\w+)`$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def doc_lines(name: str) -> dict[str, str]:
    doc = inspect.getdoc(getattr(specs, name))
    assert doc is not None
    return dict(re.findall(rf"^({'|'.join(LINES)}): (.+)$", doc.replace("``", "`"), re.MULTILINE))


def test_the_page_has_one_section_for_each_hook_in_order(sections: dict[str, str]) -> None:
    assert list(sections) == list(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_the_section_has_the_exact_signature(name: str, sections: dict[str, str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", sections[name], re.DOTALL)
    function = getattr(specs, name)
    arguments = [
        f"{parameter.name}: {parameter.annotation}"
        for parameter in inspect.signature(function).parameters.values()
    ]
    returned = inspect.signature(function).return_annotation
    assert " ".join(block.split()) == f"{name}({', '.join(arguments)}) -> {returned}"


@pytest.mark.parametrize("name", SPECS)
def test_the_section_says_what_the_docstring_says(name: str, sections: dict[str, str]) -> None:
    said = dict(re.findall(r"^- \*\*([\w ]+):\*\* (.+)$", sections[name], re.MULTILINE))
    assert tuple(said) == LINES
    assert said == doc_lines(name)


@pytest.mark.parametrize("name", SPECS)
def test_the_docstring_says_what_the_host_does(name: str) -> None:
    info, lines = SPECS[name], doc_lines(name)
    assert lines["Runs in"] == ", ".join(info.roles) + "."
    assert lines["Called"].endswith(f"({info.call}).")
    assert lines["Fails"].endswith(f"({info.failure}).")
    assert re.fullmatch(r"\d+\.\d+\.", lines["Since"])


@pytest.mark.parametrize("name", SPECS)
def test_every_hook_offers_ctx_last_and_is_one_the_host_calls(name: str) -> None:
    info = SPECS[name]
    assert tuple(inspect.signature(getattr(specs, name)).parameters) == (*info.arguments, "ctx")
    if issubclass(HOOK_CLASSES[info.call], Collect):
        assert info.kind in EXPECTED
    else:
        method = getattr(Calls, name)
        assert tuple(inspect.signature(method).parameters) == ("self", *info.arguments)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", SPECS)
def test_every_hook_is_really_called_in_its_roles_and_in_no_other(
    name: str, role: str, site: Path, make_host: Any
) -> None:
    arguments = ", ".join(SPECS[name].arguments)
    source = f"""
    from hookserve.hookspecs import hookimpl

    CALLED = []

    @hookimpl
    def {name}({arguments}):
        CALLED.append({name!r})
    """
    install_plugin(site, "called-dist", {"hook_called": source}, toml=f"roles = {list(ROLES)}")
    host = make_host(roles=[role])
    host.calls.process_started(host.roles, None)
    asyncio.run(host.calls.request_finished(None))
    host.close()
    called = sys.modules["hook_called"].CALLED
    assert called == ([name] if role in SPECS[name].roles else [])
