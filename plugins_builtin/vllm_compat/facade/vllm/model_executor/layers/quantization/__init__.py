"""Quantizations by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hookserve.hookspecs import declare
from hookserve.ops.quantization import QuantizationConfig
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

__all__ = [
    "QUANTIZATION_METHODS",
    "QuantizationConfig",
    "get_quantization_config",
    "register_quantization_config",
]

__surface__ = {
    "QUANTIZATION_METHODS": "live: the names that are registered so far",
    "QuantizationConfig": (
        "live: the worker makes one by from_config, and layers ask it for their method"
    ),
    "get_quantization_config": "live: the class that is registered for a name",
    "register_quantization_config": (
        "live: registers a class for --quantization and for checkpoints that name it"
    ),
}


T = TypeVar("T", bound=type[QuantizationConfig])

_classes = RegistryView("quantization")


class _Names(Sequence[str]):
    """The registered names, as much as there are by now."""

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return list(self)[index]

    def __len__(self) -> int:
        return len(_classes)

    def __iter__(self) -> Iterator[str]:
        return iter(_classes)

    def __repr__(self) -> str:
        return repr(list(self))


QUANTIZATION_METHODS = _Names()


def register_quantization_config(quantization: str) -> Callable[[T], T]:
    """Class decorator.

    Raises:
        ValueError: what is decorated is no subclass of ``QuantizationConfig``.
    """

    def register(quant_config_cls: T) -> T:
        given: object = quant_config_cls
        if not isinstance(given, type) or not issubclass(given, QuantizationConfig):
            raise ValueError(
                f"{given!r} cannot be registered as quantization {quantization!r}: it is no "
                "subclass of QuantizationConfig"
            )
        declare("quantization", quantization, quant_config_cls)
        return quant_config_cls

    return register


def get_quantization_config(quantization: str) -> type[QuantizationConfig]:
    """
    Raises:
        ValueError: nobody registered the name; those that are there are listed.
    """
    if quantization not in _classes:
        known = ", ".join(_classes) or "none"
        raise ValueError(f"no quantization {quantization!r} is registered; there are: {known}")
    found: type[QuantizationConfig] = _classes[quantization]
    return found
