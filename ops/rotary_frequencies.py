"""How fast each pair of a head turns: the plain rotation and its published scalings.

Rotating is ``rotary_embedding``'s business. Each scaling names its source; where sources differ,
the values are those of transformers (``modeling_rope_utils``), by which models are published.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

Parameters = Mapping[str, Any]


def rotary_frequencies(
    dim: int, max_position: int, parameters: Parameters, max_length: int | None = None
) -> tuple[torch.Tensor, float]:
    """Radians a position for each pair, ``[dim / 2]`` float32, and the attention factor by which
    cosines and sines are multiplied.

    Args:
        dim: elements of a head that turn.
        max_position: positions the model was trained for, unless
            ``original_max_position_embeddings`` states another number.
        parameters: ``rope_type`` (or ``type``), ``rope_theta`` and what the type needs.
        max_length: the longest sequence that will be served.

    Raises:
        ValueError: for an unknown type, or one whose parameters are missing or make no sense.
    """
    rope_type = kind_of(parameters)
    if rope_type not in _FREQUENCIES:
        raise ValueError(
            f"rope type {rope_type!r} is not supported; supported are {', '.join(ROPE_TYPES)}"
        )
    return _FREQUENCIES[rope_type](dim, max_position, parameters, max_length)


def kind_of(parameters: Parameters) -> str:
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def _default(
    dim: int, max_position: int, parameters: Parameters, max_length: int | None
) -> tuple[torch.Tensor, float]:
    """Su et al., "RoFormer" (arXiv 2104.09864): ``theta^(-2i / dim)``."""
    return 1.0 / _wavelengths(dim, base_of(parameters)), 1.0


def _linear(
    dim: int, max_position: int, parameters: Parameters, max_length: int | None
) -> tuple[torch.Tensor, float]:
    """Chen et al., "Position Interpolation" (arXiv 2306.15595): positions divided by the factor."""
    plain = 1.0 / _wavelengths(dim, base_of(parameters))
    return plain / float(_required(parameters, "factor", "linear")), 1.0


def _dynamic(
    dim: int, max_position: int, parameters: Parameters, max_length: int | None
) -> tuple[torch.Tensor, float]:
    """ "NTK-aware" scaling (bloc97, emozilla; appendix of arXiv 2309.00071): the base grows with
    the length of the sequence once that exceeds the trained one.

    Keys in a cache keep the angle they were written with, so the base here is the one for
    ``max_length`` throughout: every sequence, however it is cut, sees the same rotation. Served no
    further than the trained length, it is the plain rotation.
    """
    factor = float(_required(parameters, "factor", "dynamic"))
    if dim <= 2:
        raise ValueError(
            f"rope type 'dynamic' needs more than one pair to turn, not {dim} elements"
        )
    length = max(max_length or max_position * factor, max_position)
    growth = factor * length / max_position - (factor - 1)
    base = base_of(parameters) * growth ** (dim / (dim - 2))
    return 1.0 / _wavelengths(dim, base), 1.0


def _llama3(
    dim: int, max_position: int, parameters: Parameters, max_length: int | None
) -> tuple[torch.Tensor, float]:
    """Llama 3.1's reference code (``apply_scaling``): slow rotations are slowed further by
    ``factor``, fast ones kept, those between blended."""
    plain = 1.0 / _wavelengths(dim, base_of(parameters))
    factor = float(_required(parameters, "factor", "llama3"))
    low = float(_required(parameters, "low_freq_factor", "llama3"))
    high = float(_required(parameters, "high_freq_factor", "llama3"))
    if high <= low:
        raise ValueError(
            f"rope type 'llama3' needs a high_freq_factor above low_freq_factor, not {high} and "
            f"{low}"
        )
    turns = _trained(parameters, max_position) * plain / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain / factor * (1 - blend) + plain * blend, 1.0


def _yarn(
    dim: int, max_position: int, parameters: Parameters, max_length: int | None
) -> tuple[torch.Tensor, float]:
    """Peng et al., "YaRN" (arXiv 2309.00071), section 3.2 and 3.4: pairs that turn often within
    the trained length are kept, those that turn seldom are interpolated, those between blended by
    their index; and attention is sharpened by a factor."""
    base = base_of(parameters)
    if base <= 1:
        raise ValueError(f"rope type 'yarn' needs a rope_theta above 1, not {base}")
    trained = _trained(parameters, max_position)
    factor = float(parameters.get("factor") or max_position / trained)

    def index_that_turns(times: float) -> float:
        return dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(base))

    low = index_that_turns(float(parameters.get("beta_fast") or 32))
    high = index_that_turns(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step, not a division by zero
    blend = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    wavelengths = _wavelengths(dim, base)
    inv_freq = blend / (factor * wavelengths) + (1 - blend) / wavelengths
    return inv_freq, _yarn_attention_factor(factor, parameters)


def _yarn_attention_factor(factor: float, parameters: Parameters) -> float:
    """``0.1 ln(factor) + 1`` (YaRN, equation 22), unless stated; ``mscale`` and ``mscale_all_dim``
    together weigh it as in DeepSeek's models."""
    stated = parameters.get("attention_factor")
    if stated is not None:
        return float(stated)

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    weight, all_dim = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if weight and all_dim:
        return magnitude(float(weight)) / magnitude(float(all_dim))
    return magnitude(1.0)


_FREQUENCIES: Mapping[
    str, Callable[[int, int, Parameters, int | None], tuple[torch.Tensor, float]]
] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
ROPE_TYPES: tuple[str, ...] = tuple(_FREQUENCIES)


def _wavelengths(dim: int, base: float) -> torch.Tensor:
    """``[dim / 2]``: positions for one radian."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    wavelengths: torch.Tensor = base**exponents
    return wavelengths


def base_of(parameters: Parameters) -> float:
    return float(parameters.get("rope_theta") or 10000.0)


def _trained(parameters: Parameters, max_position: int) -> float:
    return float(parameters.get("original_max_position_embeddings") or max_position)


def _required(parameters: Parameters, name: str, rope_type: str) -> Any:
    if parameters.get(name) is None:
        raise ValueError(f"rope type {rope_type!r} needs {name!r} in the model's configuration")
    return parameters[name]
