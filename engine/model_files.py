"""What lies at a model's path: its format, its configuration, its weight files.

Everything is checked here that can be checked without torch, so that the front refuses a wrong
path or a damaged checkpoint before it starts an engine. The weights are ``weight_iterators``'.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from .errors import ModelFileError
from .gguf import GGUFFile
from .gguf_names import generation_config_from_gguf, hf_config_from_gguf, hf_tensors
from .quantized import Accepts, check_quantized, describe_quantized, find_quantized, nobody
from .regular_file import read_json_object
from .safetensors_files import find_weight_files

_END_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")
_QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""What GPTQ, AWQ and ModelOpt write beside a config.json that says nothing of it."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model on disk. ``hf_config`` and ``generation_config`` have the ecosystem's keys."""

    path: str
    """A folder, or a ``.gguf`` file."""
    format: str
    """``"safetensors"`` or ``"gguf"``."""
    hf_config: dict[str, Any]
    generation_config: dict[str, Any]
    weight_files: tuple[str, ...]


def read_model_files(path: str, accepts: Accepts = nobody) -> ModelFiles:
    """Read and check a model's files.

    Args:
        accepts: which quantizations are read.

    Raises:
        ModelFileError: what is missing, damaged or not supported, and where.
    """
    if not os.path.exists(path):
        raise ModelFileError(
            f"{path}: there is no such file or folder; expected a folder with config.json and "
            "safetensors files, or a .gguf file"
        )
    if os.path.isdir(path):
        return _read_folder(path, accepts)
    if path.endswith(".gguf"):
        return _read_gguf(path)
    raise ModelFileError(
        f"{path}: is neither a folder nor a .gguf file; for safetensors give the folder that "
        "holds them and config.json"
    )


def _read_gguf(path: str) -> ModelFiles:
    file = GGUFFile.open(path)
    hf_config = hf_config_from_gguf(file)
    hf_tensors(file, hf_config)  # names only: a tensor that nobody would load is refused now
    return ModelFiles(path, "gguf", hf_config, generation_config_from_gguf(file), (path,))


def _read_folder(path: str, accepts: Accepts) -> ModelFiles:
    config_path = os.path.join(path, "config.json")
    if not os.path.exists(config_path):
        ggufs = sorted(name for name in os.listdir(path) if name.endswith(".gguf"))
        hint = f"; to serve {ggufs[0]}, give its own path" if ggufs else ""
        raise ModelFileError(f"{path}: there is no config.json in this folder{hint}")
    hf_config = read_json_object(config_path)
    check_quantized(config_path, find_quantized(hf_config), accepts)
    for name in _QUANTIZATION_FILES:
        beside = os.path.join(path, name)
        if os.path.exists(beside):
            found = describe_quantized(read_json_object(beside))
            check_quantized(beside, found, accepts)
            if hf_config.get("quantization_config") is None:
                hf_config["quantization_config"] = {"quant_method": found.method, **found.details}
    generation_path = os.path.join(path, "generation_config.json")
    if os.path.exists(generation_path):
        generation_config = read_json_object(generation_path)
    else:
        generation_config = {
            key: hf_config[key] for key in _END_KEYS if hf_config.get(key) is not None
        }
    return ModelFiles(path, "safetensors", hf_config, generation_config, find_weight_files(path))
