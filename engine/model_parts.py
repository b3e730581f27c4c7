"""What plugins contribute to a model before it is built: the class of its configuration, the
attention backend, the ops and the quantization. The worker fills them into its tree here.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from hookserve.hookspecs.current_host import describe_patch
from hookserve.hookspecs.errors import HostError, PluginError
from hookserve.ops.attention_backend import AttentionBackend
from hookserve.ops.paged_attention import AS_WRITTEN
from hookserve.ops.quantization import QuantizationConfig
from hookserve.ops.triton.availability import why_not

from .errors import ConfigError
from .hf_configs import make_hf_config
from .kernel_choice import choose_kernels
from .model_loader import building
from .op_choices import choose_ops
from .plugin_code import as_plugin
from .quantized import find_quantized
from .regular_file import read_json_object
from .vllm_config import VllmConfig

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.ops.dispatch import OpSet

T = TypeVar("T")

logger = logging.getLogger(__name__)

_PLAIN = "paged"
"""The attention backend of every device."""


def prepare_parts(vllm_config: VllmConfig, host: Host) -> list[str]:
    """Fill ``hf_config``, ``attention_config.backend_classes``, the kernels, the ops and
    ``quant_config`` in.

    Returns:
        What was asked for by name, for a message about what the model does with it.

    Raises:
        UnknownNameError: a name that nobody registered; with the nearest ones.
        hookserve.hookspecs.PluginError: a class that cannot be imported, is of another kind, or
            raises.
        ConfigError: the quantization cannot compute in the model's type.
    """
    model, attention = vllm_config.model_config, vllm_config.attention_config
    assert vllm_config.engine_config is not None, "made from an EngineConfig, like every tree"
    model.hf_config = make_hf_config(vllm_config.engine_config.model.hf_config, host)
    said = []
    vllm_config.compilation_config.kernels = choose_kernels(
        vllm_config,
        host.settings.cache_dir,
        lambda: host.calls.compile_cache_key(vllm_config),
    )
    ops = vllm_config.compilation_config.ops = choose_ops(vllm_config, host)
    names = [attention.backend] if attention.backend else _own_backends(vllm_config, host)
    attention.backend_classes = _backend_classes(names, vllm_config, host)
    ops.backends = {
        backend: (name, _owner("attention_backend", name, host))
        for name, backend in zip(names, attention.backend_classes, strict=True)
    }
    if attention.backend:
        owner = _owner("attention_backend", attention.backend, host)
        said.append(f"attention backend {attention.backend} of {owner}")
    if model.quantization is not None:
        vllm_config.quant_config = _make_quant_config(vllm_config, model.quantization, host)
        owner = _owner("quantization", model.quantization, host)
        said.append(f"quantization {model.quantization} of {owner}")
    return said


def _backend_classes(names: list[str], vllm_config: VllmConfig, host: Host) -> list[Any]:
    """
    Raises:
        ConfigError: the platform asked for one that cannot be had.
        hookserve.hookspecs.HostError: the operator did.
    """
    try:
        return [_resolve("attention_backend", name, AttentionBackend, host) for name in names]
    except HostError as error:
        asked, config = vllm_config.attention_config.backend, vllm_config.engine_config
        if asked is None or config is None or config.attention_backend is not None:
            raise
        whose = f"get_attn_backend_cls of platform {host.platform().owner}"
        raise ConfigError(
            f"{whose} asks for what cannot be had, and --attention-backend would choose another: "
            f"{error}"
        ) from error


def describe_ops(ops: OpSet, host: Host) -> list[str]:
    """What of the model plugins compute by overrides and providers, so far, for a message."""
    theirs = {
        (claim.owner, claim.target_text() if kind == "oot_op" else claim.declaration.name)
        for kind in ("oot_op", "op_provider")
        for claim in host.registry(kind).claims()
        if not claim.plugin.is_builtin
    }
    return [
        f"op {row.op}: {row.implementation} of {row.owner}"
        for row in ops.rows()
        if (row.owner, row.implementation) in theirs
    ]


def _own_backends(vllm_config: VllmConfig, host: Host) -> list[str]:
    """Without a name the built-in one that is made for the device, in the layers that it takes, and
    the plain one; that alone where a plugin has changed or replaced it."""
    fast_name = _fast_backend(vllm_config.device_config.device)
    if fast_name is None:
        return [_PLAIN]
    fast, plain = (host.registry("attention_backend").get(name) for name in (fast_name, _PLAIN))
    patched = AS_WRITTEN.replaced()
    if fast is None or not fast.plugin.is_builtin:
        return [fast_name, _PLAIN]
    if plain is not None and not plain.plugin.is_builtin:
        why = f"{plain.owner} overrides attention backend '{plain.name}'"
    elif patched is not None:
        why = describe_patch(patched)
    else:
        return [fast_name, _PLAIN]
    if fast_name != "compiled" or vllm_config.compilation_config.kernels is not None:
        logger.info("plain path for attention because %s", why)
    return [_PLAIN]


def heed_patched_attention(vllm_config: VllmConfig, host: Host) -> None:
    """Have layers attend by the plain backend where they have taken a fast one by themselves, and
    the plain one has been patched since. To be called before layers have a cache."""
    attention = vllm_config.attention_config
    if attention.backend or len(attention.backend_classes) < 2 or not AS_WRITTEN.replaced():
        return
    if _own_backends(vllm_config, host) != [_PLAIN]:
        return  # the fast one is not the project's
    fast, plain = attention.backend_classes
    attention.backend_classes = [plain]
    with building(vllm_config, vllm_config.model_config):
        for layer in vllm_config.compilation_config.static_forward_context.values():
            if isinstance(getattr(layer, "impl", None), fast.get_impl_cls()):
                layer.change_backend(plain)


def _fast_backend(device: torch.device) -> str | None:
    """The name of the built-in one that is made for the device."""
    if device.type != "cuda":
        return "compiled"
    reason = why_not(device)
    if reason is not None:
        logger.info("layers attend with torch: %s", reason)
        return None
    return "triton"


def _owner(kind: str, name: str, host: Host) -> str:
    claim = host.registry(kind).get(name)
    return name if claim is None else claim.owner


def _resolve(kind: str, name: str, base: type[T], host: Host) -> type[T]:
    found = host.registry(kind).resolve(name)
    if not isinstance(found, type) or not issubclass(found, base):
        message = f"{kind} '{name}': {found!r} is not a subclass of {base.__module__}."
        raise PluginError(_owner(kind, name, host), "register", message + base.__name__)
    return found


def _make_quant_config(vllm_config: VllmConfig, name: str, host: Host) -> QuantizationConfig:
    cls = _resolve("quantization", name, QuantizationConfig, host)
    claim = host.registry("quantization").get(name)
    with as_plugin(host, claim.owner if claim else None, f"quantization '{name}'"):
        made = cls.from_config(_details(vllm_config, cls))
        dtypes = list(made.get_supported_act_dtypes())
        needed = made.get_min_capability()
    _check_capability(name, needed, vllm_config.device_config.device)
    if dtypes and vllm_config.model_config.dtype not in dtypes:
        shown = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ConfigError(
            f"quantization '{name}' does not compute in {vllm_config.model_config.dtype_name}; "
            f"use --dtype with one of {shown}"
        )
    return made


def _check_capability(name: str, needed: int, device: torch.device) -> None:
    if device.type != "cuda":
        return
    major, minor = torch.cuda.get_device_capability(device)
    if major * 10 + minor < needed:
        raise ConfigError(
            f"quantization '{name}' needs a device of compute capability {needed / 10}; this one "
            f"has {major}.{minor}"
        )


def _details(vllm_config: VllmConfig, cls: type[QuantizationConfig]) -> dict[str, Any]:
    """What ``from_config`` is given."""
    assert vllm_config.engine_config is not None
    model = vllm_config.engine_config.model
    found = find_quantized(model.hf_config)
    if found is not None:
        return dict(found.details)
    beside = [os.path.join(model.path, name) for name in cls.get_config_filenames()]
    return next((read_json_object(path) for path in beside if os.path.exists(path)), {})
