"""What stands in a file's place and is none: refused at once, by whoever reads a model's files."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hookserve.engine import regular_file
from hookserve.engine.errors import EX_IOERR, ModelFileError
from hookserve.engine.model_files import read_model_files
from hookserve.engine.regular_file import open_regular, read_json_object, read_text
from hookserve.engine.text.tokenizer import load_tokenizer


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is a pipe, no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device, no regular file"),
    "folder": (lambda path: path.mkdir(), "is a folder, no regular file"),
    "socket": (make_socket, "cannot be read"),
}


@pytest.fixture(params=KINDS)
def put(request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """``put(path)``: something in the file's place; returns what is said of it."""
    make, match = KINDS[request.param]

    def put(path: Path) -> str:
        path.unlink(missing_ok=True)
        make(path)
        return rf"{path.name}: {match}"

    return put


def refused(match: str, read: Callable[[str], object], path: Path) -> None:
    started = time.perf_counter()
    with pytest.raises(ModelFileError, match=match) as raised:
        read(str(path))
    assert time.perf_counter() - started < 2
    assert raised.value.exit_code == EX_IOERR


def test_a_gguf_path(put: Callable[[Path], str], tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    match = put(path)
    if path.is_dir():  # a folder's name may end so: it is read as one
        match = "no config.json"
    refused(match, read_model_files, path)
    if not path.is_dir():
        refused(match, load_tokenizer, path)


FILES = ["config.json", "generation_config.json", "model.safetensors"]
TEXT_FILES = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


@pytest.mark.parametrize("name", FILES)
def test_a_models_files(
    put: Callable[[Path], str], tmp_path: Path, tiny_llama: Path, name: str
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    refused(put(folder / name), read_model_files, folder)


@pytest.mark.parametrize("name", TEXT_FILES)
def test_a_tokenizers_files(
    put: Callable[[Path], str], tmp_path: Path, tiny_llama: Path, name: str
) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    refused(put(folder / name), load_tokenizer, folder)


def test_an_index(put: Callable[[Path], str], tmp_path: Path, tiny_llama: Path) -> None:
    folder = Path(shutil.copytree(tiny_llama, tmp_path / "model"))
    refused(put(folder / "model.safetensors.index.json"), read_model_files, folder)


def test_a_regular_file_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text('{"a": "ä"}', encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    with open_regular(str(tmp_path / "link")) as file:
        assert file.read(1) == b"{"
    assert read_text(str(tmp_path / "link")) == '{"a": "ä"}'
    assert read_json_object(str(tmp_path / "link")) == {"a": "ä"}


def test_a_text_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_file, "MAX_TEXT_BYTES", 1000)
    path = tmp_path / "config.json"
    path.write_text("{" + " " * 998 + "}")
    assert read_json_object(str(path)) == {}
    path.write_text("{" + " " * 999 + "}")
    refused(r"config\.json: has more than 1000 bytes", read_json_object, path)
