"""A checkpoint's configuration, and the classes that plugins have for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hookserve.engine.hf_configs import apply_hf_configs, make_hf_config
from hookserve.engine.model_choices import merged
from hookserve.engine.model_files import read_model_files
from hookserve.engine.offline_host import any_host
from hookserve.engine.quantized import anybody
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView
from hookserve.plugins_builtin.vllm_compat.revisions import refuse_revision

__all__ = ["_CONFIG_REGISTRY", "get_config", "get_hf_text_config", "is_encoder_decoder"]

_FORMATS = (
    "refused: a configuration is read from config.json or GGUF metadata, whatever its format; the "
    "hook hf_config changes it"
)
__surface__ = {
    "HFConfigParser": _FORMATS,
    "_CONFIG_REGISTRY": "live: the classes that are registered so far, by model_type; setting an "
    "item registers it, and models get an instance as hf_config",
    "get_config": "live: of a local folder or .gguf file, with the plugins' classes applied",
    "get_config_parser": _FORMATS,
    "get_hf_text_config": "live: the part of a configuration that is the language model's",
    "is_encoder_decoder": "live: what a configuration says of it",
    "maybe_override_with_speculators": "refused: there is no speculative decoding yet",
    "register_config_parser": _FORMATS,
}

_CONFIG_REGISTRY = RegistryView("hf_config")


def get_config(
    model: str | os.PathLike[str],
    trust_remote_code: bool = False,
    revision: str | None = None,
    *,
    hf_overrides_kw: Mapping[str, Any] | None = None,
) -> Any:
    """
    Args:
        trust_remote_code: a leave that is not needed: a checkpoint's code is never run.
        hf_overrides_kw: takes the place of what ``config.json`` says.

    Raises:
        hookserve.engine.errors.ModelFileError: it cannot be read.
        ValueError: a revision, which local files have none of.
    """
    del trust_remote_code
    refuse_revision(model, revision)
    files = read_model_files(os.fspath(model), anybody)
    with any_host() as host:
        given = merged(files.hf_config, dict(hf_overrides_kw or {}))
        return make_hf_config(apply_hf_configs(given, host), host)


def get_hf_text_config(config: Any) -> Any:
    own = getattr(config, "get_text_config", None)
    return config if own is None else own()


def is_encoder_decoder(config: Any) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False))
