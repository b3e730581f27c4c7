"""The GGUF container: a bounds-checked reader over a memory map.

The file is not trusted. Every count, length, dimension and offset in it is compared with what the
file can hold before anything is allocated or read, so that a damaged or hostile file ends in one
``ModelFileError`` that names the file and, where there is one, the tensor. What the bytes of a
tensor mean is ``gguf_quant``'s, what its name means ``gguf_names``'. No torch here.
"""

from __future__ import annotations

import itertools
import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ModelFileError
from .regular_file import open_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_ARRAY_DEPTH = 4
MAX_NAME_BYTES = 4096

TYPE_BLOCKS: dict[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q8_K": (256, 292),
}
"""Supported tensor types: elements a block, bytes a block."""

TYPE_NAMES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
"""Type numbers of the format, also those that are only known in order to be refused by name."""

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies, already checked against the file's size.

    ``shape`` is in row-major order (the file lists the fastest dimension first).
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: str
    start: int
    """Bytes from the start of the file."""
    num_bytes: int


class GGUFFile:
    """An open file: ``metadata`` (plain values and lists), ``tensors`` by name, ``raw`` bytes."""

    def __init__(
        self,
        path: str,
        buffer: mmap.mmap,
        metadata: dict[str, Any],
        tensors: dict[str, TensorInfo],
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._buffer = buffer

    @classmethod
    def open(cls, path: str) -> GGUFFile:
        """Map the file and read its header.

        Raises:
            ModelFileError: naming the file, the place, and the tensor where there is one.
        """
        buffer = _map(path)
        reader = _HeaderReader(path, buffer)
        metadata, tensors = reader.read()
        return cls(path, buffer, metadata, tensors)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, ``[num_bytes] uint8``, a read-only view of the map."""
        info = self.tensors[name]
        return np.frombuffer(self._buffer, np.uint8, info.num_bytes, info.start)


def _map(path: str) -> mmap.mmap:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < 24:
                raise ModelFileError(
                    f"{path}: {size} bytes are too few for a GGUF file; it was not copied whole"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error


class _HeaderReader:
    """A cursor over the header; each method advances it or raises."""

    def __init__(self, path: str, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.position = 0

    def fail(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {what}")

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        self.check_magic()
        num_tensors = self.u64("the number of tensors")
        num_keys = self.u64("the number of metadata keys")
        # The smallest tensor entry is 24 bytes, the smallest key 13: what cannot be there is
        # refused before a loop or an allocation goes by the count.
        self.check_room(num_tensors, 24, "tensors")
        self.check_room(num_keys, 13, "metadata keys")
        metadata = self.read_metadata(num_keys)
        alignment = self.alignment(metadata)
        entries = self.read_entries(num_tensors)
        data_start = -(-self.position // alignment) * alignment
        tensors = {
            name: self.locate(name, dims, type_id, offset, data_start, alignment)
            for name, (dims, type_id, offset) in entries.items()
        }
        self.check_overlap(tensors)
        return metadata, tensors

    def check_magic(self) -> None:
        magic = self.buffer[:4]
        if magic != MAGIC:
            raise self.fail(f"is not a GGUF file: it starts with {magic!r}, expected {MAGIC!r}")
        self.position = 4
        version = self.u32("the version")
        if version in VERSIONS:
            return
        if int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS:
            raise self.fail("is a big-endian GGUF file; only little-endian ones are supported")
        raise self.fail(f"has GGUF version {version}; versions 2 and 3 are supported")

    def check_room(self, count: int, min_bytes: int, what: str) -> None:
        remaining = self.size - self.position
        if count * min_bytes > remaining:
            raise self.fail(
                f"claims {count} {what}, but only {remaining} bytes follow; "
                "the file is truncated or damaged"
            )

    def take(self, num_bytes: int, what: str) -> int:
        """Advance past ``num_bytes`` and return where they start."""
        start = self.position
        if num_bytes > self.size - start:
            raise self.fail(
                f"ends inside {what}: {num_bytes} bytes wanted at byte {start}, "
                f"{self.size - start} left; the file is truncated or damaged"
            )
        self.position = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.buffer, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.buffer, self.take(8, what))[0]
        return value

    def string(self, what: str, max_bytes: int | None = None) -> str:
        length = self.u64(f"the length of {what}")
        if max_bytes is not None and length > max_bytes:
            raise self.fail(f"{what} has {length} bytes, more than the {max_bytes} allowed")
        start = self.take(length, what)
        try:
            return self.buffer[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} at byte {start} is not UTF-8") from error

    def read_metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(num_keys):
            key = self.string(f"the name of metadata key {index}", MAX_NAME_BYTES)
            if key in metadata:
                raise self.fail(f"metadata key {key!r} appears twice")
            what = f"metadata key {key!r}"
            metadata[key] = self.value(self.u32(f"the type of {what}"), what, 0)
        return metadata

    def value(self, type_id: int, what: str, depth: int) -> Any:
        if type_id == _STRING:
            return self.string(what)
        if type_id == _ARRAY:
            return self.array(what, depth + 1)
        dtype = self.scalar_dtype(type_id, what)
        return np.frombuffer(self.buffer, dtype, 1, self.take(dtype.itemsize, what))[0].item()

    def scalar_dtype(self, type_id: int, what: str) -> np.dtype[Any]:
        if type_id not in _SCALARS:
            raise self.fail(f"{what} has the unknown value type {type_id}")
        return np.dtype(_SCALARS[type_id])

    def array(self, what: str, depth: int) -> list[Any]:
        if depth > MAX_ARRAY_DEPTH:
            raise self.fail(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH}")
        type_id = self.u32(f"the element type of {what}")
        length = self.u64(f"the length of {what}")
        if type_id == _STRING:
            self.check_room(length, 8, f"strings in {what}")
            return self.strings(length, what)
        if type_id == _ARRAY:
            self.check_room(length, 12, f"arrays in {what}")
            return [self.array(what, depth + 1) for _ in range(length)]
        dtype = self.scalar_dtype(type_id, what)
        self.check_room(length, dtype.itemsize, f"values in {what}")
        start = self.take(length * dtype.itemsize, what)
        values: list[Any] = np.frombuffer(self.buffer, dtype, length, start).tolist()
        return values

    def strings(self, length: int, what: str) -> list[str]:
        """An array of strings. A vocabulary has 10^5: the loop is written out for speed."""
        buffer, size, position = self.buffer, self.size, self.position
        unpack: Callable[..., tuple[int]] = _U64.unpack_from
        pieces: list[bytes] = []
        append = pieces.append
        for index in range(length):
            start = position + 8
            if start > size:
                raise self.fail(f"ends inside {what}, at string {index} of {length}")
            position = start + unpack(buffer, position)[0]
            if position > size:
                raise self.fail(
                    f"ends inside {what}: string {index} claims {position - start} bytes, "
                    f"{size - start} are left; the file is truncated or damaged"
                )
            append(buffer[start:position])
        self.position = position
        try:
            return [piece.decode() for piece in pieces]
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} holds a string that is not UTF-8") from error

    def alignment(self, metadata: dict[str, Any]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        is_power = isinstance(value, int) and value > 0 and value & (value - 1) == 0
        if not is_power or isinstance(value, bool) or value > MAX_ALIGNMENT:
            raise self.fail(
                f"general.alignment is {value!r}; expected a power of two up to {MAX_ALIGNMENT}"
            )
        return int(value)

    def read_entries(self, num_tensors: int) -> dict[str, tuple[list[int], int, int]]:
        entries: dict[str, tuple[list[int], int, int]] = {}
        for index in range(num_tensors):
            name = self.string(f"the name of tensor {index} of {num_tensors}", MAX_NAME_BYTES)
            if name in entries:
                raise self.fail(f"tensor {name!r} appears twice")
            what = f"the entry of tensor {name!r}"
            num_dims = self.u32(what)
            if not 1 <= num_dims <= MAX_DIMS:
                raise self.fail(f"tensor {name!r} has {num_dims} dimensions; 1 to 4 are allowed")
            dims = [self.u64(what) for _ in range(num_dims)]
            entries[name] = (dims, self.u32(what), self.u64(what))
        return entries

    def locate(
        self,
        name: str,
        dims: list[int],
        type_id: int,
        offset: int,
        data_start: int,
        alignment: int,
    ) -> TensorInfo:
        """Check one tensor's type, size and place against the file."""
        ggml_type = TYPE_NAMES.get(type_id, f"number {type_id}")
        if ggml_type not in TYPE_BLOCKS:
            raise self.fail(
                f"tensor {name!r} has type {ggml_type}, which is not supported; "
                f"supported are {', '.join(TYPE_BLOCKS)}"
            )
        block_elements, block_bytes = TYPE_BLOCKS[ggml_type]
        num_elements = math.prod(dims)
        if num_elements == 0 or num_elements >= 1 << 63:
            raise self.fail(f"tensor {name!r} has the impossible shape {dims}")
        if dims[0] % block_elements:
            raise self.fail(
                f"tensor {name!r}: rows of {dims[0]} elements do not divide into "
                f"{ggml_type} blocks of {block_elements}"
            )
        if offset % alignment:
            raise self.fail(f"tensor {name!r}: offset {offset} is no multiple of {alignment}")
        num_bytes = num_elements // block_elements * block_bytes
        start = data_start + offset
        if start + num_bytes > self.size:
            raise self.fail(
                f"tensor {name!r} {dims} {ggml_type} lies at bytes {start} to "
                f"{start + num_bytes}, but the file has {self.size}; "
                "it is truncated, or its header is damaged"
            )
        return TensorInfo(name, tuple(reversed(dims)), ggml_type, start, num_bytes)

    def check_overlap(self, tensors: dict[str, TensorInfo]) -> None:
        """Tensors that share bytes mean that a shape or an offset in the header is wrong."""
        ordered = sorted(tensors.values(), key=lambda info: info.start)
        for before, after in itertools.pairwise(ordered):
            if before.start + before.num_bytes > after.start:
                raise self.fail(f"tensors {before.name!r} and {after.name!r} overlap")
