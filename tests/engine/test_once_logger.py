"""Lines that a logger says once."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import pytest

from hookserve.engine import once_logger
from hookserve.engine.once_logger import init_logger


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"vllm.{request.node.name}"


def test_a_line_is_said_once_for_each_text_level_and_arguments(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, name)
    logger = init_logger(name)
    assert logger is init_logger(name) is logging.getLogger(name)
    for _ in range(2):
        init_logger(name).info_once("made %s", "a")
        logger.info_once("made %s", "b")
        logger.warning_once("made %s", "a")
        logger.debug_once("odd %s", [1])  # type: ignore[arg-type]
        logger.error_once("plain")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "made a"),
        ("INFO", "made b"),
        ("WARNING", "made a"),
        ("DEBUG", "odd [1]"),
        ("ERROR", "plain"),
    ]
    assert {record.filename for record in caplog.records} == {"test_once_logger.py"}
    init_logger(f"{name}.other").info_once("made %s", "a")
    assert caplog.records[-1].getMessage() == "made a"


def test_of_several_ranks_the_first_one_speaks_for_all(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, name)
    logger = init_logger(name)
    rank = 1
    ranks = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: rank
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", ranks)  # type: ignore[arg-type]
    logger.info_once("for all", scope="global")
    logger.info_once("for this machine", scope="local")
    logger.info_once("for each")
    assert [record.getMessage() for record in caplog.records] == ["for each"]
    rank = 0
    logger.info_once("for all", scope="global")
    assert caplog.records[-1].getMessage() == "for all"
    with pytest.raises(ValueError, match="'host': expected one of process, global, local"):
        logger.info_once("to nobody", scope="host")  # type: ignore[arg-type]


def test_what_was_said_is_forgotten_before_it_is_too_much(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, name)
    monkeypatch.setattr(once_logger, "MAX_REMEMBERED", 2)
    for number in (1, 2, 1, 3, 1):
        init_logger(name).info_once("%d", number)
    assert [record.getMessage() for record in caplog.records] == ["1", "2", "3", "1"]


def test_what_another_library_puts_into_every_logger_is_not_taken_for_it(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def info_once(self: logging.Logger, text: str, **more: object) -> None:
        self.info("by another: %s", text)

    monkeypatch.setattr(logging.Logger, "info_once", info_once, raising=False)
    caplog.set_level(logging.INFO, name)
    init_logger(name).info_once("mine", scope="local")
    init_logger(name).info_once("mine", scope="local")
    assert caplog.messages == ["mine"]
