"""``FrontConfig``: what front and engine are made with, after plugins and the model had their say.

Settings as the operator gave them are ``settings``'; how an engine's configuration comes about is
``EngineArgs``'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hookserve.engine.errors import ConfigError

from .setting_values import Origin
from .settings import Settings

if TYPE_CHECKING:
    from hookserve.engine.config import EngineConfig
    from hookserve.engine.engine_args import EngineArgs
    from hookserve.engine.text.tokenizer import Tokenizer
    from hookserve.hookspecs import Host


class FrontConfig(NamedTuple):
    settings: Settings
    """With what plugins changed, each value with its owner."""
    engine: EngineConfig
    tokenizer: Tokenizer


def configure(settings: Settings, host: Host) -> FrontConfig:
    """
    Raises:
        HookserveError, hookserve.hookspecs.HostError: whatever stops a start.
    """
    from hookserve.engine.plugin_arguments import ask_plugins
    from hookserve.engine.text.tokenizer import load_tokenizer

    before = settings.engine_args.sources
    args = ask_plugins(settings.engine_args, host)
    engine = args.to_engine_config(host)
    settings = _with_arguments(settings, args, before)
    if settings.server.single_process and engine.parallel.workers_are_apart:
        parallel = engine.parallel
        raise ConfigError(
            f"--single-process: the executor {parallel.distributed_executor_backend} "
            f"(--tensor-parallel-size {parallel.tensor_parallel_size}) runs each worker as a "
            "process of its own; expected one rank and the executor uni, or no --single-process"
        )
    return FrontConfig(settings, engine, load_tokenizer(engine.model.tokenizer))


def _with_arguments(settings: Settings, args: EngineArgs, before: Mapping[str, str]) -> Settings:
    """With what plugins made of the engine's arguments, and where that came from.

    Args:
        before: where they came from when the operator alone had spoken.
    """
    changed = [name for name, source in args.sources.items() if before.get(name) != source]
    origins = {name: Origin(*args.sources[name].split(" ", 1)) for name in changed}
    return msgspec.structs.replace(
        settings,
        engine_args=args,
        values={**settings.values, **{name: getattr(args, name) for name in changed}},
        origins={**settings.origins, **origins},
    )
