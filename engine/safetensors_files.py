"""Which safetensors files make up a model, and whether each is whole.

Reads the JSON headers only: sizes, names and offsets are compared with the file before anything
maps it. No torch here, so that the front can refuse a damaged checkpoint at once. Reading the
tensors is ``weight_iterators``'.
"""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, TypeGuard

from .errors import ModelFileError
from .regular_file import open_regular, read_json_object

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

_DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}
_SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.safetensors")


def find_weight_files(folder: str) -> tuple[str, ...]:
    """The checkpoint's files in order, each checked with ``read_header``.

    Raises:
        ModelFileError: no weights, a missing shard, a tensor missing in its shard, a damaged file.
    """
    index_path = os.path.join(folder, INDEX_NAME)
    if os.path.exists(index_path):
        return _indexed_files(folder, index_path)
    names = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))
    if SINGLE_NAME in names:
        names = [SINGLE_NAME]
    if not names:
        raise ModelFileError(_no_weights(folder))
    _check_numbering(folder, names)
    paths = tuple(os.path.join(folder, name) for name in names)
    owners: dict[str, str] = {}
    for path in paths:
        for tensor in read_header(path):
            if tensor in owners:
                raise ModelFileError(
                    f"{path}: tensor {tensor!r} is in {owners[tensor]} too; without "
                    f"{INDEX_NAME} it is unclear which one counts"
                )
            owners[tensor] = os.path.basename(path)
    return paths


def read_header(path: str) -> dict[str, Any]:
    """The entries by tensor name: ``{"dtype", "shape", "data_offsets"}``, checked.

    Raises:
        ModelFileError: naming the file, and the tensor where there is one.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise ModelFileError(
                    f"{path}: its header claims {length} bytes, but the file has {size}; "
                    "it is truncated or damaged"
                )
            if length > MAX_HEADER_BYTES:
                raise ModelFileError(
                    f"{path}: its header claims {length} bytes; {MAX_HEADER_BYTES} are allowed"
                )
            text = file.read(length)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{path}: its header is no JSON object")
    header.pop("__metadata__", None)
    _check_entries(path, header, size - 8 - length)
    return header


def _check_entries(path: str, header: dict[str, Any], num_data_bytes: int) -> None:
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        start, end = _check_entry(path, name, entry)
        if end > num_data_bytes:
            raise ModelFileError(
                f"{path}: tensor {name!r} ends at byte {end} of the data, but only "
                f"{num_data_bytes} bytes are there; the file is truncated"
            )
        spans.append((start, end, name))
    position = 0
    for start, end, name in sorted(spans):
        if start != position:
            raise ModelFileError(
                f"{path}: tensor {name!r} starts at byte {start} of the data, expected {position}"
            )
        position = end
    if position != num_data_bytes:
        raise ModelFileError(
            f"{path}: {num_data_bytes - position} bytes follow the last tensor; "
            "the header does not describe this file"
        )


def _check_entry(path: str, name: str, entry: Any) -> tuple[int, int]:
    """One tensor's dtype, shape and size; returns its first and last byte in the data."""
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if dtype not in _DTYPE_BITS:
        raise ModelFileError(f"{path}: tensor {name!r} has the unsupported dtype {dtype!r}")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ModelFileError(f"{path}: tensor {name!r} has no valid shape and data_offsets")
    start, end = offsets
    num_bytes = math.prod(shape) * _DTYPE_BITS[dtype] // 8
    if end - start != num_bytes:
        raise ModelFileError(
            f"{path}: tensor {name!r} {dtype} {shape} needs {num_bytes} bytes, but its "
            f"data_offsets span {end - start}"
        )
    return start, end


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _indexed_files(folder: str, index_path: str) -> tuple[str, ...]:
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index_path}: has no 'weight_map' object")
    wanted: dict[str, list[str]] = {}
    for tensor, shard in weight_map.items():
        # A shard is a plain file name: an index must not point out of its folder.
        if not isinstance(shard, str) or os.path.basename(shard) != shard or not shard:
            raise ModelFileError(f"{index_path}: tensor {tensor!r} is in {shard!r}, no file name")
        wanted.setdefault(shard, []).append(tensor)
    for shard, tensors in sorted(wanted.items()):
        path = os.path.join(folder, shard)
        if not os.path.exists(path):
            raise ModelFileError(
                f"{path}: the shard is missing; {INDEX_NAME} says that it holds {len(tensors)} "
                f"tensors, {tensors[0]!r} among them"
            )
        header = read_header(path)
        for tensor in tensors:
            if tensor not in header:
                raise ModelFileError(f"{path}: tensor {tensor!r} is missing in this shard")
    return tuple(os.path.join(folder, shard) for shard in sorted(wanted))


def _check_numbering(folder: str, names: list[str]) -> None:
    """``x-00001-of-00003``: every number must be there, also where no index says so."""
    present: dict[tuple[str, int], set[int]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match is not None:
            present.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, total), numbers in present.items():
        for number in range(1, total + 1):
            if number not in numbers:
                missing = f"{stem}-{number:05d}-of-{total:05d}.safetensors"
                raise ModelFileError(f"{os.path.join(folder, missing)}: the shard is missing")


def _no_weights(folder: str) -> str:
    names = os.listdir(folder)
    pickles = sorted(n for n in names if n.endswith((".bin", ".pt", ".pth", ".ckpt")))
    if pickles:
        return (
            f"{folder}: the weights are in {pickles[0]}, a pickle: loading one can run any code "
            "that its author put there, so it is refused; convert it to safetensors"
        )
    return f"{folder}: no weights: neither {SINGLE_NAME} nor {INDEX_NAME} is there"
