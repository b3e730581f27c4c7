"""What kind of device a platform is, and what plugins ask of it that is one and the same for every
device here. ``Platform`` inherits the answers; what the engine calls is ``platform``'s.
"""

from __future__ import annotations

import enum
import platform as machine
import sys
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    import torch


class PlatformEnum(enum.Enum):
    CUDA = enum.auto()
    ROCM = enum.auto()
    TPU = enum.auto()
    XPU = enum.auto()
    CPU = enum.auto()
    OOT = enum.auto()
    UNSPECIFIED = enum.auto()


class CpuArchEnum(enum.Enum):
    X86 = enum.auto()
    ARM = enum.auto()
    POWERPC = enum.auto()
    S390X = enum.auto()
    RISCV = enum.auto()
    OTHER = enum.auto()
    UNKNOWN = enum.auto()


_ARCHITECTURES = {
    "x86_64": CpuArchEnum.X86,
    "amd64": CpuArchEnum.X86,
    "i386": CpuArchEnum.X86,
    "i686": CpuArchEnum.X86,
    "s390x": CpuArchEnum.S390X,
}
_FAMILIES = {"arm": CpuArchEnum.ARM, "aarch": CpuArchEnum.ARM} | {
    "ppc": CpuArchEnum.POWERPC,
    "riscv": CpuArchEnum.RISCV,
}


class DeviceCapability(NamedTuple):
    """A device's generation, such as 9.0; generations are in order."""

    major: int
    minor: int

    def as_version_str(self) -> str:
        return f"{self.major}.{self.minor}"

    def to_int(self) -> int:
        """``90`` for 9.0; the minor number has one digit."""
        assert 0 <= self.minor < 10
        return self.major * 10 + self.minor


class PlatformFacts:
    """The kind of a platform, as its methods say. They are asked, and not ``_enum``: a plugin may
    keep the ``_enum`` of the platform that it builds on and say otherwise in one of them."""

    _enum: ClassVar[PlatformEnum] = PlatformEnum.UNSPECIFIED

    def is_cpu(self) -> bool:
        return self._enum is PlatformEnum.CPU

    def is_cuda(self) -> bool:
        return self._enum is PlatformEnum.CUDA

    def is_rocm(self) -> bool:
        return self._enum is PlatformEnum.ROCM

    def is_tpu(self) -> bool:
        return self._enum is PlatformEnum.TPU

    def is_xpu(self) -> bool:
        return self._enum is PlatformEnum.XPU

    def is_cuda_alike(self) -> bool:
        return self._enum in (PlatformEnum.CUDA, PlatformEnum.ROCM)

    def is_out_of_tree(self) -> bool:
        return self._enum is PlatformEnum.OOT

    def is_unspecified(self) -> bool:
        return self._enum is PlatformEnum.UNSPECIFIED

    @classmethod
    def get_cpu_architecture(cls) -> CpuArchEnum:
        """Of the machine."""
        name = machine.machine().lower()
        if not name:
            return CpuArchEnum.UNKNOWN
        by_family = (kind for start, kind in _FAMILIES.items() if name.startswith(start))
        return _ARCHITECTURES.get(name) or next(by_family, CpuArchEnum.OTHER)

    # -- the device's generation ------------------------------------------------------------------

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        """``None``: devices of this kind have none."""
        del device_id
        return None

    @classmethod
    def has_device_capability(cls, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        """Whether the device is of this generation or a later one; an int is ``to_int``'s."""
        found = cls.get_device_capability(device_id)
        if found is None:
            return False
        return (
            found >= capability if isinstance(capability, tuple) else found.to_int() >= capability
        )

    @classmethod
    def is_device_capability(cls, capability: tuple[int, int] | int, device_id: int = 0) -> bool:
        found = cls.get_device_capability(device_id)
        if found is None:
            return False
        return (
            found == capability if isinstance(capability, tuple) else found.to_int() == capability
        )

    @classmethod
    def is_device_capability_family(cls, capability: int, device_id: int = 0) -> bool:
        """Whether both have one major number; ``capability`` is ``to_int``'s."""
        found = cls.get_device_capability(device_id)
        return found is not None and found.major == capability // 10

    # -- what no device has here ------------------------------------------------------------------

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return cls._enum is not PlatformEnum.CPU

    @classmethod
    def is_sleep_mode_available(cls) -> bool:
        """No: an engine keeps its weights where they are."""
        return False

    @classmethod
    def supports_fp8(cls) -> bool:
        """No: nothing is computed in 8-bit floats."""
        return False

    @classmethod
    def supports_mx(cls) -> bool:
        return False

    @classmethod
    def is_fp8_fnuz(cls) -> bool:
        return False

    @classmethod
    def fp8_dtype(cls) -> torch.dtype:
        import torch

        return torch.float8_e4m3fn

    @classmethod
    def get_infinity_values(cls, dtype: torch.dtype) -> tuple[float, float]:
        del dtype
        return float("-inf"), float("inf")

    @classmethod
    def can_update_inplace(cls) -> bool:
        return True

    @classmethod
    def use_all_gather(cls) -> bool:
        """Yes: each rank has the whole row of logits."""
        return True

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        """No: the sum of the ranks is the communicator's."""
        return False

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """No: there is no compiler from whom attention would have to be hidden."""
        return False

    @classmethod
    def get_max_output_tokens(cls, prompt_len: int) -> int:
        """No limit but the model's."""
        del prompt_len
        return sys.maxsize
