"""The GGUF container: read right against the ``gguf`` package, damaged files refused quickly."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest

from hookserve.engine.errors import ModelFileError
from hookserve.engine.gguf import GGUFFile
from tiny_gguf import write_tiny_gguf

U32, U64 = struct.Struct("<I").pack, struct.Struct("<Q").pack
UINT32, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return U64(len(value.encode())) + value.encode()


def header(num_tensors: int, num_keys: int, version: int = 3) -> bytes:
    return b"GGUF" + U32(version) + U64(num_tensors) + U64(num_keys)


def entry(name: str, dims: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    packed = b"".join(U64(dim) for dim in dims)
    return text(name) + U32(len(dims)) + packed + U32(type_id) + U64(offset)


def padded(data: bytes, num_data_bytes: int, alignment: int = 32) -> bytes:
    return data + bytes(-len(data) % alignment) + bytes(num_data_bytes)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], str]:
    def write(data: bytes) -> str:
        path = tmp_path / "file.gguf"
        path.write_bytes(data)
        return str(path)

    return write


def test_everything_in_the_file_is_what_the_gguf_package_reads(tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={"a.flag": True, "a.list": [1.5, 2.5]})
    file = GGUFFile.open(str(tiny.path))
    reference = gguf.GGUFReader(str(tiny.path))
    expected: dict[str, Any] = {
        key: field.contents() for key, field in reference.fields.items() if "GGUF." not in key
    }
    assert file.metadata == expected
    assert list(file.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        info = file.tensors[tensor.name]
        assert info.ggml_type == tensor.tensor_type.name
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert numpy.array_equal(file.raw(tensor.name), tensor.data.view(numpy.uint8).reshape(-1))


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_and_an_alignment_of_its_own(
    write: Callable[[bytes], str], version: int
) -> None:
    key = text("general.alignment") + U32(UINT32) + U32(128)
    head = header(2, 1, version) + key + entry("a", [3]) + entry("b", [2, 2], offset=128)
    data = padded(head, 0, 128) + struct.pack("<3f", 1, 2, 3) + bytes(116)
    file = GGUFFile.open(write(data + struct.pack("<4f", 4, 5, 6, 7)))
    assert file.raw("a").view(numpy.float32).tolist() == [1, 2, 3]
    assert file.raw("b").view(numpy.float32).tolist() == [4, 5, 6, 7]
    assert file.tensors["b"].shape == (2, 2)


ONE = header(1, 0)
KEY = header(0, 1) + text("k")
HUGE = 1 << 62

DAMAGED = {
    "empty": (b"", "0 bytes are too few"),
    "magic": (b"GGML" + bytes(40), "is not a GGUF file"),
    "version 1": (header(0, 0, 1), "version 1"),
    "big-endian": (header(0, 0, 3 << 24), "big-endian"),
    "huge tensor count": (header(HUGE, 0) + bytes(64), f"claims {HUGE} tensors"),
    "huge key count": (header(0, HUGE) + bytes(64), f"claims {HUGE} metadata keys"),
    "huge key name": (header(0, 1) + U64(HUGE) + bytes(64), "the name of metadata key 0"),
    "huge string": (KEY + U32(STRING) + U64(HUGE) + bytes(64), "'k'.*bytes wanted"),
    "huge array": (KEY + U32(ARRAY) + U32(UINT32) + U64(HUGE) + bytes(9), "'k', but only"),
    "huge string array": (KEY + U32(ARRAY) + U32(STRING) + U64(HUGE) + bytes(9), "strings in"),
    "huge array of arrays": (KEY + U32(ARRAY) + U32(ARRAY) + U64(HUGE) + bytes(9), "arrays in"),
    "huge string in an array": (
        KEY + U32(ARRAY) + U32(STRING) + U64(1) + U64(HUGE) + bytes(9),
        "string 0 claims",
    ),
    "arrays in arrays without end": (
        KEY + U32(ARRAY) + (U32(ARRAY) + U64(1)) * 1000 + bytes(64),
        "nests arrays deeper",
    ),
    "unknown value type": (KEY + U32(99) + bytes(64), "value type 99"),
    "not UTF-8": (KEY + U32(STRING) + U64(2) + b"\xff\xfe" + bytes(64), "not UTF-8"),
    "key twice": (
        header(0, 2) + (text("k") + U32(UINT32) + U32(1)) * 2 + bytes(32),
        "key 'k' appears twice",
    ),
    "alignment zero": (
        header(0, 1) + text("general.alignment") + U32(UINT32) + U32(0),
        "general.alignment is 0",
    ),
    "tensor twice": (padded(header(2, 0) + entry("t", [1]) * 2, 64), "tensor 't' appears twice"),
    "five dimensions": (padded(ONE + entry("t", [1] * 5), 64), "'t' has 5 dimensions"),
    "no dimension": (padded(ONE + entry("t", []), 64), "'t' has 0 dimensions"),
    "dimension zero": (padded(ONE + entry("t", [4, 0]), 64), "'t' has the impossible shape"),
    "dimensions overflow": (
        padded(ONE + entry("t", [1 << 33] * 2), 64),
        "'t' has the impossible shape",
    ),
    "product wraps to zero": (
        padded(ONE + entry("t", [1 << 32] * 2), 64),
        "'t' has the impossible shape",
    ),
    "unsupported type": (padded(ONE + entry("t", [256], 23), 256), "'t' has type IQ4_XS"),
    "another": (padded(ONE + entry("t", [256], 39), 256), "'t' has type MXFP4"),
    "unknown type": (padded(ONE + entry("t", [256], 77), 256), "'t' has type number 77"),
    "split block": (padded(ONE + entry("t", [33, 2], 8), 256), "'t': rows of 33"),
    "offset off the grid": (padded(ONE + entry("t", [1], 0, 4), 64), "'t': offset 4"),
    "offset beyond the end": (padded(ONE + entry("t", [1], 0, 1 << 40), 64), "'t'.*lies at"),
    "offset overflows": (
        padded(ONE + entry("t", [1], 0, (1 << 64) - 32), 64),
        "'t'.*lies at",
    ),
    "lying size": (padded(ONE + entry("t", [64, 64]), 64), "'t'.*but the file has"),
    "overlap": (
        padded(header(2, 0) + entry("t", [16]) + entry("u", [16], 0, 32), 256),
        "'t' and 'u' overlap",
    ),
}


@pytest.mark.parametrize(("data", "match"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_refused_at_once_and_without_memory(
    write: Callable[[bytes], str], data: bytes, match: str
) -> None:
    path = write(data)
    tracemalloc.start()
    started = time.thread_time()
    try:
        with pytest.raises(ModelFileError, match=match) as raised:
            GGUFFile.open(path)
        elapsed_s = time.thread_time() - started
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path in str(raised.value)
    assert elapsed_s < 0.5
    assert peak_bytes < 4 << 20


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf")
    data = tiny.path.read_bytes()
    first = min(info.start for info in GGUFFile.open(str(tiny.path)).tensors.values())
    cuts = {*range(0, first, 61), *range(first, len(data), 9973), len(data) - 1}
    path = tmp_path / "cut.gguf"
    for cut in sorted(cuts):
        path.write_bytes(data[:cut])
        with pytest.raises(ModelFileError):
            GGUFFile.open(str(path))


def test_flipped_bytes_never_do_anything_but_read_or_refuse(tmp_path: Path) -> None:
    from hookserve.engine.model_files import read_model_files
    from hookserve.engine.text.tokenizer import load_tokenizer

    tiny = write_tiny_gguf(tmp_path / "tiny.gguf")
    whole = tiny.path.read_bytes()
    end = min(info.start for info in GGUFFile.open(str(tiny.path)).tensors.values())
    rng = random.Random(5)
    path = tmp_path / "flipped.gguf"
    num_refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(end)] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        path.write_bytes(data)
        try:
            read_model_files(str(path))
            load_tokenizer(str(path))
        except ModelFileError:
            num_refused += 1
    assert num_refused > 50


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"nothing\.gguf: cannot be read"):
        GGUFFile.open(str(tmp_path / "nothing.gguf"))
