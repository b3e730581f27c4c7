"""How a GGUF file says that a model's rotation is scaled, in the words of ``config.json``.

Linear and yarn scaling are metadata; Llama 3's is a tensor of frequency divisors, from which the
parameters that made it are found again.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .errors import ModelFileError
from .gguf import GGUFFile
from .gguf_metadata import Metadata

ROPE_FREQS = "rope_freqs.weight"
"""Llama 3.1's frequency divisors: a parameter of the format, a configuration of the ecosystem."""

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192
_LLAMA3_FACTORS = (8.0, 32.0)
_SCALING_TYPES = ("linear", "yarn")
_YARN_KEYS = {
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""What the format's converter copies from ``config.json``, unchanged."""


def rope_scaling_from_gguf(
    file: GGUFFile, metadata: Metadata, head_dim: int, theta: float
) -> dict[str, Any] | None:
    """The table ``rope_scaling`` of ``config.json``, ``None`` where nothing is scaled.

    Args:
        metadata: the keys of the file's family.
        head_dim: dimensions of a head, all of which are rotated.
        theta: the base of the frequencies.

    Raises:
        ModelFileError: a scaling that is not supported.
    """
    if ROPE_FREQS in file.tensors:
        return _llama3_scaling(file, head_dim, theta)
    if metadata.has("rope.scale_linear"):  # files from before scalings had a type
        return _linear(metadata.number("rope.scale_linear"))
    kind = metadata.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in _SCALING_TYPES:
        raise ModelFileError(
            f"{file.path}: rope scaling {kind!r} is not supported; supported: "
            f"{', '.join(_SCALING_TYPES)}"
        )
    scaling = _linear(metadata.number("rope.scaling.factor", 1.0))
    original = metadata.optional_count("rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    if kind == "yarn":
        scaling |= {"rope_type": "yarn", **_yarn_keys(metadata)}
    return scaling


def _linear(factor: float) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": factor}


def _yarn_keys(metadata: Metadata) -> dict[str, float]:
    extrapolation = metadata.optional_number("rope.scaling.yarn_ext_factor")
    if extrapolation not in (None, 1.0):
        raise metadata.fail(
            "rope.scaling.yarn_ext_factor", f"is {extrapolation}; only 1 is supported"
        )
    if metadata.has("rope.scaling.yarn_log_multiplier"):
        raise metadata.fail("rope.scaling.yarn_log_multiplier", "is not supported")
    found = {
        name: metadata.optional_number(f"rope.scaling.{key}") for key, name in _YARN_KEYS.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _llama3_scaling(file: GGUFFile, head_dim: int, theta: float) -> dict[str, Any]:
    """Which of Llama 3's published scalings the stored divisors are; others are refused."""
    info = file.tensors[ROPE_FREQS]
    if info.ggml_type != "F32" or info.shape != (head_dim // 2,):
        raise ModelFileError(
            f"{file.path}: tensor {ROPE_FREQS!r} is {info.ggml_type} {list(info.shape)}; "
            f"expected F32 [{head_dim // 2}]"
        )
    stored = file.raw(ROPE_FREQS).view(np.float32)
    for factor in _LLAMA3_FACTORS:
        if np.allclose(stored, _llama3_divisors(head_dim, theta, factor), rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                **_LLAMA3_ROPE,
                "original_max_position_embeddings": _LLAMA3_CONTEXT,
            }
    raise ModelFileError(
        f"{file.path}: tensor {ROPE_FREQS!r} holds a rope scaling that is none of Llama 3's "
        f"(factors {_LLAMA3_FACTORS}); it is not supported"
    )


def _llama3_divisors(head_dim: int, theta: float, factor: float) -> list[float]:
    low, high = _LLAMA3_ROPE["low_freq_factor"], _LLAMA3_ROPE["high_freq_factor"]
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        smooth = (_LLAMA3_CONTEXT / wavelength - low) / (high - low)
        smooth = min(1.0, max(0.0, smooth))
        divisors.append(1 / ((1 - smooth) / factor + smooth))
    return divisors
