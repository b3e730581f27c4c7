"""Streams of ``(name, tensor)`` from checkpoint files, one tensor in memory at a time.

Names are the ecosystem's, whatever the format. Who takes the tensors is the model's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from .errors import ModelFileError
from .gguf import GGUFFile, TensorInfo
from .gguf_names import hf_config_from_gguf, hf_tensors
from .gguf_quant import dequantize
from .safetensors_files import read_header
from .weight_parts import Rectangle, WeightPart

_Bytes = npt.NDArray[np.uint8]


def iterate_safetensors(files: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the files in the order given; shapes and dtypes as stored.

    Raises:
        ModelFileError: a damaged file, or a tensor that a former file has had.
    """
    seen: dict[str, str] = {}
    for path in files:
        names = read_header(path)
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in names:
                    if name in seen:
                        raise ModelFileError(f"{path}: tensor {name!r} is in {seen[name]} too")
                    seen[name] = path
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelFileError(f"{path}: cannot be read: {error}") from error


def iterate_gguf(
    path: str, dtype: torch.dtype = torch.float32, *, in_parts: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of the file, dequantized to ``dtype``, under the ecosystem's name.

    Args:
        in_parts: give matrices as ``WeightPart``, for a model that takes a part of each.

    Raises:
        ModelFileError: a damaged file, or one of a kind that is not supported.
    """
    file = GGUFFile.open(path)
    named = hf_tensors(file, hf_config_from_gguf(file))
    for name, target in named.items():
        info = file.tensors[name]
        raw = file.raw(name)
        order = _row_order(path, info, raw, target.heads) if target.heads else None
        if in_parts and len(info.shape) == 2 and not target.offset:
            rows, columns = info.shape
            whole = Rectangle(
                raw.reshape(rows, -1), info.ggml_type, dtype, order, (0, rows), (0, columns)
            )
            yield target.name, WeightPart(whole)
            continue
        if order is not None:
            raw = raw.reshape(len(order), -1)[order].reshape(-1)
        if target.offset:
            exact = dequantize(raw, info.ggml_type, info.shape)
            yield target.name, exact.sub_(target.offset).to(dtype)
        else:
            yield target.name, dequantize(raw, info.ggml_type, info.shape, dtype)


def _row_order(path: str, info: TensorInfo, raw: _Bytes, heads: int) -> npt.NDArray[np.int64]:
    """Where the file has each row of a tensor whose heads are in (pair, half) order.

    The format rotates neighbouring rows, the ecosystem row i with row i + head_dim / 2. No block
    spans two rows, so whole rows of bytes move.
    """
    rows = info.shape[0]
    if rows % (2 * heads) or raw.size % rows:
        raise ModelFileError(
            f"{path}: tensor {info.name!r} has {rows} rows, which do not divide into {heads} heads"
        )
    places = np.arange(rows).reshape(heads, rows // heads // 2, 2)
    return places.swapaxes(1, 2).reshape(-1)
