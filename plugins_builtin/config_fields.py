"""What a checkpoint's configuration says to the layers of a model, from every spelling in use.

Whether values are of the right kind is checked before, by ``engine.model_shape``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookserve.engine.errors import ModelFileError
from hookserve.engine.model_shape import wrong_field
from hookserve.engine.vllm_config import get_current_vllm_config
from hookserve.engine.weights import extract_layer_index
from hookserve.ops.rotary_embedding import RotaryEmbedding, get_rope

LAYER_TYPES = ("full_attention", "sliding_attention")


def refuse_field(key: str, found: Any, expected: str) -> ModelFileError:
    """The error about a field of the model that is being built."""
    path = get_current_vllm_config().model_config.path
    return ModelFileError(wrong_field(path, key, repr(found), expected))


def num_key_heads(config: Any) -> int:
    return getattr(config, "num_key_value_heads", None) or int(config.num_attention_heads)


def head_size(config: Any) -> int:
    """Elements of a head.

    Raises:
        ModelFileError: it is not stated, and the heads do not divide the hidden size.
    """
    stated = getattr(config, "head_dim", None)
    if not stated and config.hidden_size % config.num_attention_heads:
        heads = config.num_attention_heads
        raise refuse_field("hidden_size", config.hidden_size, f"a multiple of the {heads} heads")
    return stated or int(config.hidden_size // config.num_attention_heads)


def rope_parameters(config: Any) -> dict[str, Any]:
    """``rope_theta``, ``rope_type`` and the scaling's keys, from either spelling: one table
    ``rope_parameters``, or ``rope_theta`` beside a table ``rope_scaling``."""
    parameters = dict(getattr(config, "rope_scaling", None) or {})
    parameters.update(_one_table(config) or {})
    if "rope_theta" not in parameters:
        parameters["rope_theta"] = getattr(config, "rope_theta", None) or 10000.0
    factor = getattr(config, "partial_rotary_factor", None)
    if factor is not None:
        parameters.setdefault("partial_rotary_factor", factor)
    return parameters


def _one_table(config: Any) -> dict[str, Any] | None:
    """``rope_parameters`` where the configuration itself states it, and not only two keys."""
    table: dict[str, Any] | None = vars(config).get("rope_parameters")
    return table


def rope_of(config: Any, size: int, max_position: int) -> RotaryEmbedding:
    """The rotary embedding that the configuration describes, for heads of ``size``.

    Raises:
        ModelFileError: a rotation that is not supported, or whose parameters make no sense.
    """
    parameters = rope_parameters(config)
    key = "rope_parameters" if _one_table(config) else "rope_scaling"
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise refuse_field(key, parameters, "one rotation for all layers")
    if size % 2:
        raise refuse_field("head_dim", size, "an even number: a head is rotated in pairs")
    try:
        return get_rope(size, max_position=max_position, rope_parameters=parameters)
    except ValueError as error:
        raise refuse_field(key, parameters, f"a rotation that is supported ({error})") from error


def layer_window(config: Any, prefix: str, defaults: Mapping[str, Any]) -> int | None:
    """How many tokens the layer at ``prefix`` sees; ``None``: all.

    Args:
        defaults: the architecture's, for keys that are not stated.

    Raises:
        ModelFileError: ``layer_types`` names a kind of layer that is not supported.
    """

    def stated(key: str, otherwise: Any) -> Any:
        return getattr(config, key, defaults.get(key, otherwise))

    window: int | None = stated("sliding_window", None)
    if window is None or not stated("use_sliding_window", True):
        return None
    types = getattr(config, "layer_types", None)
    if types:
        index = extract_layer_index(prefix)
        if types[index] not in LAYER_TYPES:
            raise refuse_field(
                f"layer_types.{index}", types[index], f"one of {', '.join(LAYER_TYPES)}"
            )
        return window if types[index] == "sliding_attention" else None
    first = stated("max_window_layers", None) or 0
    return window if not first or extract_layer_index(prefix) >= first else None
