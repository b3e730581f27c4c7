"""The platform of this process as the engine uses it: one object of the class that the platform
plugin named, and the questions that take more than a call.

Which platform it is, ``hookspecs.platforms`` decides; what a platform may say, ``platform``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import getattr_static, signature
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from .errors import ConfigError
from .plugin_code import as_plugin, telling_of_torch

if TYPE_CHECKING:
    import torch

    from hookserve.hookspecs import Claim, Host

    from .config import ModelConfig
    from .platform import Platform
    from .vllm_config import VllmConfig

logger = logging.getLogger(__name__)

NOT_CALLED = frozenset(
    [
        "check_runner_kv_caches_multi_layer",
        "device_control_id_to_physical_device_id",
        "device_id_to_physical_device_id",
        "enable_multi_stream_overlap",
        "get_all_gpu_pci_bus_ids",
        "get_compile_backend",
        "get_default_ir_op_priority",
        "get_global_graph_pool",
        "get_max_output_tokens",
        "get_mla_prefill_backend_cls",
        "get_nixl_memory_type",
        "get_nixl_supported_devices",
        "get_pass_manager_cls",
        "get_punica_wrapper",
        "get_static_graph_wrapper_cls",
        "get_supported_vit_attn_backends",
        "get_vit_attn_backend",
        "import_ir_kernels",
        "make_synced_weight_loader",
        "register_custom_kv_cache_specs",
        "register_triton_kernel_overrides",
        "set_additional_forward_context",
        "stateless_init_device_torch_dist_pg",
        "support_deep_gemm",
        "support_hybrid_kv_cache",
        "support_static_graph_mode",
        "update_block_size_for_backend",
        "use_custom_op_collectives",
        "use_sync_weight_loader",
        "validate_environ",
        "validate_request",
    ]
)
"""The ecosystem's methods that a platform may define and nothing here has a use for."""


class AttentionSelectorConfig(NamedTuple):
    """What the attention of the model to come must do."""

    head_size: int
    dtype: torch.dtype
    kv_cache_dtype: str | None = "auto"
    block_size: int | None = None
    use_mla: bool = False
    has_sink: bool = False
    use_sparse: bool = False
    use_mm_prefix: bool = False
    use_per_head_quant_scales: bool = False
    attn_type: str = "decoder"
    use_non_causal: bool = False
    use_batch_invariant: bool = False


def import_platform(claim: Claim, host: Host) -> Platform:
    """The platform's object, which is one for each process.

    Raises:
        hookserve.hookspecs.PluginError: the class cannot be imported, or is no platform.
    """
    if claim.made is None:
        with telling_of_torch(f"platform {claim.name!r}", claim.owner):
            make_platform(claim, host.registry("platform").resolve(claim.name))
    made: Platform = claim.made
    return made


def make_platform(claim: Claim, cls: Any) -> Platform:
    """Make the object that stays.

    Raises:
        hookserve.hookspecs.PluginError: it is no platform, or cannot be made.
    """
    from hookserve.hookspecs import PluginError
    from hookserve.hookspecs.context import enter
    from hookserve.hookspecs.errors import describe_error
    from hookserve.hookspecs.notify_loop import caught

    from .platform import Platform

    if not isinstance(cls, type) or not issubclass(cls, Platform):
        said = f"platform '{claim.name}': {cls!r:.120} is no subclass of {Platform.__module__}:"
        raise PluginError(claim.owner, "register", f"{said}{Platform.__qualname__}")
    try:
        with enter(claim.plugin):
            claim.made = cls()
    except caught() as error:
        said = f"platform '{claim.name}': {cls.__qualname__}() raised {describe_error(error)}"
        raise PluginError(claim.owner, "register", said) from error
    made: Platform = claim.made
    return made


def prepare_platform(host: Host) -> Platform:
    """The platform in front, told that a configuration is about to be made.

    Raises:
        hookserve.hookspecs.PluginError: it cannot be used, or raised.
    """
    claim = host.platform()
    platform = import_platform(claim, host)
    with as_plugin(host, claim.plugin, "pre_register_and_update"):
        platform.pre_register_and_update()
    with as_plugin(host, claim.plugin, "log_warnings"):
        platform.log_warnings()
    idle = [name for name in sorted(NOT_CALLED) if _has_own(type(platform), name)]
    if idle:
        said = "platform %s of %s: nothing here calls its %s"
        logger.info(said, claim.name, claim.owner, ", ".join(idle))
    return platform


def check_with_platform(model: ModelConfig, architecture: str, host: Host) -> ModelConfig:
    """The model as the platform takes it.

    Raises:
        hookserve.hookspecs.PluginError: it refuses the architecture or the length.
        ConfigError: its answer is no length.
    """
    claim = host.platform()
    platform = import_platform(claim, host)
    with as_plugin(host, claim.plugin, "verify_model_arch"):
        platform.verify_model_arch(architecture)
    with as_plugin(host, claim.plugin, "check_max_model_len"):
        length = platform.check_max_model_len(model.max_model_len)
    if type(length) is not int or length < 1:
        raise ConfigError(
            f"check_max_model_len of {claim.owner} gave {length!r}; expected a number of tokens"
        )
    if length != model.max_model_len:
        logger.info(
            "%s changed max_model_len from %d to %d", claim.owner, model.max_model_len, length
        )
    return msgspec.structs.replace(model, max_model_len=length)


def _has_own(cls: type[Platform], name: str) -> bool:
    from .platform import Platform

    return getattr_static(cls, name, None) is not getattr_static(Platform, name, None)


def choose_attention(platform: Platform, vllm_config: VllmConfig) -> str | None:
    """The attention backend that the platform wants; ``None``: it has no wish.

    Raises:
        TypeError: it asks for an argument that there is none of.
    """
    if not _has_own(type(platform), "get_attn_backend_cls"):
        return None
    model = vllm_config.model_config
    wanted = AttentionSelectorConfig(
        head_size=model.get_head_size(),
        dtype=model.dtype,
        kv_cache_dtype=vllm_config.cache_config.cache_dtype,
        block_size=vllm_config.cache_config.block_size,
    )
    given = wanted._asdict() | {
        "selected_backend": None,
        "attn_selector_config": wanted,
        "num_heads": model.get_num_attention_heads(vllm_config.parallel_config),
        "use_v1": True,
    }
    return call_by_names(platform.get_attn_backend_cls, given) or None


def call_by_names(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call with what the function asks for by its parameters' names: methods of platforms have
    lost and gained parameters, and one that was written for another time is meant as well.

    Raises:
        TypeError: it asks for what is not there.
    """
    asked = list(signature(function).parameters.values())
    places = [each for each in asked if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    missing = [p.name for p in places if p.name not in given and p.default is p.empty]
    if missing:
        raise TypeError(
            f"asks for {', '.join(missing)}; expected arguments among {', '.join(given)}"
        )
    by_place = [p for p in places if p.kind is p.POSITIONAL_ONLY]
    by_name = {p.name: given[p.name] for p in places if p not in by_place and p.name in given}
    return function(*[given[p.name] for p in by_place], **by_name)
