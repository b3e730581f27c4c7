"""``Platform``: what the engine must know of the device it runs on.

A platform plugin subclasses this; the names are the ecosystem's. The class is imported in front
too (types, defaults, is it usable), so nothing here imports torch at import time. Kernels and
layers are chosen elsewhere; when it is asked what, ``platform_calls`` knows.
"""

from __future__ import annotations

from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar

from . import resources
from .errors import ConfigError, InvalidRequestError, cut
from .platform_facts import CpuArchEnum, DeviceCapability, PlatformEnum, PlatformFacts
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    import argparse

    import torch

    from .platform_calls import AttentionSelectorConfig
    from .vllm_config import VllmConfig

__all__ = ["CpuArchEnum", "DeviceCapability", "Platform", "PlatformEnum", "UnspecifiedPlatform"]


_DEFAULTS = SamplingParams()
DEFAULT_WORKER = "hookserve.engine.worker:Worker"


class Platform(PlatformFacts):
    """Base of every platform. A subclass sets the attributes; the methods have defaults that suit
    a device whose memory is the machine's. A process has one object of the class, made without
    arguments; an attribute that the class lacks is looked up in torch's module of the device
    (``torch.cuda`` for ``"cuda"``)."""

    device_name: ClassVar[str] = ""
    """For people, such as ``"cpu"``."""
    device_type: ClassVar[str] = ""
    """What ``torch.device`` takes."""
    dist_backend: ClassVar[str] = ""
    """What ``torch.distributed`` takes."""
    dispatch_key: ClassVar[str] = "CPU"
    ray_device_key: ClassVar[str] = ""
    """For plugins to read, as the next two: no worker is started by Ray, and none is given a
    device by the environment."""
    device_control_env_var: ClassVar[str] = ""
    additional_env_vars: ClassVar[list[str]] = []
    simple_compile_backend: ClassVar[str] = "inductor"
    """For plugins to read: models are not compiled."""
    supported_quantization: ClassVar[list[str]] = []
    """Empty: everything is allowed."""
    supported_dtype_names: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    """The first is preferred where the checkpoint leaves a choice. A class that has its own
    ``supported_dtypes`` need not have it too."""
    worker_cls: ClassVar[str] = DEFAULT_WORKER
    """Class path of the worker that drives this device, where ``check_and_update_config`` leaves
    it at ``"auto"``."""
    unsupported_params: ClassVar[tuple[str, ...]] = ()
    """Fields of ``SamplingParams`` that mean nothing to this device: a request in which one is not
    at its default is refused before it is queued."""

    @classmethod
    def is_available(cls) -> tuple[bool, str]:
        """Whether this machine has the device, and the reason in one sentence."""
        return False, f"{cls.__qualname__} does not say that its device is available"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        import torch

        return [getattr(torch, name) for name in self.supported_dtype_names]

    @classmethod
    def dtype_names(cls) -> tuple[str, ...]:
        """Of ``supported_dtypes``, as a class may have written it; else without torch."""
        if cls.supported_dtypes is Platform.supported_dtypes:
            return cls.supported_dtype_names
        return tuple(str(dtype).removeprefix("torch.") for dtype in cls().supported_dtypes)

    def __getattr__(self, name: str) -> Any:
        """Raises:
        AttributeError: nor has torch's module of the device, if there is one.
        """
        if not name.startswith("_") and self.device_type:
            import torch

            found = getattr(getattr(torch, self.device_type, None), name, None)
            if found is not None:
                return found
        raise AttributeError(
            f"platform {type(self).__qualname__} has no attribute {name!r}, and nor has torch for "
            f"devices of type {self.device_type!r}"
        )

    @classmethod
    def native_bfloat16(cls) -> tuple[bool, str]:
        """Whether products of bfloat16 run in hardware, and how that is known."""
        first = cls.dtype_names()[0]
        return first == "bfloat16", f"platform {cls.device_name} prefers {first}"

    @classmethod
    def preferred_dtype(cls, checkpoint_dtype: str | None, format: str) -> tuple[str, str]:
        """The type for ``--dtype auto``, and why.

        Args:
            checkpoint_dtype: what the checkpoint says of itself, without ``torch.``; ``None`` if
                it says nothing.
            format: ``"safetensors"`` or ``"gguf"``.
        """
        names = cls.dtype_names()
        if format != "gguf" and checkpoint_dtype in names:
            return checkpoint_dtype, "the checkpoint's own"
        native, reason = cls.native_bfloat16()
        if not native and "float32" not in names:
            return names[0], f"platform {cls.device_name} prefers {names[0]}"
        return ("bfloat16", reason) if native else ("float32", reason)

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Raise ``ConfigError`` if models cannot run in this type."""
        name, known = str(dtype).removeprefix("torch."), cls.dtype_names()
        if name not in known:
            raise ConfigError(
                f"platform {cls.device_name} does not support dtype {name}; "
                f"use --dtype with one of {', '.join(known)}"
            )

    # -- at the start -----------------------------------------------------------------------------

    @classmethod
    def pre_register_and_update(cls, parser: argparse.ArgumentParser | None = None) -> None:
        """Called in front before the engine's configuration is made, by a server first with the
        parser of its flags, which have been read by then: what is changed there has no effect, and
        the operator is told of options that are added."""

    @classmethod
    def log_warnings(cls) -> None:
        """Called in front once, before the configuration is made."""

    @classmethod
    def verify_model_arch(cls, model_arch: str) -> None:
        """Called in front with the first architecture that is registered. Raise anything to refuse
        the model."""

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        """Called in front where layers are quantized. Raise a ``ValueError`` to refuse it."""
        if cls.supported_quantization and quant not in cls.supported_quantization:
            raise ConfigError(
                f"quantization {quant!r}: platform {cls.device_name} takes "
                f"{', '.join(cls.supported_quantization)} alone"
            )

    @classmethod
    def check_max_model_len(cls, max_model_len: int) -> int:
        """Called in front with the longest sequence that would be served; the answer is served."""
        return max_model_len

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        """Called before ``check_and_update_config``, with the same."""

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Change the configuration to what the device needs. Called in each process, in front
        before anything is started, and safe to call again."""
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = cls.worker_cls

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse what the device cannot do for a request, before it is queued, beside
        ``unsupported_params``. Called in front, possibly in several threads at a time.

        Raises:
            ValueError: a request that cannot be served; what it has as ``param`` names the field,
                as that of ``hookserve.engine.errors.InvalidRequestError`` does.
        """
        del sampling_params

    @classmethod
    def refuse_unsupported(cls, sampling_params: SamplingParams) -> None:
        """Called before ``validate_params``, so that a class that has one keeps its list.

        Raises:
            InvalidRequestError: a field of ``unsupported_params`` is not at its default.
        """
        for name in cls.unsupported_params:
            value = getattr(sampling_params, name)
            if value != getattr(_DEFAULTS, name):
                raise InvalidRequestError(
                    f"{cut(value)} is not supported on platform {cls.device_name}", param=name
                )

    # -- in a worker ------------------------------------------------------------------------------

    @classmethod
    def import_kernels(cls) -> None:
        """Called in each worker before its device is made ready."""

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: Any,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        """Name or class path of the attention backend; empty: the built-in one. Asked in each
        worker where ``--attention-backend`` names none, so that ``selected_backend`` is ``None``;
        arguments of earlier forms are given by their names (``platform_calls``)."""
        return ""

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Class path of what exchanges tensors between ranks. Asked where there are several."""
        return "hookserve.ops.device_communicator:DeviceCommunicatorBase"

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Make the device current for this process."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    @classmethod
    def inference_mode(cls) -> Any:
        import torch

        return torch.inference_mode(True)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return cls.device_name

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes."""
        return resources.total_memory()

    @classmethod
    def get_current_memory_usage(cls, device: torch.device | None = None) -> float:
        """Bytes that this process uses."""
        return float(resources.process_memory())

    @classmethod
    def available_memory(cls) -> tuple[int, str]:
        """Bytes of the device that are free now, and where the number comes from: a device with a
        memory of its own says how much it has and how much is used."""
        own = getattr_static(cls, "get_device_total_memory")
        if own is vars(Platform)["get_device_total_memory"]:
            return resources.available_memory()
        free = cls.get_device_total_memory() - int(cls.get_current_memory_usage())
        return max(0, free), f"memory of {cls.get_device_name()} beyond what this process uses"


class UnspecifiedPlatform(Platform):
    """Of no kind."""
