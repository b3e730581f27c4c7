"""The log's one format, and that it touches no logger but its own."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterator

import pytest

from hookserve.engine.log import LogFormatter, configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger("hookserve")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before
    logger.setLevel(before[1])


def test_a_line_has_role_level_time_place_and_text() -> None:
    out = io.StringIO()
    configure_logging("INFO", "Front", stream=out)
    logging.getLogger("hookserve.x").warning("%d things", 3)
    logging.getLogger("hookserve.x").debug("hidden")
    pattern = (
        r"\(Front pid=(\d+)\) WARNING \d\d-\d\d \d\d:\d\d:\d\d \[test_log\.py:\d+\] 3 things\n"
    )
    match = re.fullmatch(pattern, out.getvalue())
    assert match is not None, out.getvalue()
    assert int(match[1]) == os.getpid()


def test_every_line_of_a_message_has_the_head() -> None:
    out = io.StringIO()
    configure_logging("INFO", "Engine", stream=out)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("hookserve").exception("one\ntwo")
    lines = out.getvalue().splitlines()
    assert len(lines) >= 4 and lines[-1].endswith("] ValueError: why")
    assert all(line.startswith("(Engine pid=") for line in lines)


@pytest.mark.parametrize("color", [True, False])
def test_colour_only_when_asked(color: bool) -> None:
    record = logging.LogRecord("hookserve", logging.ERROR, "f.py", 1, "no", (), None)
    line = LogFormatter("Front", 1, color=color).format(record)
    assert ("\x1b[31mERROR\x1b[0m" in line) == color
    assert ("\x1b" in line) == color


def test_configuring_again_replaces_and_leaves_the_root_alone() -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    other = logging.NullHandler()
    logging.getLogger("hookserve").addHandler(other)
    first, second = io.StringIO(), io.StringIO()
    configure_logging("INFO", "Front", stream=first)
    configure_logging("ERROR", "Front", stream=second)
    logging.getLogger("hookserve").warning("quiet")
    logging.getLogger("hookserve").error("loud")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    assert other in logging.getLogger("hookserve").handlers
    assert (list(root.handlers), root.level) == before


def test_the_default_is_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging("INFO", "Front", stream=sys.stderr)
    logging.getLogger("hookserve").info("here")
    captured = capsys.readouterr()
    assert captured.out == "" and "here" in captured.err
