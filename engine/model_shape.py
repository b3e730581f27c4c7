"""Whether the sizes that a model's configuration states can be a model's at all.

Looked at in front, before anything is sized or built by them: a hostile or damaged ``config.json``
must not reach tensor code. What an architecture needs beyond these is for its class to check, and
whether the weights fit is for the loader.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

NEEDED_SIZES: Mapping[str, int] = {
    "num_hidden_layers": 10**4,
    "hidden_size": 10**7,
    "num_attention_heads": 10**5,
    "vocab_size": 10**8,
}
"""Key to the largest size believed."""
OPTIONAL_SIZES: Mapping[str, int] = {
    "num_key_value_heads": 10**5,
    "head_dim": 10**5,
    "intermediate_size": 10**8,
}
"""The same for sizes that may be left out, or be null."""
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
MAX_LENGTH = 10**9
FACTOR_KEYS = ("rms_norm_eps", "rope_theta", "partial_rotary_factor")


def wrong_field(path: str, key: str, found: str, expected: str) -> str:
    """The sentence about a field of a model's configuration; ``found`` is shown as it is."""
    return (
        f"{path}: the model's configuration has {found} under {key!r}; expected {expected}; "
        "state it with --hf-overrides"
    )


def find_wrong_sizes(text_config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each wrong key with what was expected of it."""
    for key, most in NEEDED_SIZES.items():
        if not _is_size(text_config.get(key), most):
            yield key, f"a whole number from 1 to {most}"
    optional = {**OPTIONAL_SIZES, **dict.fromkeys(LENGTH_KEYS, MAX_LENGTH)}
    for key, most in optional.items():
        if text_config.get(key) is not None and not _is_size(text_config[key], most):
            yield key, f"a whole number from 1 to {most}"
    for key in FACTOR_KEYS:
        value = text_config.get(key)
        if value is not None and not _is_factor(value):
            yield key, "a number above 0"
    heads, groups = (text_config.get(k) for k in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(groups, int) and groups > 0 and heads % groups:
        yield "num_key_value_heads", f"a divisor of the {heads} attention heads"


def _is_size(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_factor(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0
