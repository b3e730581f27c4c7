"""How a checkpoint says that its weights are quantized, and by which name they are to be read.

Nothing here imports torch: the front refuses what nobody reads before anything is started. The
class behind the name is resolved in the worker (``model_parts``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hookserve.hookspecs import targets

from .errors import ModelFileError
from .refusal import refuse

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

    from .engine_args import EngineArgs

_KEYS = ("quantization_config", "compression_config")

Accepts = Callable[[str], bool]
"""Whether somebody reads a method; the empty name stands for a checkpoint that names none."""


class Quantized(NamedTuple):
    """What a configuration says of it."""

    method: str
    """Empty: it does not say."""
    details: Mapping[str, Any]


def find_quantized(hf_config: Mapping[str, Any]) -> Quantized | None:
    """``None``: nothing in a model's configuration says that its weights are quantized."""
    for part in (hf_config, hf_config.get("text_config")):
        for key in _KEYS:
            if isinstance(part, Mapping) and part.get(key) is not None:
                return describe_quantized(part[key])
    return None


def describe_quantized(details: Any) -> Quantized:
    """Of a ``quantization_config``, or of a file of its own that stands beside ``config.json``."""
    found = details if isinstance(details, Mapping) else {}
    inner = found.get("quantization")  # where ModelOpt has it
    places = (found, inner if isinstance(inner, Mapping) else {})
    method = next(
        (part[key] for part in places for key in ("quant_method", "quant_algo") if part.get(key)),
        "",
    )
    return Quantized(str(method), found)


def nobody(method: str) -> bool:
    """Accepts no method."""
    return False


def anybody(method: str) -> bool:
    """Accepts every method."""
    return True


def check_quantized(where: str, found: Quantized | None, accepts: Accepts = nobody) -> None:
    """
    Raises:
        ModelFileError: nobody reads it; names ``where`` and the method.
    """
    if found is not None and not accepts(found.method):
        method = repr(found.method) if found.method else "'an unnamed method'"
        raise ModelFileError(
            f"{where}: the checkpoint is quantized with {method}, which is not supported; use the "
            "unquantized checkpoint or a GGUF file, or a plugin that registers the quantization"
        )


def accepted(args: EngineArgs, host: Host) -> Accepts:
    """What is read with these arguments and plugins."""
    if args.quantization is not None:
        return anybody  # whether it is the one that is named, ``choose_quantization`` says
    return lambda method: host.registry("quantization").get(method) is not None


def choose_quantization(
    args: EngineArgs, hf_config: Mapping[str, Any], host: Host, where: str
) -> str | None:
    """The name or class path by which layers are quantized; ``None``: they are not.

    Raises:
        ConfigError: ``--quantization`` names nothing, or not what the checkpoint is.
        ModelFileError: nobody reads the checkpoint.
    """
    found, asked = find_quantized(hf_config), args.quantization
    if asked is not None and not targets.is_path(asked):
        known = tuple(host.registry("quantization").names())
        if asked not in known:
            none = "a class path, as no plugin registers a quantization"
            expected = "a class path, or one of" if known else none
            raise refuse(args, "quantization", asked, expected, known)
        # A class may read what another name stands for; a name stands for itself.
        if found is not None and found.method not in ("", asked):
            raise refuse(args, "quantization", asked, f"{found.method!r}, as {where} says")
    check_quantized(where, found, accepted(args, host))
    return asked if asked is not None or found is None else found.method
