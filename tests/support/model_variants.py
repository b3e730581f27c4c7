"""Copies of a checkpoint that only a plugin reads: quantized, or with fields of other names.

The plugin is ``model_kinds``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

QUANTIZED = {"quant_method": "int8_rows", "bits": 8}


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def copy_model(tiny_llama: Path, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    for file in tiny_llama.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def rounded(tiny_llama: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The checkpoint in whole numbers of 8 bits with a factor for each row, and what they mean."""
    small, meant = {}, {}
    for name, tensor in load_file(tiny_llama / "model.safetensors").items():
        small[name] = meant[name] = tensor
        if "_proj" in name:
            scale = tensor.abs().amax(dim=1) / 127
            small[name] = (tensor / scale[:, None]).round().to(torch.int8)
            small[name + "_scale"] = scale
            meant[name] = small[name].float() * scale[:, None]
    return small, meant


def rename_fields(folder: Path) -> None:
    """Give the configuration a ``model_type`` of its own, and two fields other names."""
    values = json.loads((folder / "config.json").read_text())
    values |= {"model_type": "my_llama", "width": values.pop("hidden_size")}
    values["depth"] = values.pop("num_hidden_layers")
    (folder / "config.json").write_text(json.dumps(values))
