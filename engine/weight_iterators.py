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
    path: str, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of the file, dequantized to ``dtype``, under the ecosystem's name.

    Raises:
        ModelFileError: a damaged file, or one of a kind that is not supported.
    """
    file = GGUFFile.open(path)
    named = hf_tensors(file, hf_config_from_gguf(file))
    for name, target in named.items():
        info = file.tensors[name]
        raw = file.raw(name)
        if target.heads:
            raw = _undo_interleave(path, info, raw, target.heads)
        if target.offset:
            exact = dequantize(raw, info.ggml_type, info.shape)
            yield target.name, exact.sub_(target.offset).to(dtype)
        else:
            yield target.name, dequantize(raw, info.ggml_type, info.shape, dtype)


def _undo_interleave(path: str, info: TensorInfo, raw: _Bytes, heads: int) -> _Bytes:
    """Rows of a head from (pair, half) order back to (half, pair) order, still quantized.

    The format rotates neighbouring rows, the ecosystem row i with row i + head_dim / 2. No block
    spans two rows, so whole rows of bytes move.
    """
    rows = info.shape[0]
    if rows % (2 * heads) or raw.size % rows:
        raise ModelFileError(
            f"{path}: tensor {info.name!r} has {rows} rows, which do not divide into {heads} heads"
        )
    split = raw.reshape(heads, rows // heads // 2, 2, -1)
    return split.swapaxes(1, 2).reshape(-1)
