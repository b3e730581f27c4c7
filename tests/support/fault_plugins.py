"""Plugins that do one thing wrong, at one stage, in one process: the text of a file for each.

What is to come of each is for the tests to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

IMPORT = "import"
"""The stage before every hook."""

EVERYWHERE = "every"
"""In place of a process."""

SLEEP_S, LONG_SLEEP_S = 0.4, 10.0
"""Where nothing can be interrupted, and where somebody stops waiting."""

FAULTS = {
    "raises": "raise ValueError('broken')",
    "exits": "sys.exit(3)",
    "panics": "raise Panic('panicked')",
    "closes": "raise GeneratorExit",
    "interrupts": "raise KeyboardInterrupt",
    "answers 7": "return 7",
    "answers an awaitable": "return asyncio.sleep(0)",
    "answers what nobody can look at": "return Hostile()",
    "raises at call 3": "if next(CALLS) == 3: raise ValueError('broken')",
    "registers twice": "return [ModelEntry('Twice', 'nowhere:Twice')] * 2",
    "sleeps": f"time.sleep({SLEEP_S})",
    "sleeps long": f"time.sleep({LONG_SLEEP_S})",
    "segfaults": "ctypes.string_at(0)",
    "leaves": "os._exit(0)",
}

_HEAD = """
import asyncio, ctypes, itertools, os, sys, time
from hookserve.hookspecs import ModelEntry, Principal, hookimpl

CHILDREN = {{"process.py": "engine", "worker_process.py": "worker"}}
PROCESS = CHILDREN.get(os.path.basename(sys.argv[0]), "front")
CALLS = itertools.count(1)


class Panic(BaseException):
    "As compiled libraries raise them."


class Hostile:
    def _refuse(self, *args):
        raise RuntimeError("hands off")

    __eq__ = __bool__ = __len__ = __iter__ = __getattr__ = __repr__ = _refuse
    __hash__ = None


def act():
    if {process!r} in (PROCESS, {everywhere!r}):
        {code}
"""
_HOOK = """

@hookimpl
def {hook}():
    return act()
"""
_NOTHING_ELSE = """

@hookimpl
def hf_config():
    pass
"""
_HALF = """

@hookimpl(tryfirst=True)
def {hook}():
    return ModelEntry("Half", "nowhere:Half")
"""


class FaultPlugin(NamedTuple):
    """One of them. ``hook`` is the function that does it, or ``IMPORT``; with ``half`` another
    hook, ``half``, has declared a model before."""

    process: str
    hook: str
    fault: str
    half: str | None = None

    @property
    def name(self) -> str:
        words = [self.process, self.hook, *self.fault.split(), *(["half"] if self.half else [])]
        return "_".join(words)

    @property
    def identity(self) -> str:
        return f"file:{self.name}"

    @property
    def source(self) -> str:
        text = _HEAD.format(process=self.process, everywhere=EVERYWHERE, code=FAULTS[self.fault])
        if self.half is not None:
            text += _HALF.format(hook=self.half)
        if self.hook == IMPORT:
            return text + _NOTHING_ELSE + "\n\nact()\n"
        return text + _HOOK.format(hook=self.hook)


def write(folder: Path, plugins: Iterable[FaultPlugin]) -> list[str]:
    """A file for each, and the flags that load them."""
    flags = []
    for plugin in plugins:
        file = folder / f"{plugin.name}.py"
        file.write_text(plugin.source)
        flags += ["--plugin", str(file)]
    return flags


ASKED = {
    "authenticate": "request, ctx",
    "before_request": "request, ctx",
    "admit": "request, ctx",
    "before_response": "request, ctx",
}
"""Hooks that are asked about a request, by the arguments that their plugins want."""

_ASKED = """

@hookimpl
def {hook}({arguments}):
    headers = {{name.lower(): value for name, value in dict(request.headers).items()}}
    hook, _, fault = headers.get("x-fault", "").partition("/")
    if hook == {hook!r}:
        return FAULTS[fault]()
    return {otherwise}


def _fault(code):
    space = {{}}
    lines = "def fault():\\n    " + code
    exec(lines, globals(), space)
    return space["fault"]


FAULTS = {{name: _fault(code) for name, code in {faults!r}.items()}}
"""


def write_asked(folder: Path) -> list[str]:
    """A plugin for each hook that is asked about a request, ``asked_HOOK``: it fails as the
    request's header ``X-Fault: HOOK/FAULT`` says; and the flags that load them."""
    flags = []
    for hook, arguments in ASKED.items():
        otherwise = "None"
        if hook == "authenticate":
            otherwise = "Principal('p', scopes=frozenset({'inference', 'admin'}))"
        text = _HEAD.format(process="", everywhere=EVERYWHERE, code="pass")
        text += _ASKED.format(hook=hook, arguments=arguments, otherwise=otherwise, faults=FAULTS)
        file = folder / f"asked_{hook}.py"
        file.write_text(text)
        flags += ["--plugin", str(file)]
    return flags
