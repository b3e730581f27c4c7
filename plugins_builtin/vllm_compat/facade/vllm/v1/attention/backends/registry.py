"""Attention backends by name."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from hookserve.hookspecs import declare, known_claims
from hookserve.hookspecs.targets import import_target, target_text

__all__ = ["AttentionBackendEnum", "register_backend"]

__surface__ = {
    "AttentionBackendEnum": (
        "live: names of backends; CPU_ATTN and TRITON_ATTN are built in, the others are what "
        "plugins register for them"
    ),
    "register_backend": (
        "live: registers a class for --attention-backend, under a member's name or a new one; "
        "a new name is no member"
    ),
    "MambaAttentionBackendEnum": "refused: no architecture with such layers is served",
}


T = TypeVar("T", bound=type)

_BUILT_IN = {
    "CPU_ATTN": "hookserve.ops.compiled_attention.CompiledAttentionBackend",
    "TORCH_SDPA": "hookserve.ops.paged_attention.PagedAttentionBackend",
    "TRITON_ATTN": "hookserve.ops.triton.attention.TritonAttentionBackend",
}


class AttentionBackendEnum(Enum):
    """Names under which backends are known; the value of each is its name."""

    CPU_ATTN = "CPU_ATTN"
    CUSTOM = "CUSTOM"
    FLASHINFER = "FLASHINFER"
    FLASH_ATTN = "FLASH_ATTN"
    FLEX_ATTENTION = "FLEX_ATTENTION"
    NO_ATTENTION = "NO_ATTENTION"
    ROCM_ATTN = "ROCM_ATTN"
    TORCH_SDPA = "TORCH_SDPA"
    TRITON_ATTN = "TRITON_ATTN"

    def get_path(self, include_classname: bool = True) -> str:
        """The path of the class, or of its module.

        Raises:
            ValueError: nobody registered one.
        """
        path = target_text(self._target()).replace(":", ".")
        return path if include_classname else path.rpartition(".")[0]

    def get_class(self) -> type[Any]:
        """
        Raises:
            ValueError: nobody registered one.
        """
        found: type[Any] = import_target(self._target())
        return found

    def is_overridden(self) -> bool:
        """Whether a plugin registered one."""
        return any(claim.name == self.name for claim in known_claims("attention_backend"))

    def _target(self) -> Any:
        for claim in known_claims("attention_backend"):
            if claim.name == self.name:
                return claim.target
        if self.name not in _BUILT_IN:
            raise ValueError(
                f"no attention backend is registered as {self.name}; register one with "
                f"register_backend(AttentionBackendEnum.{self.name}, 'package.module.Class')"
            )
        return _BUILT_IN[self.name]


def register_backend(
    backend: AttentionBackendEnum | str, class_path: str | None = None, is_mamba: bool = False
) -> Callable[[T], T]:
    """Register a backend: at once by the path of its class, or as a class decorator.

    Raises:
        ValueError: for a layer of another kind than attention, or a name that is none.
    """
    name = backend if isinstance(backend, str) else backend.name
    if is_mamba or not name.isidentifier():
        what = "layers of Mamba are not served" if is_mamba else "a name of letters and digits"
        raise ValueError(f"attention backend {name!r} cannot be registered: {what}")

    def register(backend_class: T) -> T:
        declare("attention_backend", name, backend_class)
        return backend_class

    if class_path is None:
        return register
    declare("attention_backend", name, class_path)
    return lambda backend_class: backend_class
