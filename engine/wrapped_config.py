"""``EngineArgs``' two methods that plugins wrap: the host that they work with, whose wrapper it is,
and what it changed, of the arguments or of what the methods give back.

Packages of the ecosystem wrap both with its own signatures, which know no host; so the host is not
an argument of theirs. Comparing the tree with the struct is ``config_changes``'.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from .config_changes import fold_changes
from .errors import ConfigError, HookserveError
from .plugin_arguments import tell_change
from .vllm_config import ModelConfig, VllmConfig

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Plugin

    from .config import EngineConfig
    from .engine_args import EngineArgs

_METHODS = ("create_engine_config", "create_model_config")
_host: contextvars.ContextVar[Host | None] = contextvars.ContextVar(
    "hookserve_config_host", default=None
)


@contextlib.contextmanager
def working_with(host: Host | None) -> Iterator[Host]:
    """Within the block the methods work with this host; with none given, with that of a block
    around this one, or of this process, or one for as long as it takes."""
    from .offline_host import any_host

    given = host or _host.get()
    with any_host() if given is None else contextlib.nullcontext(given) as found:
        token = _host.set(found)
        try:
            yield found
        finally:
            _host.reset(token)


def make_engine_config(args: EngineArgs, host: Host) -> EngineConfig:
    """Call ``create_engine_config`` through the class, and take over what wrappers changed; each
    change is logged with its owner, and the source of an argument from then on.

    Raises:
        ConfigError: a wrapper gave back no configuration, or one that cannot cross to another
            process.
        hookserve.hookspecs.PluginError: one of several wrappers raised something else than our own
            errors. Where there is one alone, its plugin is out, and all begins again without it.
    """
    before = {each.name: getattr(args, each.name) for each in fields(args)}
    made = _called(args, host, before)
    owner = _owner(args, host, *_METHODS)
    changed = [name for name, value in before.items() if getattr(args, name) != value]
    for plugin in _owners(args, host, *_METHODS):
        plugin.engine_arguments += changed
    for name in changed:
        tell_change(owner, name, before[name], getattr(args, name), args.sources.get(name))
    args.sources = {**args.sources, **dict.fromkeys(changed, f"plugin {owner}")}
    if not isinstance(made, VllmConfig) or made.engine_config is None:
        raise _gave_back(owner, "create_engine_config", made)
    return fold_changes(made.engine_config, made, owner)


def _called(args: EngineArgs, host: Host, before: Mapping[str, Any]) -> Any:
    from hookserve.hookspecs import Denied, HostError, PluginError
    from hookserve.hookspecs.errors import describe_error
    from hookserve.hookspecs.notify_loop import caught

    try:
        return args.create_engine_config()
    except (HookserveError, HostError):
        raise
    except caught() as error:
        owners = _owners(args, host, *_METHODS)
        said = f"a wrapper of {' or '.join(_METHODS)} raised {describe_error(error)}"
        if not owners:
            raise
        if len(owners) > 1:
            raise PluginError(_owner(args, host, *_METHODS), "run", said) from error
    for name, value in before.items():
        setattr(args, name, value)
    host.deny(Denied(owners[0].identity, "front", "run", said))
    return _called(args, host, before)


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
