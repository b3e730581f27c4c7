"""Reading files that somebody else made: regular ones only, and no text without an end.

A pipe or a device in a file's place would keep whoever opens it waiting for ever.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, BinaryIO

from .errors import ModelFileError

MAX_TEXT_BYTES = 1 << 28
"""The largest known tokenizer.json has an eighth of it."""

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str) -> BinaryIO:
    """Open a file for reading, without ever waiting.

    Raises:
        ModelFileError: there is no such file, it cannot be read, or it is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "of another kind")
    raise ModelFileError(f"{path}: is {kind}, no regular file; nothing is read from it")


def read_text(path: str) -> str:
    """A UTF-8 text.

    Raises:
        ModelFileError: as ``open_regular``, and what is no UTF-8 or longer than any such file.
    """
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from error


def read_json_object(path: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
        ModelFileError: as ``open_regular``, and what is no JSON object or longer than any.
    """
    try:
        value = json.loads(_read_bytes(path).decode())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is no valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds no JSON object")
    return value


def _read_bytes(path: str) -> bytes:
    with open_regular(path) as file:
        try:
            data = file.read(MAX_TEXT_BYTES + 1)
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_TEXT_BYTES:
        raise ModelFileError(f"{path}: has more than {MAX_TEXT_BYTES} bytes, as no such file has")
    return data
