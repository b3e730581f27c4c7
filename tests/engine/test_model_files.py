"""What is accepted at a model's path, and the sentence for each thing that is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hookserve.engine.errors import EX_IOERR, ModelFileError
from hookserve.engine.model_files import read_model_files
from tiny_gguf import write_tiny_gguf

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path, tiny_llama: Path) -> Path:
    """A whole checkpoint that the test may damage."""
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def refused(path: Path, match: str) -> None:
    with pytest.raises(ModelFileError, match=match) as raised:
        read_model_files(str(path))
    assert raised.value.exit_code == EX_IOERR
    assert str(path) in str(raised.value)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def shard(folder: Path) -> dict[str, str]:
    """Two shards and an index in place of the single file; returns the index's map."""
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, folder / names[0])
    save_file({"c": torch.ones(4)}, folder / names[1])
    weight_map = {"a": names[0], "b": names[0], "c": names[1]}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_a_folder_is_read(folder: Path) -> None:
    files = read_model_files(str(folder))
    assert files.format == "safetensors"
    assert files.hf_config == json.loads((folder / "config.json").read_text())
    assert files.generation_config == {"bos_token_id": 256, "eos_token_id": 257}
    assert files.weight_files == (str(folder / "model.safetensors"),)


def test_without_a_generation_config_the_models_own_ids_hold(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    edit_config(folder, eos_token_id=[257, 258])
    generation = read_model_files(str(folder)).generation_config
    assert generation == {"bos_token_id": 256, "eos_token_id": [257, 258]}


def test_a_gguf_file_is_read(tmp_path: Path) -> None:
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf")
    files = read_model_files(str(tiny.path))
    assert files.format == "gguf"
    assert files.weight_files == (str(tiny.path),)
    assert files.hf_config["architectures"] == ["LlamaForCausalLM"]
    assert files.generation_config == {"bos_token_id": 1, "eos_token_id": 0}


def test_shards_are_read_in_order_and_other_files_left_alone(folder: Path) -> None:
    weight_map = shard(folder)
    save_file({"z": torch.ones(1)}, folder / "consolidated.safetensors")
    files = read_model_files(str(folder))
    assert files.weight_files == tuple(str(folder / n) for n in sorted(set(weight_map.values())))


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "no such file or folder; expected a folder with config.json")


def test_a_single_safetensors_file(folder: Path) -> None:
    refused(folder / "model.safetensors", "give the folder")


def test_a_folder_without_a_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, r"no config\.json")


def test_a_folder_with_a_gguf_file_says_so(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf")
    refused(tmp_path, r"to serve tiny\.gguf, give its own path")


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "no weights")


def test_pickled_weights_are_refused_with_the_reason(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, r"pytorch_model\.bin, a pickle: loading one can run any code")


@pytest.mark.parametrize("text", ["{", "[]", "\ud800".encode("utf-8", "surrogatepass"), "[" * 9999])
def test_a_broken_configuration(folder: Path, text: str | bytes) -> None:
    data = text if isinstance(text, bytes) else text.encode()
    (folder / "config.json").write_bytes(data)
    refused(folder, r"config\.json: (is no valid JSON|holds no JSON object)")


def test_a_quantized_checkpoint_is_refused_by_its_method(folder: Path) -> None:
    edit_config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    refused(folder, "quantized with 'gptq'")


@pytest.mark.parametrize(
    ("file", "content", "method"),
    [
        ("quantize_config.json", {"bits": 4, "quant_method": "gptq"}, "gptq"),
        ("quantize_config.json", {"bits": 4}, "an unnamed method"),
        ("quant_config.json", {"w_bit": 4, "quant_method": "awq"}, "awq"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, "NVFP4"),
    ],
)
def test_a_quantized_checkpoint_is_refused_by_the_file_beside_it(
    folder: Path, file: str, content: dict[str, Any], method: str
) -> None:
    (folder / file).write_text(json.dumps(content))
    refused(folder, rf"{file}: .*quantized with '{method}'")


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": {}},
        {"compression_config": {"quant_method": "sparse"}},
        {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
    ],
)
def test_a_quantized_checkpoint_is_refused_wherever_its_configuration_says_so(
    folder: Path, config: dict[str, Any]
) -> None:
    edit_config(folder, **config)
    refused(folder, "quantized with '(an unnamed method|sparse|fp8)'")


def test_a_missing_shard(folder: Path) -> None:
    weight_map = shard(folder)
    (folder / weight_map["c"]).unlink()
    refused(folder, rf"{weight_map['c']}: the shard is missing.*'c'")


def test_a_missing_shard_without_an_index(folder: Path) -> None:
    weight_map = shard(folder)
    (folder / INDEX).unlink()
    (folder / weight_map["a"]).unlink()
    refused(folder, rf"{weight_map['a']}: the shard is missing")


def test_a_tensor_that_its_shard_does_not_have(folder: Path) -> None:
    weight_map = shard(folder)
    text = json.dumps({"weight_map": {**weight_map, "d": weight_map["c"]}})
    (folder / INDEX).write_text(text)
    refused(folder, rf"{weight_map['c']}: tensor 'd' is missing")


@pytest.mark.parametrize("shard_name", ["../x.safetensors", "/x.safetensors", "", 3])
def test_an_index_that_points_out_of_its_folder(folder: Path, shard_name: Any) -> None:
    shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": shard_name}}))
    refused(folder, "no file name")


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(*offsets: int, shape: tuple[int, ...] = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "header claims 0 bytes, but the file has 0"),
    "lying header length": ((1 << 60).to_bytes(8, "little") + b"{}", "header claims"),
    "no JSON": ((4).to_bytes(8, "little") + b"{{{{", "header is no JSON"),
    "truncated": (header({"w": tensor(0, 8)}, bytes(7)), "'w' ends at byte 8"),
    "trailing bytes": (header({"w": tensor(0, 8)}, bytes(9)), "1 bytes follow"),
    "wrong size": (header({"w": tensor(0, 4)}, bytes(4)), "'w' F32 .* needs 8 bytes"),
    "gap": (header({"w": tensor(4, 12)}, bytes(12)), "'w' starts at byte 4"),
    "overlap": (header({"v": tensor(0, 8), "w": tensor(4, 12)}, bytes(12)), "'w' starts at byte 4"),
    "negative": (header({"w": tensor(-8, 0)}, bytes(8)), "'w' has no valid shape"),
    "unknown dtype": (header({"w": tensor(0, 8, dtype="F99")}, bytes(8)), "dtype 'F99'"),
    "no entry": (header({"w": 1}, bytes(8)), "'w' has the unsupported dtype None"),
}


@pytest.mark.parametrize(("data", "match"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_safetensors_file(folder: Path, data: bytes, match: str) -> None:
    (folder / "model.safetensors").write_bytes(data)
    refused(folder, rf"model\.safetensors: .*{match}")


def test_metadata_in_the_header_is_no_tensor(folder: Path) -> None:
    entries = {"__metadata__": {"format": "pt"}, "w": tensor(0, 8)}
    (folder / "model.safetensors").write_bytes(header(entries, bytes(8)))
    read_model_files(str(folder))


def test_reading_needs_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; "
        "import hookserve.engine.model_files, hookserve.engine.model_sources"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
