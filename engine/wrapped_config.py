"""``EngineArgs``' two methods that plugins wrap: the host that they work with, whose wrapper it is,
and what it changed, of the arguments or of what the methods give back.

Packages of the ecosystem wrap both with its own signatures, which know no host; so the host is not
an argument of theirs. Comparing the tree with the struct is ``config_changes``'.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from .config_changes import fold_changes
from .ecosystem_arguments import FixedArgumentError, give_others, given_others
from .errors import ConfigError, HookserveError
from .given_arguments import take_forms
from .plugin_arguments import tell_change
from .section_arguments import SectionArguments
from .vllm_config import ModelConfig, VllmConfig

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Plugin

    from .config import EngineConfig
    from .engine_args import EngineArgs

_METHODS = ("create_engine_config", "create_model_config")
_host: contextvars.ContextVar[Host | None] = contextvars.ContextVar(
    "hookserve_config_host", default=None
)
_changes: contextvars.ContextVar[_Changes | None] = contextvars.ContextVar(
    "hookserve_argument_changes", default=None
)


@contextlib.contextmanager
def working_with(host: Host | None, args: EngineArgs | None = None) -> Iterator[Host]:
    """Within the block the methods work with this host; with none given, with that of a block
    around this one, or of this process, or one for as long as it takes.

    Args:
        args: what the methods read now; what wrappers have changed of them by now is noted.
    """
    from .offline_host import any_host

    changes = _changes.get()
    if changes is not None and changes.args is args:
        changes.note()
    given = host or _host.get()
    with any_host() if given is None else contextlib.nullcontext(given) as found:
        token = _host.set(found)
        try:
            yield found
        finally:
            _host.reset(token)


class _Changes:
    """What wrappers change of the arguments, beside what they were before."""

    def __init__(self, args: EngineArgs, host: Host) -> None:
        self.args = args
        self._host = host
        self._sources = args.sources
        self._before = self._state()
        self._others = given_others(args)
        self._known = self._state()

    def _state(self) -> dict[str, Any]:
        """Also of what is changed in its place; in the forms that the host gives them."""
        take_forms(self.args)
        return {
            each.name: _copy(getattr(self.args, each.name))
            for each in fields(self.args)
            if each.compare
        }

    def note(self) -> None:
        """Log what is new, and say from now on where it came from."""
        args, host = self.args, self._host
        known, self._known = self._known, self._state()
        owner = _owner(args, host, *_METHODS)
        for name in [name for name, value in self._known.items() if value != known[name]]:
            for plugin in _owners(args, host, *_METHODS):
                plugin.engine_arguments.append(name)
            tell_change(owner, name, known[name], self._known[name], args.sources.get(name))
            args.sources = {**args.sources, name: f"plugin {owner}"}

    def undo(self) -> None:
        for plugin in _owners(self.args, self._host, *_METHODS):
            changed = {name for name, value in self._before.items() if value != self._known[name]}
            plugin.engine_arguments[:] = [x for x in plugin.engine_arguments if x not in changed]
        for name, value in self._before.items():
            setattr(self.args, name, _copy(value))
        give_others(self.args, self._others)
        self.args.sources = self._sources
        self._known = self._state()


def _copy(value: Any) -> Any:
    """Of what can be changed in its place a copy, as deep as that goes."""
    if isinstance(value, SectionArguments):
        return copy.deepcopy(value.said())
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def make_engine_config(args: EngineArgs, host: Host) -> EngineConfig:
    """Call ``create_engine_config`` through the class, and take over what wrappers changed; each
    change is logged with its owner, and the source of an argument from then on.

    Raises:
        ConfigError: a wrapper set what cannot be, or gave back no configuration, or one that cannot
            cross to another process.
        hookserve.hookspecs.PluginError: one of several wrappers raised something else than our own
            errors, or what they changed did. Where there is one alone, its plugin is out, and all
            begins again without it.
    """
    changes = _Changes(args, host)
    token = _changes.set(changes)
    try:
        made = _called(args, host, changes)
    finally:
        _changes.reset(token)
    changes.note()
    owner = _owner(args, host, *_METHODS)
    if not isinstance(made, VllmConfig) or made.engine_config is None:
        raise _gave_back(owner, "create_engine_config", made)
    return fold_changes(made.engine_config, made, owner)


def _called(args: EngineArgs, host: Host, changes: _Changes) -> Any:
    from hookserve.hookspecs import Denied, HostError, PluginError
    from hookserve.hookspecs.errors import describe_error
    from hookserve.hookspecs.notify_loop import caught
    from hookserve.hookspecs.patch_owners import raised_in

    owners = _owners(args, host, *_METHODS)
    try:
        return args.create_engine_config()
    except FixedArgumentError as error:
        raise ConfigError(f"{_owner(args, host, *_METHODS)}: {error}") from error
    except (HookserveError, HostError):
        raise
    except caught() as error:
        said = f"a wrapper of {' or '.join(_METHODS)} raised {describe_error(error)}"
        if not owners:
            raise
        if len(owners) > 1:
            both = _owner(args, host, *_METHODS)
            said += f"; {both} wrap them, and what wraps another cannot be left out alone"
            raise PluginError(raised_in(error) or both, "run", said) from error
    changes.undo()
    host.deny(Denied(owners[0].identity, "front", "run", said))
    return _called(args, host, changes)


def take_model(config: EngineConfig, model: Any, args: EngineArgs, host: Host) -> EngineConfig:
    """``config`` with what wrappers of ``create_model_config`` changed in the section of the model.

    Args:
        config: made with the struct that ``model`` was made from.
    """
    owner = _owner(args, host, "create_model_config")
    tree = VllmConfig.from_engine_config(config)
    tree.model_config = model
    return fold_changes(config, tree, owner)


def check_model(model: Any, args: EngineArgs, host: Host) -> ModelConfig:
    """What ``create_model_config`` gave.

    Raises:
        ConfigError: it is none that an engine can be made with.
    """
    if not isinstance(model, ModelConfig) or not model.has_struct:
        raise _gave_back(_owner(args, host, "create_model_config"), "create_model_config", model)
    return model


def _gave_back(owner: str, method: str, made: Any) -> ConfigError:
    return ConfigError(
        f"{owner}: {method} gave back an object of type {type(made).__qualname__}; expected what "
        "the method that it wraps gave back, with changes if wanted"
    )


def _owner(args: EngineArgs, host: Host, *methods: str) -> str:
    """Whose code runs in these methods, in words."""
    owners = [each.identity for each in _owners(args, host, *methods)]
    return " and ".join(owners) or f"{type(args).__qualname__}.{methods[0]}"


def _owners(args: EngineArgs, host: Host, *methods: str) -> list[Plugin]:
    """By the patches that plugins' reports show."""
    names = {
        f"{kind.__module__}:{kind.__qualname__}.{method}"
        for kind in type(args).__mro__
        for method in methods
    }
    return [each for each in host.plugins if names & set(each.patches)]
