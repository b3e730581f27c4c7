"""What is served of ``vllm``, as a table: each module of the facade and what it says of each name.

``python -m hookserve.plugins_builtin.vllm_compat.surface`` prints ``docs/vllm-surface.md``, with
``--table`` a line for each name. All of it is imported, torch too.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import NamedTuple

from hookserve.server.cli_reference import markdown_table
from hookserve.server.plugin_table import in_columns

from .distributions import PACKAGE
from .finder import FOLDER, install

STATES = ("live", "shape", "refused")
_NAME = "__surface__"
_HEAD = """# What is served of vLLM

This page is made by `python -m hookserve.plugins_builtin.vllm_compat.surface`, from the files that
are served; [vllm-plugins.md](vllm-plugins.md) says how plugins written for vLLM are run.

- **live**: this server calls or reads it where vLLM does.
- **shape**: it can be imported, subclassed or registered, and the line says what it does not do.
- **refused**: it is not there, and importing it fails as with any package; the line says why, and
  what to use instead.

A module or a name that is not in these tables is not there either.
"""


class Row(NamedTuple):
    """One name of one module."""

    module: str
    name: str
    state: str
    text: str


class SurfaceError(ValueError):
    """A file of the facade does not say what it serves."""


def modules() -> list[str]:
    """The dotted name of each module that is served, a package before what it holds."""
    found = []
    for path in FOLDER.joinpath(PACKAGE).rglob("*.py"):
        parts = path.relative_to(FOLDER).with_suffix("").parts
        found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(found)


def rows_of(module: str) -> Iterator[Row]:
    """What one module says; it is imported.

    Raises:
        SurfaceError: it says nothing, or something else than a state and a sentence for each name.
    """
    surface = getattr(importlib.import_module(module), _NAME, None)
    if not isinstance(surface, dict):
        raise SurfaceError(f"{module}: there is no {_NAME}")
    for name, said in surface.items():
        state, colon, text = str(said).partition(":")
        if state not in STATES or not colon or not text.strip():
            raise SurfaceError(
                f"{module}: {_NAME}[{name!r}] is {said!r}; expected 'live: ...', 'shape: ...' or "
                "'refused: ...'"
            )
        yield Row(module, name, state, text.strip())


def walk() -> list[Row]:
    """Every name of every module, in a process that is ready for them (``finder.install``)."""
    return [row for module in modules() for row in rows_of(module)]


def summary(module: str) -> str:
    """The first paragraph of a module's docstring."""
    text = inspect.getdoc(importlib.import_module(module)) or ""
    return " ".join(text.split("\n\n")[0].split())


def page() -> str:
    """``docs/vllm-surface.md``."""
    rows = walk()
    counts = ", ".join(f"{sum(row.state == state for row in rows)} {state}" for state in STATES)
    parts = [_HEAD, f"{len(modules())} modules; names: {counts}.\n"]
    for module in modules():
        parts.append(f"## `{module}`\n\n{summary(module)}\n")
        own = [(f"`{row.name}`", row.state, row.text) for row in rows if row.module == module]
        if own:
            parts.append(markdown_table(("name", "", ""), own))
    return "\n".join(parts)


if __name__ == "__main__":
    install()
    if sys.argv[1:] == ["--table"]:
        sys.stdout.write(in_columns([Row._fields, *walk()]))
    else:
        sys.stdout.write(page())
