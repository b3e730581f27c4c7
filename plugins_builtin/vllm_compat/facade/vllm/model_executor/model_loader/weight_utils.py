"""Streams of a checkpoint's tensors, and how parameters take them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from hookserve.engine.errors import ModelFileError
from hookserve.engine.regular_file import read_json_object
from hookserve.engine.weight_iterators import iterate_safetensors
from hookserve.engine.weights import (
    composed_weight_loader,
    default_weight_loader,
    row_parallel_weight_loader,
    sharded_weight_loader,
)

__all__ = [
    "composed_weight_loader",
    "default_weight_loader",
    "filter_duplicate_safetensors_files",
    "filter_files_not_needed_for_inference",
    "maybe_remap_kv_scale_name",
    "pt_weights_iterator",
    "row_parallel_weight_loader",
    "safetensors_weights_iterator",
    "sharded_weight_loader",
]

__surface__ = {
    "composed_weight_loader": "live: parameters are loaded by it",
    "default_weight_loader": "live: parameters are loaded by it",
    "row_parallel_weight_loader": "live: parameters are loaded by it",
    "sharded_weight_loader": "live: parameters are loaded by it",
    "safetensors_weights_iterator": "live: for a loader of a plugin; draws no progress bar",
    "pt_weights_iterator": (
        "live: for a loader of a plugin; reads tensors alone, and draws no progress bar"
    ),
    "filter_duplicate_safetensors_files": "live: for a loader of a plugin",
    "filter_files_not_needed_for_inference": "live: for a loader of a plugin",
    "maybe_remap_kv_scale_name": (
        "live: drops scales of a quantized KV cache, as the cache has the model's dtype"
    ),
    "download_weights_from_hf": (
        "refused: files are on this machine before a loader runs; read model_config.path"
    ),
    "gguf_quant_weights_iterator": (
        "refused: GGUF files are read by the built-in loader, see "
        "vllm.model_executor.model_loader.gguf_loader"
    ),
}


_OF_TRAINING = (
    "training_args.bin",
    "optimizer.bin",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
)
_KV_SCALES = (".k_scale", ".v_scale", ".kv_scale", ".q_scale", ".k_zero_point", ".v_zero_point")


def safetensors_weights_iterator(
    hf_weights_files: Iterable[str], use_tqdm_on_load: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the files, in their order.

    Args:
        use_tqdm_on_load: asks for a progress bar; none is drawn.

    Raises:
        ModelFileError: a damaged file, or a tensor that is in two.
    """
    del use_tqdm_on_load
    yield from iterate_safetensors(hf_weights_files)


def pt_weights_iterator(
    hf_weights_files: Iterable[str],
    use_tqdm_on_load: bool = False,
    pt_load_map_location: str | dict[str, str] = "cpu",
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of files that ``torch.save`` wrote, in their order. What is no tensor in them is
    not made.

    Args:
        use_tqdm_on_load: asks for a progress bar; none is drawn.

    Raises:
        ModelFileError: a file that holds more than tensors by name.
    """
    del use_tqdm_on_load
    for path in hf_weights_files:
        found: Any = torch.load(path, map_location=pt_load_map_location, weights_only=True)
        if not isinstance(found, Mapping):
            raise ModelFileError(f"{path}: holds {type(found).__name__}, not tensors by name")
        yield from found.items()


def filter_duplicate_safetensors_files(
    hf_weights_files: list[str], hf_folder: str, index_file: str
) -> list[str]:
    """Those of the files that the folder's index names; all, if there is no index."""
    index = os.path.join(hf_folder, index_file)
    if not os.path.isfile(index):
        return hf_weights_files
    named = read_json_object(index).get("weight_map", {}).values()
    wanted = {os.path.join(hf_folder, name) for name in named}
    return [path for path in hf_weights_files if path in wanted]


def filter_files_not_needed_for_inference(hf_weights_files: list[str]) -> list[str]:
    """The files without those in which a training run keeps its own state."""
    return [path for path in hf_weights_files if os.path.basename(path) not in _OF_TRAINING]


def maybe_remap_kv_scale_name(name: str, params_dict: Mapping[str, Any]) -> str | None:
    """The parameter that a weight is for; ``None`` for a scale of the KV cache that the model does
    not have."""
    if name.endswith(_KV_SCALES) and name not in params_dict:
        return None
    return name
