"""``Snapshot``: the state of a process that a plugin's code can change for everybody, at one
moment, and what has changed since.

It reads and writes back: attributes of the host's own modules and classes, what their public
tables hold, ``os.environ``, the root and the host's loggers, signal handlers, warning filters.
Whose change it is, and whether it stays, is ``transaction``'s.
"""

from __future__ import annotations

import logging
import operator
import os
import signal
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HOST_PACKAGE = "hookserve"

MISSING = object()
"""The value of a name that is not there."""

_CACHES = frozenset({"__annotations__", "__builtins__", "__msgspec_cache__", "__warningregistry__"})
"""Attributes that Python and msgspec add to classes and modules by themselves."""

_TABLES = frozenset({dict, list, set})
"""The types of public attributes whose content is watched too; none of their subclasses."""


class Namespace(ABC):
    """Something with named values. Subclasses say how they are read and written."""

    title = ""
    """What its changes are called in a report."""
    is_host_code = False
    """Whether a change is a patch: other code runs in place of the host's."""

    @abstractmethod
    def read(self) -> Mapping[str, Any]:
        """All names and values; lists as tuples."""

    @abstractmethod
    def write(self, name: str, value: Any) -> None:
        """Set a value as ``read`` gave it; ``MISSING`` removes the name."""

    def label(self, name: str) -> str:
        """The name as a report shows it."""
        return name

    def may_stay(self, name: str, before: Any, after: Any) -> Any:
        """The value that is left where a plugin that works has changed it."""
        return after

    def is_news(self, name: str, before: Any, after: Any) -> bool:
        """Whether an operator should know of the change."""
        return True


@dataclass(frozen=True, eq=False)
class Change:
    """One value that was changed. Values are never compared by their own ``__eq__``."""

    namespace: Namespace
    name: str
    before: Any
    after: Any

    @property
    def label(self) -> str:
        return self.namespace.label(self.name)

    def undo(self) -> bool:
        """Put the value back; false if somebody has changed it since then."""
        now = self.namespace.read().get(self.name, MISSING)
        if same(now, self.after):
            self.namespace.write(self.name, self.before)
        elif all(isinstance(value, tuple) for value in (now, self.before, self.after)):
            self.namespace.write(self.name, self._without_mine(now))
        else:
            return False
        return True

    def _without_mine(self, now: tuple[Any, ...]) -> tuple[Any, ...]:
        kept = [item for item in now if _has(self.before, item) or not _has(self.after, item)]
        gone = [item for item in self.before if not _has(self.after, item) and not _has(now, item)]
        return (*gone, *kept)


class Snapshot:
    """What everything was when it was made. ``add_module`` takes in modules that come later.

    Args:
        served: top-level packages of other hosts that this one serves, whose modules are its own.
    """

    def __init__(self, served: Iterable[str] = ()) -> None:
        self._packages = frozenset({HOST_PACKAGE, *served})
        self._taken: list[tuple[Namespace, dict[str, Any]]] = []
        self._tables: set[int] = set()
        for namespace in (Environment(), WarningFilters(), *self._loggers()):
            self._take(namespace)
        if threading.current_thread() is threading.main_thread():
            self._take(Signals())  # elsewhere nobody can set one
        for name, module in list(sys.modules.items()):
            if self.is_host_module(name) and isinstance(module, ModuleType):
                self.add_module(module)

    def is_host_module(self, name: str) -> bool:
        return name.partition(".")[0] in self._packages

    def _loggers(self) -> list[LoggerState]:
        """Of the root, of each package and of each logger of the host; those that plugins are given
        are theirs, and so are those that they name after modules that are not there."""
        for package in self._packages:
            logging.getLogger(package)  # made here if nobody has asked for it so far
        own: list[logging.Logger] = [logging.root]
        for name, logger in list(logging.root.manager.loggerDict.items()):
            package = name.partition(".")[0]
            is_plugins = name.startswith(f"{HOST_PACKAGE}.plugin.") or (
                name not in self._packages and package != HOST_PACKAGE and name not in sys.modules
            )
            if package in self._packages and not is_plugins and isinstance(logger, logging.Logger):
                own.append(logger)
        return [LoggerState(logger) for logger in own]

    def add_module(self, module: ModuleType) -> None:
        """Take in a module of the host as it is now, with the classes that it defines. What others
        have installed into a package that is served is theirs."""
        if not _is_where_its_package_is(module):
            return
        self._take_holder(Attributes(module, module.__name__))
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                self._take_holder(Attributes(value, f"{module.__name__}:{value.__qualname__}"))

    def _take_holder(self, holder: Attributes) -> None:
        """Take a module or class, and the tables that it holds for others to read; one that stands
        in several is taken once."""
        held = self._take(holder)
        for name, value in [each for each in held.items() if type(each[1]) in _TABLES]:
            if not name.startswith("_") and id(value) not in self._tables:
                self._tables.add(id(value))  # it stays alive in what is taken
                self._take(Table(value, holder.label(name)))

    def _take(self, namespace: Namespace) -> dict[str, Any]:
        now = dict(namespace.read())
        self._taken.append((namespace, now))
        return now

    def changes(self) -> list[Change]:
        """What is different now, in the order in which it was taken."""
        return [
            change
            for namespace, before in self._taken
            for change in self._differences(namespace, before, namespace.read())
        ]

    def _differences(
        self, namespace: Namespace, before: Mapping[str, Any], now: Mapping[str, Any]
    ) -> Iterator[Change]:
        # Nearly always nothing has changed, and this is asked for some thousand attributes.
        if len(before) == len(now) and all(map(operator.is_, before.values(), now.values())):
            return
        for name, value in before.items():
            after = now.get(name, MISSING)
            if not same(value, after):
                yield Change(namespace, name, value, after)
        for name, value in list(now.items()):
            if name not in before and not self._comes_by_itself(namespace, name, value):
                yield Change(namespace, name, MISSING, value)

    def _comes_by_itself(self, namespace: Namespace, name: str, value: Any) -> bool:
        """Whether a new attribute is Python's or the host's own: a submodule, a lazy import."""
        if isinstance(namespace, Table):
            return self.is_host_module(str(getattr(value, "__module__", None)))
        if not isinstance(namespace, Attributes):
            return False
        if name in _CACHES:
            return True
        if not isinstance(namespace.holder, ModuleType):
            return False
        is_module = isinstance(value, ModuleType)
        home = value.__name__ if is_module else getattr(value, "__module__", None)
        return self.is_host_module(str(home)) or _is_lazy(namespace.holder, name, value)


def _is_where_its_package_is(module: ModuleType) -> bool:
    package = module.__name__.partition(".")[0]
    if package == HOST_PACKAGE:
        return True
    folder = next(iter(getattr(sys.modules.get(package), "__path__", ())), None)
    file = getattr(module, "__file__", None)
    return None in (folder, file) or f"{file}".startswith(f"{folder}/")


def _is_lazy(module: ModuleType, name: str, value: Any) -> bool:
    """Whether the module itself makes the value when it is asked for the name."""
    make = vars(module).get("__getattr__")
    if make is None or name not in getattr(module, "__all__", ()):
        return False
    made = make(name)
    if vars(module).get(name, MISSING) is not value:
        setattr(module, name, value)  # it keeps what it has made, and this stands in its place
    return made is value


def same(left: Any, right: Any) -> bool:
    """Whether two values are one, without asking their own ``__eq__``."""
    if left is right:
        return True
    if type(left) is tuple and type(right) is tuple:
        return len(left) == len(right) and all(map(operator.is_, left, right))
    return type(left) in (str, int, bool) and type(left) is type(right) and bool(left == right)


def _has(items: Sequence[Any], item: Any) -> bool:
    return any(item is other for other in items)


# -- what is watched ------------------------------------------------------------------------------


class Attributes(Namespace):
    """Of a module or a class of the host."""

    title = "host code"
    is_host_code = True

    def __init__(self, holder: ModuleType | type, name: str) -> None:
        self.holder = holder
        self._name = name

    def read(self) -> Mapping[str, Any]:
        return vars(self.holder)

    def write(self, name: str, value: Any) -> None:
        if value is MISSING:
            delattr(self.holder, name)
        else:
            setattr(self.holder, name, value)

    def label(self, name: str) -> str:
        return f"{self._name}{':' if isinstance(self.holder, ModuleType) else '.'}{name}"


class Table(Namespace):
    """What a dict, list or set holds that is a public attribute of a module or class of the host.
    What plugins add is what it is there for; what they take out or replace is told."""

    title = "host data"

    def __init__(self, table: dict[Any, Any] | list[Any] | set[Any], name: str) -> None:
        self._table = table
        self._name = name

    def read(self) -> Mapping[Any, Any]:
        return self._table if isinstance(self._table, dict) else {"": tuple(self._table)}

    def write(self, name: Any, value: Any) -> None:
        if isinstance(self._table, list):
            self._table[:] = value
        elif isinstance(self._table, set):
            self._table.clear()
            self._table.update(value)
        elif value is MISSING:
            del self._table[name]
        else:
            self._table[name] = value

    def label(self, name: Any) -> str:
        if not isinstance(self._table, dict):
            return self._name
        return f"{self._name}[{name!r}]" if type(name) in (str, int) else f"{self._name}[...]"

    def is_news(self, name: Any, before: Any, after: Any) -> bool:
        if isinstance(self._table, dict):
            return before is not MISSING
        return any(not _has(after, item) for item in before)


class Environment(Namespace):
    title = "os.environ"

    def read(self) -> Mapping[str, Any]:
        return dict(os.environ)

    def write(self, name: str, value: Any) -> None:
        if value is MISSING:
            del os.environ[name]
        else:
            os.environ[name] = value


class Signals(Namespace):
    """Handlers belong to the program that the host is, or is embedded in: none may be replaced."""

    title = "signal handlers"

    def read(self) -> Mapping[str, Any]:
        return {_signal_name(number): signal.getsignal(number) for number in _SIGNALS}

    def write(self, name: str, value: Any) -> None:
        if value is not None:  # else it was not set by Python, and cannot be set by Python
            signal.signal(signal.Signals[name], value)

    def may_stay(self, name: str, before: Any, after: Any) -> Any:
        return after if before is None else before


_SIGNALS = tuple(
    number for number in signal.Signals if number not in (signal.SIGKILL, signal.SIGSTOP)
)


def _signal_name(number: int) -> str:
    return signal.Signals(number).name


class WarningFilters(Namespace):
    title = "warnings"

    def read(self) -> Mapping[str, Any]:
        return {"filters": tuple(warnings.filters)}

    def write(self, name: str, value: Any) -> None:
        warnings.filters[:] = value  # type: ignore[index]
        with warnings.catch_warnings():
            pass  # leaving it is the public way to say that the list was changed

    def is_news(self, name: str, before: Any, after: Any) -> bool:
        """Many libraries add a filter for one warning of theirs. What silences others, or takes
        filters away, is told."""
        added = [item for item in after if not _has(before, item)]
        gone = [item for item in before if not _has(after, item)]
        return bool(gone) or any(each[1:4] == (None, Warning, None) for each in added)


class LoggerState(Namespace):
    """Level, handlers and switches of the root logger or of one of the host's. A plugin may add
    to them; what was there keeps its place, and nobody is silenced."""

    title = "loggers"

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def read(self) -> Mapping[str, Any]:
        logger = self._logger
        state = {
            "level": logger.level,
            "handlers": tuple(logger.handlers),
            "filters": tuple(logger.filters),
            "disabled": logger.disabled,
            "propagate": logger.propagate,
        }
        if logger is logger.root:
            state["logging.disable"] = logger.manager.disable
        return state

    def write(self, name: str, value: Any) -> None:
        logger = self._logger
        match name:
            case "level":
                logger.setLevel(value)
            case "handlers":
                logger.handlers[:] = value
            case "filters":
                logger.filters[:] = value
            case "logging.disable":
                logging.disable(value)
            case _:
                setattr(logger, name, value)

    def label(self, name: str) -> str:
        return f"{self._logger.name} {name}"

    def may_stay(self, name: str, before: Any, after: Any) -> Any:
        if name in ("disabled", "propagate", "logging.disable"):
            return before
        if name == "level" and after > (before or logging.WARNING):  # not set: as the root's
            return before
        if name == "handlers":
            gone = [handler for handler in before if not _has(after, handler)]
            return (*gone, *after) if gone else after
        return after


# -- modules that come later ----------------------------------------------------------------------


class ModuleWatch:
    """Takes modules of the host into a snapshot as they are imported, before whoever imported them
    can patch them. A context manager: first in ``sys.meta_path`` meanwhile."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *error: object) -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not self._snapshot.is_host_module(name):
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    watched: Any = _WatchedLoader(spec.loader, self._snapshot)
                    spec.loader = watched
                return spec
        return None


class _WatchedLoader:
    """Another loader, and the snapshot that is told when it is through. The module is left with
    its own loader."""

    def __init__(self, loader: Any, snapshot: Snapshot) -> None:
        self._loader = loader
        self._snapshot = snapshot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._snapshot.add_module(module)
