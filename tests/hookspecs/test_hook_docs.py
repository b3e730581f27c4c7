"""The pages of the hooks, the specifications and what the host really calls say the same; the
example of each page is loaded, called once and does what its page says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import every_hook
from hook_samples import SAMPLES, call_hook
from hookserve.hookspecs import ROLES, Host, specs, targets
from hookserve.hookspecs.calls import Calls
from hookserve.hookspecs.declarations import EXPECTED
from hookserve.hookspecs.hook import HOOK_CLASSES
from hookserve.hookspecs.manager import read_specs
from plugin_folder import install_plugin

SPECS = read_specs(specs)
LINES = ("Returns", "Runs in", "Called", "Fails", "Since")
AT_BOOTSTRAP = [name for name in SPECS if name not in SAMPLES]
"""The hooks that the host itself calls, once, when it is made."""

PAGE = re.compile(
    r"\A# `(?P<name>\w+)`\n\n```python\n(?P<signature>.*?)```\n\n(?P<prose>.+?)\n\n"
    r"(?P<lines>(?:- \*\*[^\n]+\n)+)\n"
    r"(?:## Arguments\n\n(?P<arguments>.+?)\n\n)?"
    r"## When it fails\n\n(?P<failure>.+?)\n\n"
    r"## Example\n\n(?P<lead>[^`].*?\n\n)?```python\n(?P<example>.*?)```\n(?P<more>.*)\Z",
    re.DOTALL,
)
"""The parts of a page, in this order."""


@pytest.fixture
def page(request: pytest.FixtureRequest, source_root: Path) -> dict[str, str]:
    """The parts of the page of the hook that the test is about."""
    name = request.node.callspec.params["name"]
    text = (source_root / "docs" / "hooks" / f"{name}.md").read_text()
    match = PAGE.match(text)
    assert match is not None, f"docs/hooks/{name}.md lacks a part, or has them in another order"
    return {part: found or "" for part, found in match.groupdict().items()}


def doc_lines(name: str) -> dict[str, str]:
    doc = inspect.getdoc(getattr(specs, name))
    assert doc is not None
    return dict(re.findall(rf"^({'|'.join(LINES)}): (.+)$", doc.replace("``", "`"), re.MULTILINE))


def summary(name: str) -> str:
    """The first sentence of the docstring."""
    doc = inspect.getdoc(getattr(specs, name))
    assert doc is not None
    paragraph = " ".join(doc.split("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[a-z)`])[.;] ", paragraph + " ")[0].strip().rstrip(".")


# -- the page says what the specification says ---------------------------------------------------


def test_the_index_has_one_row_for_each_hook_in_order(source_root: Path) -> None:
    rows = [
        f"| [`{name}`](hooks/{name}.md) | {summary(name)} | {info.call} | {', '.join(info.roles)} "
        f"| {info.failure} | {doc_lines(name)['Since'].rstrip('.')} |"
        for name, info in SPECS.items()
    ]
    text = (source_root / "docs" / "hooks.md").read_text()
    assert re.findall(r"^\| \[`.*$", text, re.MULTILINE) == rows


def test_every_page_is_that_of_a_hook(source_root: Path) -> None:
    assert {file.stem for file in (source_root / "docs" / "hooks").iterdir()} <= set(SPECS)


@pytest.mark.parametrize("name", SPECS)
def test_the_page_has_the_exact_signature(name: str, page: dict[str, str]) -> None:
    function = getattr(specs, name)
    arguments = [
        f"{parameter.name}: {parameter.annotation}"
        for parameter in inspect.signature(function).parameters.values()
    ]
    returned = inspect.signature(function).return_annotation
    shown = " ".join(page["signature"].split()).replace("( ", "(").replace(", )", ")")
    assert page["name"] == name
    assert shown == f"{name}({', '.join(arguments)}) -> {returned}"


@pytest.mark.parametrize("name", SPECS)
def test_the_page_says_what_the_docstring_says(name: str, page: dict[str, str]) -> None:
    said = dict(re.findall(r"^- \*\*([\w ]+):\*\* (.+)$", page["lines"], re.MULTILINE))
    assert tuple(said) == LINES
    assert said == doc_lines(name)


@pytest.mark.parametrize("name", SPECS)
def test_the_page_explains_each_argument(name: str, page: dict[str, str]) -> None:
    explained = re.findall(r"^- `(\w+)`: ", page["arguments"], re.MULTILINE)
    assert tuple(explained) == SPECS[name].arguments


# -- the specification says what the host does ---------------------------------------------------


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
    assert info.call in HOOK_CLASSES
    if name in AT_BOOTSTRAP:
        assert info.kind in EXPECTED or name in ("settings_schema", "register_by_call")
    else:
        parameters = inspect.signature(getattr(Calls, name)).parameters.values()
        # What is given by keyword alone is its caller's own business.
        handed_on = [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
        assert handed_on == ["self", *info.arguments]


def test_the_page_about_looking_has_a_script_that_runs(
    source_root: Path, make_host: Any, add_builtin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    add_builtin("shown", ModuleType("never_imported"))
    page = (source_root / "docs" / "plugins.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(block, "plugins.md", "exec"), {})
    assert "hookserve:builtin:shown found" in capsys.readouterr().out


# -- the host calls it, and the example of the page is right -------------------------------------


def report_of(host: Host, name: str) -> Any:
    """The report on the hook of the one plugin that is not built in, after checking that it is in
    and that nothing of it failed."""
    (plugin,) = [report for report in host.describe() if report.group != "builtin"]
    assert plugin.state == "active", plugin.state_text()
    assert not plugin.warnings
    for hook in plugin.hooks:
        assert (hook.errors, hook.switched_off) == (0, False), hook
    (hook,) = [hook for hook in plugin.hooks if hook.name == name]
    return hook


@pytest.mark.parametrize("role", ROLES)
def test_every_hook_is_really_called_in_its_roles_and_in_no_other(
    role: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_host: Any
) -> None:
    trace = tmp_path / "trace"
    trace.touch()
    monkeypatch.setenv(every_hook.TRACE, str(trace))

    def called() -> list[str]:
        calls = every_hook.read_calls(trace)
        trace.write_text("")
        return sorted(name for _, _, name in calls.elements())

    every_hook.install(site)
    host = make_host(roles=[role])
    here = [name for name, info in SPECS.items() if role in info.roles]
    assert called() == sorted(name for name in here if name in AT_BOOTSTRAP)
    for name, sample in SAMPLES.items():
        call_hook(host, name, sample.arguments())
        assert called() == ([name] if name in here else []), name
    for name in SPECS:
        assert report_of(host, name).called_here is (name in here), name


@pytest.mark.parametrize("name", SPECS)
def test_the_example_is_accepted_and_does_what_its_page_says(
    name: str, page: dict[str, str], site: Path, tmp_path: Path, make_host: Any
) -> None:
    install_plugin(
        site, "example-dist", {"example": page["example"]}, toml=f"roles = {list(ROLES)}"
    )
    host = make_host(roles=SPECS[name].roles, cache_dir=str(tmp_path))
    if name in SAMPLES:
        if name != "process_started":
            host.calls.process_started(host.roles, None)
        sample = SAMPLES[name]
        assert sample.is_right(call_hook(host, name, sample.arguments()))
    assert report_of(host, name).called_here
    kind = SPECS[name].kind
    declared = [] if kind is None else host.registry(kind).all_claims()
    assert bool(declared) is (kind is not None)
    for claim in declared:
        assert callable(targets.import_target(claim.target))
