"""Attributes on weights: how a parameter wants to be loaded. Nothing about files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch


def set_weight_attrs(weight: torch.Tensor, attrs: Mapping[str, Any] | None) -> None:
    """Set attributes such as ``weight_loader``, ``output_dim``, ``input_dim`` on a weight.

    Raises:
        ValueError: if one of them is set already; a second owner would be lost silently.
    """
    for name, value in (attrs or {}).items():
        if hasattr(weight, name):
            raise ValueError(f"the weight already has an attribute {name!r}; it is not replaced")
        setattr(weight, name, value)


def copy_weight(param: torch.Tensor, loaded: torch.Tensor, what: str) -> None:
    """Copy ``loaded`` into ``param``, converting the dtype.

    Raises:
        ValueError: if the shapes differ. ``what`` says which part of the weight it is.
    """
    if param.shape != loaded.shape:
        raise ValueError(
            f"{what} has shape {list(loaded.shape)} in the checkpoint, "
            f"but the model expects {list(param.shape)}"
        )
    param.copy_(loaded)


def note_part(weight: torch.Tensor, part: int | str, parts: Iterable[int | str]) -> None:
    """Remember that one of the parts of which a weight is merged was loaded."""
    left = getattr(weight, "parts_left", None)
    weight.parts_left = (set(parts) if left is None else left) - {part}  # type: ignore[attr-defined]


def missing_parts(weight: torch.Tensor) -> Collection[int | str]:
    """Those that were not, of a weight of which others were."""
    left: Collection[int | str] = getattr(weight, "parts_left", ())
    return left
