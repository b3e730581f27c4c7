"""What cannot start says why in one sentence, with the right exit code; what cannot be answered
gets the envelope, and the server lives."""

from __future__ import annotations

import json
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from harness import RunningServer, run_command
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


# -- at start --------------------------------------------------------------------------------------


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


# -- at a request ----------------------------------------------------------------------------------

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]

BAD_BODIES: list[tuple[str, str, Any, str | None]] = [
    ("no JSON", COMPLETIONS, b"{nope", None),
    ("an empty body", COMPLETIONS, b"", None),
    ("a list", COMPLETIONS, [], None),
    ("no prompt", COMPLETIONS, {"max_tokens": 1}, "prompt"),
    ("an empty list of prompts", COMPLETIONS, {"prompt": []}, "prompt"),
    ("a prompt of another type", COMPLETIONS, {"prompt": {"a": 1}}, "prompt"),
    ("a token that does not exist", COMPLETIONS, {"prompt": [1, 260]}, "prompt"),
    ("a negative token", COMPLETIONS, {"prompt": [-1]}, "prompt"),
    ("a prompt that can never fit", COMPLETIONS, {"prompt": [7] * 600}, "prompt"),
    ("more output than fits", COMPLETIONS, {"prompt": [7] * 500, "max_tokens": 100}, "max_tokens"),
    ("no tokens wanted", COMPLETIONS, {"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ("tokens in words", COMPLETIONS, {"prompt": "a", "max_tokens": "ten"}, "max_tokens"),
    ("a hot temperature", COMPLETIONS, {"prompt": "a", "temperature": 2.5}, "temperature"),
    ("a cold temperature", COMPLETIONS, {"prompt": "a", "temperature": -0.1}, "temperature"),
    ("top_p of nothing", COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p"),
    ("top_k below -1", COMPLETIONS, {"prompt": "a", "top_k": -2}, "top_k"),
    ("an empty stop", COMPLETIONS, {"prompt": "a", "stop": [""]}, "stop"),
    ("an unknown field", COMPLETIONS, {"prompt": "a", "max_tokns": 5}, "max_tokns"),
    ("a field not built", COMPLETIONS, {"prompt": "a", "use_beam_search": True}, "use_beam_search"),
    ("stream options alone", COMPLETIONS, {"prompt": "a", "stream_options": {}}, "stream_options"),
    ("no messages", CHAT, {}, "messages"),
    ("empty messages", CHAT, {"messages": []}, "messages"),
    ("a message without a role", CHAT, {"messages": [{"content": "hi"}]}, "messages[0]"),
    ("tools", CHAT, {"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools"),
]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [case[1:] for case in BAD_BODIES],
    ids=[case[0].replace(" ", "-") for case in BAD_BODIES],
)
def test_a_bad_body_gets_the_envelope(
    path: str, body: Any, param: str | None, tiny_server: RunningServer
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with tiny_server.client() as client:
        reply = client.post(path, content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert "Traceback" not in reply.text
    if param is not None:
        assert error["param"].startswith(param), error
    assert tiny_server.status("/readyz") == 200


def test_an_unknown_field_names_the_nearest_one(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(COMPLETIONS, {"prompt": "a", "max_tokns": 5})
    assert "max_tokens" in reply.json()["error"]["message"]


def test_a_field_without_meaning_here_is_named_in_a_header(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1, "user": "me"})
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-hookserve-unused"] == "user"


def test_another_model_is_404(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(COMPLETIONS, {"model": "gpt-4", "prompt": "a"})
    assert reply.status_code == 404
    assert "gpt-4" in reply.json()["error"]["message"]


def test_other_routes_and_methods_get_the_envelope_too(tiny_server: RunningServer) -> None:
    assert tiny_server.get("/v1/nothing").status_code == 404
    assert tiny_server.get("/v1/nothing").json()["error"]["message"]
    wrong = tiny_server.get(COMPLETIONS)
    assert wrong.status_code == 405
    assert wrong.json()["error"]["message"]


def test_a_long_value_of_the_clients_is_not_repeated(tiny_server: RunningServer) -> None:
    reply = tiny_server.post(COMPLETIONS, {"prompt": "a", "model": "x" * 5000})
    assert reply.status_code in (400, 404)
    assert "x" * 300 not in reply.text


def test_a_body_that_is_too_big_is_refused(tiny_server: RunningServer) -> None:
    with tiny_server.client() as client:
        reply = client.post(COMPLETIONS, content=b"[" + b" " * (80 << 20) + b"]")
    assert reply.status_code == 413
    assert tiny_server.status("/readyz") == 200
