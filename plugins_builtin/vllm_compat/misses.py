"""``Misses``: what was asked of the served package and is not there, by whom and where; and what
an error means that comes of it.

Asking is no fault: packages try one module and fall back to another. Only an error that leaves a
plugin's code is told, with the place, the reason where the facade has one, and the page.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType, TracebackType
from typing import Any

from hookserve.hookspecs import running
from hookserve.hookspecs.errors import causes_of

from .distributions import PACKAGE
from .foreign_files import unlisted

logger = logging.getLogger(__name__)

PAGE = "docs/vllm-plugins.md"
REFUSED = "refused:"
MAX_KEPT = 1000
_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_OURS = (PACKAGE, "hookserve")


@dataclass(frozen=True)
class Miss:
    """One name that somebody asked for."""

    symbol: str
    """``"vllm.module"``, or ``"vllm.module:name"``."""
    owner: str | None
    """Identity of the plugin whose code ran."""
    where: str
    """``file:line`` of who asked."""


class Misses:
    """Of this process, each once for each who asked."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str | None], Miss] = {}

    def note(self, symbol: str) -> None:
        plugin = running()
        owner = None if plugin is None else plugin.identity
        if (symbol, owner) in self._found or len(self._found) >= MAX_KEPT:
            return
        miss = self._found[symbol, owner] = Miss(symbol, owner, _asked_at(sys._getframe(1)))
        logger.debug(
            "%s asked for %s at %s, which is not served", owner or "code", symbol, miss.where
        )

    def of(self, owner: str | None) -> list[Miss]:
        """What one plugin asked for; ``None``: code that is no plugin's."""
        return [miss for miss in self._found.values() if miss.owner == owner]


def explain(error: BaseException) -> str | None:
    """What an error means that is about the served package; ``None``: it is about something else.

    An exception that was raised from such an error is about it too.
    """
    for cause in causes_of(error):
        symbol = missing_symbol(cause)
        if symbol is not None:
            what = f"{symbol} is not served here{_reason(symbol) or _lies_there(symbol)}"
            if _is_of_a_subclass(cause):  # it may as well be an attribute of the plugin's own
                what = f"if it is vLLM's, {what}"
            return f"{what}{_raised_at(cause)}; see {PAGE}"
    return None


def missing_symbol(error: BaseException) -> str | None:
    """``"vllm.module"`` or ``"vllm.module:name"`` of an error about one."""
    if isinstance(error, AttributeError):
        return _missing_attribute(error)
    if not isinstance(error, ImportError):
        return None
    name = error.name or ""
    said = _NAME.search(str(error))
    if said is not None and _is_served_name(said.group(2)):
        return f"{said.group(2)}:{said.group(1)}"
    if isinstance(error, ModuleNotFoundError) and _is_served_name(name):
        return name
    return None


def _missing_attribute(error: AttributeError) -> str | None:
    holder = getattr(error, "obj", None)
    name = getattr(error, "name", None)
    if holder is None or name is None:
        return None
    if isinstance(holder, ModuleType):
        return f"{holder.__name__}:{name}" if _is_served_name(holder.__name__) else None
    served = _served_class(holder if isinstance(holder, type) else type(holder))
    return None if served is None else f"{served}.{name}"


def _is_of_a_subclass(error: BaseException) -> bool:
    holder = getattr(error, "obj", None)
    if not isinstance(error, AttributeError) or isinstance(holder, ModuleType):
        return False
    cls = holder if isinstance(holder, type) else type(holder)
    return all(served is not cls for _, served in _classes_served())


def _served_class(cls: type) -> str | None:
    """The name under which a class, or the first of its bases, is served."""
    found = list(_classes_served())
    for base in cls.__mro__:
        for name, served in found:
            if served is base:
                return name
    return None


def _classes_served() -> Iterator[tuple[str, type]]:
    for module_name, module in list(sys.modules.items()):
        if _is_served_name(module_name):
            for name in getattr(module, "__surface__", ()):
                value = vars(module).get(name)
                if isinstance(value, type) and value.__module__.partition(".")[0] in _OURS:
                    yield f"{module_name}:{name}", value


def _is_served_name(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _reason(symbol: str) -> str:
    """Why the name, or a package that it would be in, is not served, where the facade says it."""
    module, _, attribute = symbol.partition(":")
    parts = [*module.split("."), *attribute.split(".")[:1]]
    while len(parts) > 1:
        holder = sys.modules.get(".".join(parts[:-1]))
        said = _surface_of(holder).get(parts[-1], "")
        if said.startswith(REFUSED):
            return f": {said.removeprefix(REFUSED).strip()}"
        parts.pop()
    return ""


def _lies_there(symbol: str) -> str:
    path = None if ":" in symbol else unlisted(symbol)
    if path is None:
        return ""
    return (
        f": {path} is there, but no distribution lists it, as of an editable install; install it "
        "without -e"
    )


def _surface_of(module: ModuleType | None) -> dict[str, str]:
    found: Any = getattr(module, "__surface__", {})
    return found if isinstance(found, dict) else {}


# -- where ----------------------------------------------------------------------------------------


def _asked_at(frame: FrameType | None) -> str:
    while frame is not None and _is_machinery(frame):
        frame = frame.f_back
    return "(unknown)" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _raised_at(error: BaseException) -> str:
    """The innermost place outside the host and Python's own import."""
    found = [trace for trace in _traces(error.__traceback__) if not _is_machinery(trace.tb_frame)]
    if not found:
        return ""
    return f" ({found[-1].tb_frame.f_code.co_filename}:{found[-1].tb_lineno})"


def _traces(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_machinery(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    file = frame.f_code.co_filename
    top = name.partition(".")[0]
    return top in ("importlib", "_frozen_importlib", *_OURS) or file.startswith("<frozen importlib")
