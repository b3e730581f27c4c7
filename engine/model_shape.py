"""Whether what a model's configuration states can be a model's at all: sizes, factors, switches,
names, and the rotation's parameters; and the length that they add up to.

Looked at in front, before anything is sized or built by them: a hostile or damaged ``config.json``
must not reach tensor code. Keys that nobody here reads are not looked at. What an architecture
needs beyond these is for its class to check, and whether the weights fit is for the loader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
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
    "ffn_dim": 10**8,
    "word_embed_proj_dim": 10**7,
    "sliding_window": 10**9,
}
"""The same for sizes that may be left out, or be null."""
NOT_NULL = ("intermediate_size", "ffn_dim", "rms_norm_eps", "query_pre_attn_scalar")
"""What may be left out by architectures that do not have it, and says nothing as null."""
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
MAX_LENGTH = 10**9
FACTOR_KEYS = (
    "rms_norm_eps",
    "rope_theta",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
)
FLAG_KEYS = (
    "attention_bias",
    "mlp_bias",
    "enable_bias",
    "tie_word_embeddings",
    "use_sliding_window",
    "do_layer_norm_before",
    "layer_norm_elementwise_affine",
)
NAME_KEYS = ("hidden_act", "hidden_activation", "activation_function")

ROPE_KEYS = ("rope_scaling", "rope_parameters")
"""Two names for one table; both may be there."""
MAX_ROPE_FACTOR = 10**6
ROPE_FACTORS = (
    "rope_theta",
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
)
ROPE_NEEDS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
STRETCHED_ROPES = ("linear", "dynamic", "yarn")
"""Scalings by which a model serves ``factor`` times the length it was trained for; others state
their whole length themselves."""

_NUMBER = "a number above 0"
_SHARE = "a number above 0, at most 1"
_FLAG = "true or false"
_NAME = "a name"

Wrong = Iterator[tuple[str, str]]


def wrong_field(path: str, key: str, found: str, expected: str) -> str:
    """The sentence about a field of a model's configuration; ``found`` is shown as it is."""
    return (
        f"{path}: the model's configuration has {found} under {key!r}; expected {expected}; "
        "state it with --hf-overrides"
    )


def find_wrong_fields(text_config: Mapping[str, Any]) -> Wrong:
    """Each wrong key with what was expected of it; a key inside a table as ``table.key``."""
    yield from _wrong_sizes(text_config)
    for key in NOT_NULL:
        if key in text_config and text_config[key] is None:
            yield key, _NUMBER
    for key in FACTOR_KEYS:
        yield from _unless(text_config, key, _is_factor, _NUMBER)
    yield from _unless(text_config, "partial_rotary_factor", _is_share, _SHARE)
    for key in FLAG_KEYS:
        yield from _unless(text_config, key, _is_flag, _FLAG)
    for key in NAME_KEYS:
        yield from _unless(text_config, key, _is_name, _NAME)
    for key in ROPE_KEYS:
        yield from _wrong_rotation(key, text_config.get(key))


def _wrong_sizes(text_config: Mapping[str, Any]) -> Wrong:
    for key, most in NEEDED_SIZES.items():
        if not _is_size(text_config.get(key), most):
            yield key, f"a whole number from 1 to {most}"
    optional = {**OPTIONAL_SIZES, **dict.fromkeys(LENGTH_KEYS, MAX_LENGTH)}
    for key, most in optional.items():
        if text_config.get(key) is not None and not _is_size(text_config[key], most):
            yield key, f"a whole number from 1 to {most}"
    heads, groups = (text_config.get(k) for k in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(groups, int) and groups > 0 and heads % groups:
        yield "num_key_value_heads", f"a divisor of the {heads} attention heads"
    first, layers = (text_config.get(k) for k in ("max_window_layers", "num_hidden_layers"))
    if first is not None and first != 0 and not _is_size(first, 10**4):
        yield "max_window_layers", f"a whole number from 0 to {10**4}"
    types = text_config.get("layer_types")
    if types is not None and not (
        isinstance(types, list) and len(types) == layers and all(map(_is_name, types))
    ):
        yield "layer_types", f"a list of {layers} names, one for each layer"


def _wrong_rotation(at: str, table: Any) -> Wrong:
    if table is None:
        return
    if not isinstance(table, Mapping):
        yield at, "an object, or null"
        return
    if table and all(isinstance(value, Mapping) for value in table.values()):
        for name, inner in table.items():  # one table for each type of layer
            yield from _wrong_rotation(f"{at}.{name}", inner)
        return
    at += "."
    for key in ("rope_type", "type"):
        yield from _unless(table, key, _is_name, _NAME, at)
    for key in ROPE_FACTORS:
        yield from _unless(table, key, _is_factor, _NUMBER, at)
    stretch = f"a number above 0, at most {MAX_ROPE_FACTOR}"
    yield from _unless(table, "factor", _is_stretch, stretch, at)
    for key in ("mscale", "mscale_all_dim"):
        yield from _unless(table, key, _is_weight, "a number, at least 0", at)
    yield from _unless(table, "partial_rotary_factor", _is_share, _SHARE, at)
    yield from _unless(table, "truncate", _is_flag, _FLAG, at)
    key, length = "original_max_position_embeddings", f"a whole number from 1 to {MAX_LENGTH}"
    yield from _unless(table, key, lambda value: _is_size(value, MAX_LENGTH), length, at)
    for key in ROPE_NEEDS.get(str(rope_type(table)), ()):
        if table.get(key) is None:
            yield at + key, f"{_NUMBER}, which rope type {rope_type(table)!r} needs"


def _unless(
    table: Mapping[str, Any], key: str, is_right: Callable[[Any], bool], expected: str, at: str = ""
) -> Wrong:
    if table.get(key) is not None and not is_right(table[key]):
        yield at + key, expected


def value_at(table: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """Whether there is anything under a key of ``find_wrong_fields``, and what."""
    value: Any = table
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value


def rope_type(table: Mapping[str, Any]) -> Any:
    return table.get("rope_type") or table.get("type") or "default"


def find_length(text_config: Mapping[str, Any]) -> int | None:
    """Tokens of the longest sequence that a right configuration states, scaling included."""
    length = next((int(text_config[key]) for key in LENGTH_KEYS if text_config.get(key)), None)
    table: dict[str, Any] = {}
    for key in ROPE_KEYS:
        table |= text_config.get(key) or {}
    if length is None or rope_type(table) not in STRETCHED_ROPES or not table.get("factor"):
        return length
    trained = table.get("original_max_position_embeddings") or length
    return int(min(max(trained * table["factor"], 1), MAX_LENGTH))


def _is_size(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_weight(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A whole number may be too large to be made a float; comparing the two is exact.
    return is_number and 0 <= value <= sys.float_info.max


def _is_factor(value: Any) -> bool:
    return _is_weight(value) and value > 0


def _is_share(value: Any) -> bool:
    return _is_factor(value) and value <= 1


def _is_stretch(value: Any) -> bool:
    return _is_factor(value) and value <= MAX_ROPE_FACTOR


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
