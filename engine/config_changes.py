"""What a plugin changed in the tree, carried back into the frozen struct.

A platform's ``check_and_update_config``, for one, receives the mutable ``VllmConfig``. Afterwards
the tree is compared with the one that the struct alone gives; plain changes become part of the
struct, each logged with its owner; anything else is refused by field and owner. Fields that the
struct has no place for travel in ``EngineConfig.tree_changes``, for other plugins to read.
"""

from __future__ import annotations

import copy
import enum
import logging
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from .config import EngineConfig
from .errors import ConfigError
from .plugin_code import as_plugin
from .vllm_config import CompilationConfig, HfConfig, LoadConfig, ModelConfig, VllmConfig

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Plugin

    from .platform import Platform

logger = logging.getLogger(__name__)

_MISSING = object()
_SECTIONS = {kind.__module__ for kind in (CompilationConfig, LoadConfig, ModelConfig)}
_STRUCT_FIELDS: dict[str, tuple[str, str]] = {
    "model_config.tokenizer": ("model", "tokenizer"),
    "model_config.hf_config": ("model", "hf_config"),
    "model_config.dtype_name": ("model", "dtype"),
    "model_config.max_model_len": ("model", "max_model_len"),
    "model_config.vocab_size": ("model", "vocab_size"),
    "model_config.seed": ("model", "seed"),
    "model_config.enforce_eager": ("", "enforce_eager"),
    "model_config.architectures": ("model", "architectures"),
    "model_config.max_logprobs": ("model", "max_logprobs"),
    "model_config.quantization": ("model", "quantization"),
    "model_config.logits_processors": ("model", "logits_processors"),
    "attention_config.backend": ("", "attention_backend"),
    "cache_config.block_size": ("cache", "block_size"),
    "cache_config.kv_cache_memory_bytes": ("cache", "kv_cache_memory_bytes"),
    "cache_config.num_gpu_blocks_override": ("cache", "num_gpu_blocks_override"),
    "cache_config.enable_prefix_caching": ("cache", "enable_prefix_caching"),
    "scheduler_config.max_num_seqs": ("scheduler", "max_num_seqs"),
    "scheduler_config.max_num_batched_tokens": ("scheduler", "max_num_batched_tokens"),
    "scheduler_config.max_model_len": ("model", "max_model_len"),
    "scheduler_config.policy": ("scheduler", "policy"),
    "scheduler_config.scheduler_cls": ("scheduler", "scheduler_cls"),
    "parallel_config.tensor_parallel_size": ("parallel", "tensor_parallel_size"),
    "parallel_config.distributed_executor_backend": ("parallel", "distributed_executor_backend"),
    "parallel_config.worker_cls": ("parallel", "worker_cls"),
    "parallel_config.worker_extension_cls": ("parallel", "worker_extension_cls"),
    "load_config.load_format": ("load", "load_format"),
    "load_config.model_loader_extra_config": ("load", "model_loader_extra_config"),
    "structured_outputs_config.backend": ("structured_outputs", "backend"),
    "structured_outputs_config.disable_any_whitespace": (
        "structured_outputs",
        "disable_any_whitespace",
    ),
    "structured_outputs_config.disable_additional_properties": (
        "structured_outputs",
        "disable_additional_properties",
    ),
    "device_config.device_type": ("device", "device_type"),
    "observability_config.log_stats": ("", "log_stats"),
    "additional_config": ("", "additional_config"),
}
_READ_IN_THE_TREE = (
    "compilation_config.custom_ops",
    "compilation_config.ir_op_priority",
    "model_config.io_processor_plugin",
)
"""What the engine takes from there, though no place in the struct belongs to it."""


def apply_platform(
    config: EngineConfig, platform: Platform, owner: Plugin, host: Host
) -> EngineConfig:
    """Let the platform change the tree, and return the struct with its changes.

    Raises:
        ConfigError: a changed field that is not plain data, or of the wrong type.
        hookserve.hookspecs.PluginError: the platform raised.
    """
    tree = VllmConfig.from_engine_config(copy.deepcopy(config))
    with as_plugin(host, owner, "check_and_update_config"):
        platform.apply_config_platform_defaults(tree)
        platform.check_and_update_config(tree)
    if tree.parallel_config.worker_cls == "auto":
        tree.parallel_config.worker_cls = platform.worker_cls
    return fold_changes(config, tree, owner.identity)


def fold_changes(config: EngineConfig, tree: VllmConfig, owner: str) -> EngineConfig:
    """Return ``config`` with what differs in ``tree``, and log each change with its owner.

    Raises:
        ConfigError: by field and owner, for a value that cannot cross to another process.
    """
    before = dict(_leaves(VllmConfig.from_engine_config(config)))
    struct: dict[str, Any] = msgspec.to_builtins(config)
    places: dict[str, tuple[str, Any]] = {}
    unread: list[str] = []
    for path, value in _leaves(tree):
        old = before.get(path, _MISSING)
        if old is not _MISSING and type(old) is type(value) and old == value:
            continue
        new = _plain(value, path, owner)
        shown = "nothing" if old is _MISSING else repr(_named(old))
        level = logging.DEBUG if old == "auto" else logging.INFO  # what was left open is no change
        logger.log(level, "%s changed %s from %.120s to %.120s", owner, path, shown, repr(new))
        place = _STRUCT_FIELDS.get(path)
        if place is None:
            struct["tree_changes"][path] = new
            if old is not _MISSING and path not in _READ_IN_THE_TREE:
                unread.append(path)
            continue
        key = ".".join(filter(None, place))
        if key in places and places[key][1] != new:
            raise ConfigError(
                f"{owner} set {places[key][0]} to {places[key][1]!r} and {path} to {new!r}; "
                "expected one value"
            )
        places[key] = (path, new)
        section = struct[place[0]] if place[0] else struct
        section[place[1]] = new
        if key == "model.dtype":
            struct["model"]["dtype_reason"] = f"set by {owner}"
        if key == "parallel.distributed_executor_backend":
            struct["parallel"]["executor_reason"] = f"set by {owner}"
    if unread:
        logger.info("%s: of these, the engine does not read %s", owner, ", ".join(unread))
    try:
        return msgspec.convert(struct, EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{owner} left the configuration with a wrong type: {error}") from error


def class_path(value: Any, name: str) -> str:
    """A setting that names a class: as it is, or the path of one that is given itself.

    Args:
        name: of the setting, for the message.

    Raises:
        ConfigError: another process could not import it.
    """
    return str(_plain(value, name, "EngineArgs"))


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every public field by its dotted path, attributes that a plugin added too."""
    declared = {each.name for each in fields(tree)}
    for name, value in vars(tree).items():
        if name.startswith("_") and name in declared:
            continue
        if is_dataclass(value) and type(value).__module__ in _SECTIONS:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value.to_dict() if isinstance(value, HfConfig) else value


def _named(value: Any) -> Any:
    return value.name if isinstance(value, enum.Enum) else value


def _plain(value: Any, path: str, owner: str) -> Any:
    """The value as data that crosses processes; an importable class becomes its path."""
    value = _named(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, path, owner) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{path}[{key!r}]", owner) for key, item in value.items()}
    if isinstance(value, type):
        found: Any = sys.modules.get(value.__module__)
        for part in value.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is value and value.__module__ != "__main__":
            return f"{value.__module__}:{value.__qualname__}"
    raise ConfigError(
        f"{owner} set {path} to an object of type {type(value).__qualname__}; expected plain "
        "data or an importable class, because the engine runs in another process"
    )
