"""What cannot start says why in one sentence, with the right exit code. Requests that cannot be
answered are ``test_api_e2e``'s."""

from __future__ import annotations

import json
import shutil
import struct
import time
from pathlib import Path

from harness import run_command
from tiny_llama import write_tiny_llama


def refused(args: list[str], code: int, *words: str) -> str:
    """Run a command that must refuse; returns its last line, the sentence that says why."""
    start = time.monotonic()
    done = run_command(args)
    assert time.monotonic() - start < 30
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in last, (word, last)
    return last


def test_a_path_that_does_not_exist_is_74() -> None:
    refused(["run", "./no/such/folder"], 74, "no/such/folder")


def test_a_truncated_safetensors_file_is_74(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused(["run", str(model)], 74, "model.safetensors")


def test_a_folder_without_weights_is_74(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    (model / "model.safetensors").unlink()
    refused(["run", str(model)], 74, "model")


def test_a_tensor_of_another_shape_is_74(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["intermediate_size"] *= 2
    (model / "config.json").write_text(json.dumps(config))
    refused(["run", str(model)], 74, "model.layers.0.mlp")


def test_a_gguf_file_with_a_huge_tensor_count_is_74(tmp_path: Path) -> None:
    file = tmp_path / "huge.gguf"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0) + bytes(64))
    refused(["run", str(file)], 74, "huge.gguf")


def test_a_gguf_file_whose_tensors_end_beyond_it_is_74(tmp_path: Path, smollm2_gguf: Path) -> None:
    file = tmp_path / "short.gguf"
    with smollm2_gguf.open("rb") as whole:
        file.write_bytes(whole.read(smollm2_gguf.stat().st_size // 2))
    refused(["run", str(file)], 74, "short.gguf")


def test_a_gguf_file_with_a_lying_size_is_74(tmp_path: Path, smollm2_gguf: Path) -> None:
    file = tmp_path / "lying.gguf"
    shutil.copy(smollm2_gguf, file)
    name = b"token_embd.weight"
    with file.open("r+b") as patched:
        head = patched.read(8 << 20)
        at = head.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
        (dims,) = struct.unpack_from("<I", head, at)
        assert dims == 2
        patched.seek(at + 4)
        patched.write(struct.pack("<Q", 1 << 40))
    refused(["run", str(file)], 74, "lying.gguf", "token_embd.weight")


def test_an_unknown_flag_is_2_with_the_nearest_one() -> None:
    refused(["run", "--max-num-sequences", "4"], 2, "--max-num-sequences", "--max-num-seqs")


def test_a_value_out_of_range_is_2() -> None:
    refused(["run", "--port", "123456"], 2, "port", "123456")


def test_a_flag_that_is_not_built_is_2() -> None:
    refused(["run", "--enable-lora"], 2, "--enable-lora")


def test_an_unknown_plugin_in_a_list_is_78(tiny_llama: Path) -> None:
    refused(["run", str(tiny_llama), "--require-plugins", "nosuchplugin"], 78, "nosuchplugin")


def test_more_context_than_the_model_has_is_78(tiny_llama: Path) -> None:
    refused(["run", str(tiny_llama), "--max-model-len", "513"], 78, "513", "512")


def test_a_cache_too_small_for_one_request_is_78(tiny_llama: Path) -> None:
    refused(["run", str(tiny_llama), "--num-gpu-blocks-override", "1"], 78, "1")
