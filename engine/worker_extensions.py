"""Worker extensions: methods that plugins add to the worker, and what a call of one reaches.

The class of the worker is extended before it is instantiated, in a class of its own: nobody's class
is changed. An extension only adds: a name that the worker or another extension has is refused, with
both owners. What a worker does is ``worker``'s, which class it is ``worker_class``'s.
"""

from __future__ import annotations

import inspect
import logging
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import PluginConflictError, PluginError, describe_error
from hookserve.hookspecs.settings import Denied
from hookserve.hookspecs.worker_methods import is_worker_method

from .errors import ConfigError
from .late_refusals import late_refusals

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Plugin

logger = logging.getLogger(__name__)

_COMMON = frozenset({"builtins", "abc", "typing"})
"""Modules of bases that any two classes may have."""
_NOTHING = object()
_BY_NAME = "_hookserve_extensions"
"""Of an extended class: which extension each added name is of."""


@dataclass(frozen=True)
class Extension:
    name: str
    cls: type
    owner: Plugin | None
    """``None``: it was named by its class path."""

    @property
    def who(self) -> str:
        by = "" if self.owner is None else f" of plugin {self.owner.identity}"
        return f"worker extension {self.name!r}{by}"

    def names(self) -> list[str]:
        """What it adds: also names with one underscore, which it has for itself."""
        return [each for each in dir(self.cls) if not each.startswith("__") and each != "_abc_impl"]

    def exports(self, name: str) -> bool:
        """By its mark. A class that was written for another host and that the operator named has no
        marks: there every public method is meant."""
        method = getattr(self.cls, name)
        if self.owner is not None or self._has_marks:
            return is_worker_method(method)
        return not name.startswith("_") and inspect.isfunction(method)

    @property
    def _has_marks(self) -> bool:
        return any(is_worker_method(getattr(self.cls, each)) for each in self.names())

    def exported(self) -> list[str]:
        return [each for each in self.names() if self.exports(each)]

    def fault(self, text: str) -> Exception:
        if self.owner is None:
            return ConfigError(f"--worker-extension-cls {self.name}: {text}")
        return PluginError(self.owner.identity, "register", f"{self.who}: {text}")


class Extensions:
    """Those of one worker, in the order in which they are mixed in."""

    def __init__(self, host: Host, whose: str) -> None:
        """
        Args:
            whose: the worker and who asked for it, for messages.
        """
        self._host = host
        self._whose = whose
        self._found: list[Extension] = []

    def find(self, asked: str) -> None:
        """Take those that plugins declare, then those that the operator named beyond them.

        Args:
            asked: names and class paths, with commas between them.

        Raises:
            WorkerPluginsError: a plugin's extension cannot be used: the plugin is out, and
                everything is to start again.
            hookserve.hookspecs.RequiredPluginError: one of a plugin that must work cannot.
            ConfigError, hookserve.hookspecs.HostError: one that was named cannot.
        """
        registry = self._host.registry("worker_extension")
        with late_refusals(self._host):
            for claim in registry.claims():
                if claim.plugin.state == "active":
                    with self._refusing():
                        self._add(claim.name, registry.resolve(claim.name), claim.plugin)
        declared = {claim.name for claim in registry.claims()}
        for name in filter(None, (part.strip() for part in asked.split(","))):
            if name not in declared:
                self._add(name, registry.resolve(name), None)

    def extend(self, worker_cls: type) -> type:
        """A subclass with the methods of all; the class itself where there is none.

        Raises:
            PluginConflictError: two of them have one name.
            WorkerPluginsError, ConfigError: one of them and the worker do; as ``find`` does.
        """
        by_name: dict[str, Extension] = {}
        bases = {each for each in worker_cls.__mro__ if each.__module__ not in _COMMON}
        with late_refusals(self._host):
            for extension in self._found:
                with self._refusing():
                    self._check_bases(extension, bases)
                    self._check_constructor(extension)
                    self._check_names(extension, worker_cls, by_name)
                    worker_cls = self._mixed(worker_cls, extension)
                    by_name |= dict.fromkeys(extension.names(), extension)
                    setattr(worker_cls, _BY_NAME, dict(by_name))
        return worker_cls

    def check_attributes(self, worker: object) -> None:
        """
        Raises:
            WorkerPluginsError, ConfigError: an attribute that the worker's constructor made has the
                name of an extension's; as ``find`` does.
        """
        with late_refusals(self._host):
            for extension in self._found:
                with self._refusing():
                    taken = vars(worker).keys() & set(extension.names())
                    if taken:
                        raise self._clash(extension, min(taken))
                    logger.info("%s exports %s", extension.who, ", ".join(extension.exported()))

    def _add(self, name: str, cls: Any, owner: Plugin | None) -> None:
        extension = Extension(name, cls, owner)
        if not isinstance(cls, type):
            raise extension.fault(f"{cls!r:.120} is not a class")
        if not extension.exported():
            raise extension.fault(f"{cls.__qualname__} exports no method; mark it @worker_method")
        self._found.append(extension)

    def _check_bases(self, extension: Extension, bases: set[type]) -> None:
        shared = [each for each in extension.cls.__mro__ if each in bases]
        if shared:
            raise extension.fault(
                f"{extension.cls.__qualname__} is a {shared[0].__qualname__}, as is {self._whose}; "
                "an extension only adds, and a worker is named by --worker-cls"
            )

    def _check_constructor(self, extension: Extension) -> None:
        holder = next(each for each in extension.cls.__mro__ if "__init__" in vars(each))
        if holder.__module__ not in _COMMON:
            raise extension.fault(
                f"{holder.__qualname__} has a constructor, which nobody would call: the methods "
                "run on the worker; make what they keep where they first need it"
            )

    def _check_names(
        self, extension: Extension, worker_cls: type, by_name: Mapping[str, Extension]
    ) -> None:
        """What both inherit from one class is no clash."""
        for name in extension.names():
            there = inspect.getattr_static(worker_cls, name, _NOTHING)
            if there is _NOTHING or there is inspect.getattr_static(extension.cls, name):
                continue
            if name not in by_name:
                raise self._clash(extension, name)
            raise PluginConflictError(
                f"{by_name[name].who} and {extension.who} both have {name!r}; rename it in one of "
                "them, or leave one out"
            )

    def _clash(self, extension: Extension, name: str) -> Exception:
        return extension.fault(f"{name!r} is an attribute of {self._whose} already; rename it")

    def _mixed(self, worker_cls: type, extension: Extension) -> type:
        names = {"__module__": worker_cls.__module__, "__doc__": worker_cls.__doc__}
        bases = (worker_cls, extension.cls)
        try:
            return types.new_class(worker_cls.__name__, bases, {}, lambda body: body.update(names))
        except TypeError as error:
            raise extension.fault(f"{describe_error(error)}, beside {self._whose}") from error

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """A plugin that fails within is out everywhere."""
        try:
            yield
        except PluginError as error:
            self._host.deny(Denied(error.identity, "worker", error.stage, error.message))


def call_worker(worker: Any, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a method of the worker, or one that an extension exports, as the extension's owner.

    Raises:
        AttributeError: there is none of that name, or the extension does not export it.
    """
    extension: Extension | None = getattr(worker, _BY_NAME, {}).get(method)
    if extension is None:
        return getattr(worker, method)(*args, **kwargs)
    if not extension.exports(method):
        raise AttributeError(
            f"{extension.who} does not export {method!r}; mark it with @worker_method"
        )
    with enter(extension.owner):
        return getattr(worker, method)(*args, **kwargs)
