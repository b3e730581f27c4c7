"""``Platform``: what the engine must know of the device it runs on.

A platform plugin subclasses this; the names are the ecosystem's. The class is imported in front
too (types, defaults, is it usable), so nothing here imports torch at import time. Kernels and
layers are chosen elsewhere.
"""

from __future__ import annotations

import enum
import platform as machine
from typing import TYPE_CHECKING, Any, ClassVar

from . import resources
from .errors import ConfigError, InvalidRequestError, cut
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

    from .vllm_config import VllmConfig


_DEFAULTS = SamplingParams()


class PlatformEnum(enum.Enum):
    CUDA = enum.auto()
    ROCM = enum.auto()
    TPU = enum.auto()
    XPU = enum.auto()
    CPU = enum.auto()
    OOT = enum.auto()
    UNSPECIFIED = enum.auto()


class Platform:
    """Base of every platform. A subclass sets the attributes; the methods have defaults that suit
    a device whose memory is the machine's."""

    _enum: ClassVar[PlatformEnum] = PlatformEnum.UNSPECIFIED
    device_name: ClassVar[str] = ""
    """For people, such as ``"cpu"``."""
    device_type: ClassVar[str] = ""
    """What ``torch.device`` takes."""
    dist_backend: ClassVar[str] = ""
    """What ``torch.distributed`` takes."""
    dispatch_key: ClassVar[str] = "CPU"
    supported_quantization: ClassVar[list[str]] = []
    """Empty: everything is allowed."""
    supported_dtype_names: ClassVar[tuple[str, ...]] = ("bfloat16", "float16", "float32")
    """The first is preferred where the checkpoint leaves a choice."""
    worker_cls: ClassVar[str] = "hookserve.engine.worker:Worker"
    """Class path of the worker that drives this device."""
    unsupported_params: ClassVar[tuple[str, ...]] = ()
    """Fields of ``SamplingParams`` that mean nothing to this device: a request in which one is not
    at its default is refused before it is queued."""

    @classmethod
    def is_available(cls) -> tuple[bool, str]:
        """Whether this machine has the device, and the reason in one sentence."""
        return False, f"{cls.__qualname__} does not say that its device is available"

    def is_cpu(self) -> bool:
        return self._enum is PlatformEnum.CPU

    def is_cuda(self) -> bool:
        return self._enum is PlatformEnum.CUDA

    def is_rocm(self) -> bool:
        return self._enum is PlatformEnum.ROCM

    def is_cuda_alike(self) -> bool:
        return self._enum in (PlatformEnum.CUDA, PlatformEnum.ROCM)

    def is_out_of_tree(self) -> bool:
        return self._enum is PlatformEnum.OOT

    def is_unspecified(self) -> bool:
        return self._enum is PlatformEnum.UNSPECIFIED

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        import torch

        return [getattr(torch, name) for name in self.supported_dtype_names]

    @classmethod
    def native_bfloat16(cls) -> tuple[bool, str]:
        """Whether products of bfloat16 run in hardware, and how that is known."""
        native = cls.supported_dtype_names[0] == "bfloat16"
        return native, f"platform {cls.device_name} prefers {cls.supported_dtype_names[0]}"

    @classmethod
    def preferred_dtype(cls, checkpoint_dtype: str | None, format: str) -> tuple[str, str]:
        """The type for ``--dtype auto``, and why.

        Args:
            checkpoint_dtype: what the checkpoint says of itself, without ``torch.``; ``None`` if
                it says nothing.
            format: ``"safetensors"`` or ``"gguf"``.
        """
        if format != "gguf" and checkpoint_dtype in cls.supported_dtype_names:
            return checkpoint_dtype, "the checkpoint's own"
        native, reason = cls.native_bfloat16()
        return ("bfloat16", reason) if native else ("float32", reason)

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Raise ``ConfigError`` if models cannot run in this type."""
        name = str(dtype).removeprefix("torch.")
        if name not in cls.supported_dtype_names:
            raise ConfigError(
                f"platform {cls.device_name} does not support dtype {name}; "
                f"use --dtype with one of {', '.join(cls.supported_dtype_names)}"
            )

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

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Name or class path of the attention backend; empty: the built-in one. Asked where
        ``--attention-backend`` names none."""
        return ""

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
        """Bytes of the device that are free now, and where the number comes from."""
        return resources.available_memory()

    @classmethod
    def get_cpu_architecture(cls) -> str:
        return machine.machine().lower()
