"""The log's one format, that it touches no logger but its own, and what plugins say."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.log import LogFormatter, configure_logging, own_logging
from hookserve.hookspecs import PluginSettings, bootstrap


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger("hookserve")
    before = (list(logger.handlers), logger.level, logger.propagate)
    logger.handlers.clear()
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


def test_engines_of_this_process_log_at_its_level() -> None:
    assert EngineArgs().log_level == "INFO"
    configure_logging("WARNING", "Program", stream=io.StringIO())
    assert EngineArgs().log_level == "WARNING"
    assert EngineArgs(log_level="DEBUG").log_level == "DEBUG"


def test_the_default_is_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging("INFO", "Front", stream=sys.stderr)
    logging.getLogger("hookserve").info("here")
    captured = capsys.readouterr()
    assert captured.out == "" and "here" in captured.err


@pytest.fixture
def own_stream() -> Iterator[io.StringIO]:
    """The log of a process that is the program's own."""
    root, out = logging.getLogger(), io.StringIO()
    before = (list(root.handlers), root.level)
    own_logging("INFO", "Engine").handlers[-1].setStream(out)
    yield out
    root.handlers[:] = before[0]
    root.setLevel(before[1])


PLUGIN = """
import logging
from hookserve.hookspecs import hookimpl

logging.getLogger("odd.name").info("while it is imported")

@hookimpl
def register_model():
    logging.getLogger(__name__).debug("too quiet")
    logging.getLogger(__name__ + ".part").warning("in a hook")

@hookimpl
def process_started(ctx):
    ctx.logger.info("by its context")
"""


def test_what_plugins_say_comes_with_their_names_at_the_programs_level(
    own_stream: io.StringIO, tmp_path: Path
) -> None:
    (tmp_path / "talker.py").write_text(PLUGIN)
    settings = PluginSettings(files=(str(tmp_path / "talker.py"),), allow=())
    host = bootstrap({"engine", "worker"}, settings)
    try:
        host.calls.process_started(host.roles, None)
        thread = threading.Thread(target=logging.getLogger("talker").info, args=("in a thread",))
        thread.start()
        thread.join()
        logging.getLogger("a.library").info("of a library")
        logging.getLogger("a.library").warning("careful")
    finally:
        host.close()
        sys.modules.pop("talker")
    pattern = rf"\(Engine pid={os.getpid()}\) (\w+) \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] (.*)"
    lines = [re.fullmatch(pattern, line) for line in own_stream.getvalue().splitlines()]
    said = [(line[1], line[2]) for line in lines if line is not None]
    assert len(said) == len(lines)
    assert [line for line in said if "active" not in line[1]] == [
        ("INFO", "plugin file:talker says: while it is imported"),
        ("WARNING", "plugin file:talker says: in a hook"),
        ("INFO", "plugin file:talker says: by its context"),
        ("INFO", "plugin file:talker says: in a thread"),
        ("WARNING", "careful"),
    ]


def test_setting_it_up_again_doubles_nothing(own_stream: io.StringIO) -> None:
    own_logging("WARNING", "Engine").handlers[-1].setStream(own_stream)
    logging.getLogger("a.library").warning("once")
    assert own_stream.getvalue().count("once") == 1
    assert logging.getLogger().level == logging.WARNING


def test_the_ecosystems_loggers_show_whoever_speaks(own_stream: io.StringIO) -> None:
    own_logging("WARNING", "Worker 1", ecosystem_level="INFO").handlers[-1].setStream(own_stream)
    logging.getLogger("vllm").info("by the package")
    logging.getLogger("vllm.a.plugin").info("by a plugin")
    logging.getLogger("vllm.a.plugin").debug("too quiet")
    logging.getLogger("vllm_of_another").info("by a name that only begins so")
    logging.getLogger("hookserve").info("what the first rank says for all")
    said = [line.rpartition("] ")[2] for line in own_stream.getvalue().splitlines()]
    assert said == ["by the package", "by a plugin"]
    own_logging("ERROR", "Front")
    assert not logging.getLogger("vllm").isEnabledFor(logging.WARNING)
