"""``CustomOp`` and ``PluggableLayer``: the two kinds of classes that plugins replace, by name.

A model builds the class that it knows, and gets the replacement, if there is one. Which that is,
and which method of an op runs, is decided by the ``OpSet`` of the model that is being built
(``dispatch``); whose a replacement is, by ``hookspecs``. The names are the ecosystem's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar, cast, overload

from torch import nn

from hookserve.hookspecs import PluginError, running
from hookserve.hookspecs.as_written import AsWritten
from hookserve.hookspecs.errors import did_you_mean
from hookserve.hookspecs.op_names import class_of
from hookserve.hookspecs.self_registration import declare

from .context import get_ops
from .op_rule import OpNames, is_on_by_default
from .op_table import OpRow

T = TypeVar("T", bound="type[Replaceable]")


class Replaceable(nn.Module):
    """What both kinds share.

    Attributes:
        op_registry: every class that was registered, by its registered name.
        op_classes: the same by class name.
        name: the registered name; a replacement's is that of the class that it stands for.
    """

    op_registry: ClassVar[dict[str, type[Replaceable]]] = {}
    op_classes: ClassVar[dict[str, type[Replaceable]]] = {}
    name: ClassVar[str] = ""
    _owner: ClassVar[str] = ""
    as_written: ClassVar[AsWritten]
    """Of each registered class."""
    _row: OpRow | None = None
    """Of the table, for one that was built as part of a model."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        ops = get_ops()
        choice = None if ops is None else ops.choice(cls)
        made = super().__new__(cls if choice is None else cast("type[Self]", choice.made))
        if choice is not None:
            choice.row.built += 1
            made.__dict__["_row"] = choice.row
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # In the place of torch's own, which is these last three lines: a step calls hundreds.
        row = self._row
        if row is not None:
            row.calls += 1
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    @classmethod
    def register(cls, name: str, dynamic_arg_dims: Any = None) -> Callable[[T], T]:
        """Class decorator: the class is called ``name`` from now on, beside its own name.

        Args:
            dynamic_arg_dims: for a host that compiles ops; none is compiled here.

        Raises:
            PluginError: another class has one of the names.
        """

        del dynamic_arg_dims

        def register_class(op_class: T) -> T:
            if not isinstance(op_class, type) or not issubclass(op_class, cls):
                raise TypeError(f"{op_class!r} cannot be registered: it is no {cls.__name__}")
            plugin = running()
            owner = f"module {op_class.__module__}" if plugin is None else plugin.identity
            for held in (cls.op_registry.get(name), cls.op_classes.get(op_class.__name__)):
                if held is not None and _path(held) != _path(op_class):
                    raise PluginError(
                        owner,
                        "register",
                        f"registers op '{name}' as {_path(op_class)}, but {held._owner} has "
                        f"registered '{held.name}' as {_path(held)}; take other names",
                    )
            op_class.name, op_class._owner = name, owner
            op_class.as_written = AsWritten(op_class)
            cls.op_registry[name] = cls.op_classes[op_class.__name__] = op_class
            return op_class

        return register_class

    @overload
    @classmethod
    def register_oot(cls, _decorated_op_cls: T, name: str | None = None) -> T: ...

    @overload
    @classmethod
    def register_oot(
        cls, _decorated_op_cls: None = None, name: str | None = None
    ) -> Callable[[T], T]: ...

    @classmethod
    def register_oot(cls, _decorated_op_cls: Any = None, name: str | None = None) -> Any:
        """Build the decorated class in the place of a registered one, for the plugin whose code is
        running: ``@RMSNorm.register_oot``, ``@RMSNorm.register_oot()``,
        ``@CustomOp.register_oot(name="RMSNorm")`` or
        ``CustomOp.register_oot(_decorated_op_cls=Mine, name="RMSNorm")``.

        Args:
            name: either name of the one to replace; without it, it is the class itself.

        Raises:
            TypeError: what is decorated is no class, or no subclass of the one that it replaces.
            PluginError: there is no such op, or no plugin's code is running.
            PluginConflictError: another plugin replaces it too.
        """

        def register_class(op_class: T) -> T:
            if not isinstance(op_class, type):
                raise TypeError(
                    f"register_oot decorates classes, not {op_class!r}; the name of an op is given "
                    "as name=..."
                )
            replaced = cls._named(name or cls.__name__)
            check_replacement(replaced, op_class)
            declare("oot_op", replaced.__name__, op_class)
            return op_class

        return register_class if _decorated_op_cls is None else register_class(_decorated_op_cls)

    @classmethod
    def _named(cls, name: str) -> type[Replaceable]:
        found = find_op(name)
        if found is not None:
            return found
        plugin = running()
        raise PluginError(
            "(unknown)" if plugin is None else plugin.identity,
            "register",
            f"there is no op '{name}' to replace{did_you_mean(name, list(cls.op_classes))}",
        )


class PluggableLayer(Replaceable):
    """A layer of several ops, replaced as a whole."""


class CustomOp(Replaceable):
    """An op with a method for each platform; ``forward`` calls the one that was chosen when the
    op was built. Those of ``METHODS`` that a class does not define go on to ``forward_native``.
    """

    def __init__(self, *, enforce_enable: bool = False, compile_native: bool = False) -> None:
        """
        Args:
            enforce_enable: go by platform also where the op is switched off.
            compile_native: allows a host that compiles models to compile ``forward_native``; none
                is compiled here.
        """
        del compile_native
        super().__init__()
        self._method, self._provided = self.dispatch_forward(enforce_enable=enforce_enable)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, self._method)(*args, **kwargs)

    def dispatch_forward(self, *, enforce_enable: bool = False) -> tuple[str, Any]:
        """The name of the method to call, and what provides the op, if the method is
        ``forward_provided``."""
        ops = get_ops()
        if ops is None:
            return "forward_native", None
        return ops.method(type(self), enforce_enable=enforce_enable)

    def forward_native(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__qualname__} must define forward_native")

    def forward_provided(self, *args: Any, **kwargs: Any) -> Any:
        """By ``self._provided``; classes whose op can be provided define it."""
        return self.forward_native(*args, **kwargs)

    def forward_cuda(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_hip(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_cuda(*args, **kwargs)

    def forward_cpu(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_xpu(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_tpu(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    def forward_oot(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward_native(*args, **kwargs)

    @classmethod
    def enabled(cls) -> bool:
        """Whether an op of this class is more than ``forward_native`` in the model that is being
        built; outside of one, in a model without any settings."""
        ops = get_ops()
        return ops is None or ops.is_enabled(cls)

    @staticmethod
    def default_on() -> bool:
        """What ``enabled`` is for an op that nobody names and nobody overrides."""
        ops = get_ops()
        if ops is None:
            return is_on_by_default((), compiles=False)
        return is_on_by_default(ops.custom_ops, compiles=ops.compiles)


def find_op(name: str) -> type[Replaceable] | None:
    """The registered class of either name."""
    found = Replaceable.op_classes.get(class_of(name))
    return found or Replaceable.op_registry.get(name)


def names_of(op_class: type[Replaceable]) -> OpNames:
    return OpNames(op_class.name, op_class.__name__)


def check_replacement(replaced: type[Replaceable], given: object) -> None:
    """
    Raises:
        TypeError: Python would not initialise an object of the class.
    """
    if not isinstance(given, type) or not issubclass(given, replaced):
        raise TypeError(
            f"{given!r} cannot replace {replaced.__name__}: it is no subclass of {_path(replaced)}"
        )


def _path(op_class: type) -> str:
    return f"{op_class.__module__}:{op_class.__qualname__}"
