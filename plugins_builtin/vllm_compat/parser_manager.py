"""``ParserManager``: the ecosystem's registry of parsers of one kind, over the host's.

A parser that is registered belongs to the plugin whose code is running; who wins a name that two
register is the host's to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hookserve.hookspecs import declare, is_claimed, known_claims

from .registry_view import RegistryView


class ParserManager:
    """A base for one class for each kind; none is made.

    Attributes:
        kind: of the host's registry.
        base: what parsers derive from.
        registered: the classes by name, as many as there are so far.
    """

    kind: ClassVar[str]
    base: ClassVar[type[Any]]
    registered: ClassVar[RegistryView]

    @classmethod
    def list_registered(cls) -> list[str]:
        """The names so far, of built-in parsers too."""
        return sorted(cls.registered)

    @classmethod
    def find(cls, name: str) -> Any:
        """
        Raises:
            KeyError: nobody registered it; with the names that there are.
        """
        if name not in cls.registered:
            known = ", ".join(cls.list_registered())
            raise KeyError(f"no {cls.kind} is called {name!r}; there are: {known}")
        return cls.registered[name]

    @classmethod
    def register_lazy_module(cls, name: str, module_path: str, class_name: str) -> None:
        """Register a class by its path; it is imported when it is needed."""
        declare(cls.kind, name, f"{module_path}:{class_name}")

    @classmethod
    def register_module(
        cls,
        name: str | Sequence[str] | None = None,
        force: bool = True,
        module: type[Any] | None = None,
    ) -> Any:
        """Register a class, or a decorator that does.

        Args:
            name: of one name or several; ``None``: that of the class.
            force: false: a name that is there already is an error. It is the host that decides
                between two plugins, whatever is said here.

        Raises:
            TypeError: no class of a parser, or names that are none.
            KeyError: without ``force``: the name is there.
        """
        if not (name is None or isinstance(name, str) or _are_texts(name)):
            raise TypeError(f"{cls.__name__}: a name is a str, or a list of them; got {name!r:.80}")
        if module is not None:
            cls._register(name, force, module)
            return module

        def decorate(found: type[Any]) -> type[Any]:
            cls._register(name, force, found)
            return found

        return decorate

    @classmethod
    def _register(cls, name: str | Sequence[str] | None, force: bool, found: type[Any]) -> None:
        given: object = found
        if not (isinstance(given, type) and issubclass(given, cls.base)):
            raise TypeError(f"{cls.__name__}: {given!r:.80} is no subclass of {cls.base.__name__}")
        names = [found.__name__] if name is None else [name] if isinstance(name, str) else name
        for each in names:
            if not force and is_claimed(cls.kind, each):
                owners = [one.owner for one in known_claims(cls.kind) if one.name == each]
                raise KeyError(f"{cls.kind} {each!r} is registered already, by {', '.join(owners)}")
            declare(cls.kind, each, found)


def _are_texts(names: object) -> bool:
    return isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
