"""Files with flipped bits, the same ones each time: each is read, or refused in one sentence."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from gguf_converter import convert_to_gguf
from hookserve.engine.errors import ModelFileError, UnknownArchitectureError
from hookserve.engine.gguf import GGUFFile
from hookserve.engine.model_files import read_model_files
from hookserve.engine.safetensors_files import read_header
from hookserve.engine.text.tokenizer import load_tokenizer
from tiny_llama import weights
from tiny_models import write_tiny_model
from tiny_sentencepiece import write_sentencepiece_gguf

SLOWEST_S = 1.0
"""Of the CPU: far more than a case takes, far less than one that goes by a count in the file."""


def flipped(whole: bytes, places: range, seed: int, num_cases: int) -> Iterator[bytes]:
    """Copies with one to four bits turned over, within ``places``."""
    rng = random.Random(seed)
    for _ in range(num_cases):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            data[rng.choice(places)] ^= 1 << rng.randrange(8)
        yield bytes(data)


def num_refused(path: Path, cases: Iterator[bytes], *reads: Callable[[str], object]) -> int:
    """How many of the cases are refused; anything but that or reading fails the test."""
    refused = 0
    for data in cases:
        path.write_bytes(data)
        started = time.thread_time()
        try:
            for read in reads:
                read(str(path))
        except (ModelFileError, UnknownArchitectureError) as error:
            assert str(path) in str(error)
            refused += 1
        assert time.thread_time() - started < SLOWEST_S
    return refused


def data_start(path: Path) -> int:
    return min(info.start for info in GGUFFile.open(str(path)).tensors.values())


@pytest.mark.parametrize("name", ["llama-yarn", "qwen3", "gemma2"])
def test_metadata_and_tensor_entries_of_each_family(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tiny.gguf"
    convert_to_gguf(write_tiny_model(name, tmp_path / "folder"), path)
    whole, end = path.read_bytes(), data_start(path)
    vocabulary = whole.index(b"tokenizer.ggml.tokens"), whole.rindex(b"tokenizer.ggml.")
    places = {
        "keys": range(0, vocabulary[0]),
        "tensors": range(vocabulary[1], end),
    }
    for seed, (what, place) in enumerate(places.items()):
        refused = num_refused(path, flipped(whole, place, seed, 150), read_model_files)
        assert refused > 30, what


def test_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_sentencepiece_gguf(path)
    whole = path.read_bytes()
    place = range(whole.index(b"tokenizer.ggml.model"), whole.rindex(b"blk.0"))
    assert num_refused(path, flipped(whole, place, 3, 150), load_tokenizer) > 30


def test_a_safetensors_header(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(weights(), path)
    whole = path.read_bytes()
    header = range(8 + int.from_bytes(whole[:8], "little"))
    assert num_refused(path, flipped(whole, header, 4, 300), read_header) > 100
    length = range(8)
    assert num_refused(path, flipped(whole, length, 5, 60), read_header) == 60
