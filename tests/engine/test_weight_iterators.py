"""Weight streams: names, order, dtypes; damaged checkpoints are refused by file and tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hookserve.engine.errors import ModelFileError
from hookserve.engine.weight_iterators import iterate_gguf, iterate_safetensors
from tiny_gguf import write_tiny_gguf


def test_safetensors_come_as_stored(tmp_path: Path) -> None:
    first = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    second = {"c": torch.tensor(3, dtype=torch.int64)}
    paths = [str(tmp_path / "one.safetensors"), str(tmp_path / "two.safetensors")]
    save_file(first, paths[0])
    save_file(second, paths[1])
    found = dict(iterate_safetensors(paths))
    assert found.keys() == {"a", "b", "c"}
    for name, tensor in {**first, **second}.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    paths = [str(tmp_path / "one.safetensors"), str(tmp_path / "two.safetensors")]
    for path in paths:
        save_file({"a": torch.ones(1)}, path)
    with pytest.raises(ModelFileError, match=r"two\.safetensors: tensor 'a'.*one\.safetensors"):
        list(iterate_safetensors(paths))


def test_a_truncated_file_names_file_and_tensor(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"small": torch.ones(1), "large": torch.ones(100)}, path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelFileError, match=r"model\.safetensors: tensor '(large|small)'"):
        list(iterate_safetensors([str(path)]))


def test_gguf_tensors_come_in_the_dtype_asked_for(tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf")
    exact = dict(iterate_gguf(str(tiny.path)))
    rounded = dict(iterate_gguf(str(tiny.path), torch.bfloat16))
    assert exact.keys() == rounded.keys() == tiny.weights.keys()
    for name, tensor in rounded.items():
        assert torch.equal(tensor, exact[name].to(torch.bfloat16)), name


def test_an_odd_bias_of_interleaved_heads_is_refused(tmp_path: Path) -> None:
    import numpy

    extra = {"blk.0.attn_q.bias": numpy.ones(60, numpy.float32)}
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", extra_tensors=extra)
    with pytest.raises(ModelFileError, match=r"'blk\.0\.attn_q\.bias' has 60 rows"):
        list(iterate_gguf(str(tiny.path)))


def test_the_header_is_checked_before_the_library_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    entry = {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}
    text = json.dumps({"w": entry}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(ModelFileError, match=r"'w' F32 .* needs 4398046511104 bytes"):
        list(iterate_safetensors([str(path)]))
