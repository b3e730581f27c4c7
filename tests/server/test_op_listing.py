"""The table of ops: of plugins that were loaded, of a server that runs, and in the log."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from hookserve.hookspecs import Named, OpOverride, OpProvider, PluginSettings, bootstrap, hookimpl
from hookserve.hookspecs.op_names import FUNCTION_OPS, OP_CLASSES
from hookserve.hookspecs.report import OpReport, PluginReport, ProcessReport
from hookserve.server.cli import main
from hookserve.server.http_lines import Address, ReplyError
from hookserve.server.live_reports import read_reports
from hookserve.server.op_listing import declared_ops, format_ops, log_ops, running_ops


class Declares:
    @hookimpl
    def register_oot_op(self) -> OpOverride:
        return OpOverride("rms_norm", "somewhere:Norm")

    @hookimpl
    def register_op_provider(self) -> list[OpProvider]:
        return [OpProvider("RMSNorm", "mine", max), OpProvider("linear", "mine", max)]

    @hookimpl
    def attention_backend(self) -> Named:
        return Named("theirs", max)


@pytest.fixture(scope="module")
def declared() -> list[tuple[str, str, str]]:
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(), objects=[Declares()])
    try:
        lines = declared_ops(host.describe())
    finally:
        host.close()
    assert {line.process for line in lines} == {"worker"}
    assert not any(line.built or line.calls for line in lines)
    return [(line.op, line.implementation, line.owner.split(":")[0]) for line in lines]


def test_what_is_declared_stands_beside_what_every_op_has(declared: Any) -> None:
    assert {op for op, _, _ in declared} == {*OP_CLASSES, *FUNCTION_OPS}
    of_norm = [line for line in declared if line[0] == "rms_norm"]
    assert ("rms_norm", "somewhere:Norm", "object") in of_norm
    assert ("rms_norm", "mine", "object") in of_norm
    assert ("rms_norm", "c", "hookserve") in of_norm
    assert of_norm[-1] == ("rms_norm", "torch", "hookserve"), "what the op has itself"
    assert [line[1] for line in declared if line[0] == "linear"] == ["mine", "torch"]
    for op in ("kv_write", "paged_attention_decode", "paged_attention_prefill"):
        names = {name for each, name, _ in declared if each == op}
        assert {"theirs", "paged", "compiled"} <= names and "torch" not in names
    assert ("logits_processor", "torch", "hookserve") in declared


def op(name: str, owner: str, calls: int, built: int = 2) -> OpReport:
    return OpReport(
        op=name,
        class_name="",
        implementation="mine",
        owner=owner,
        reason="the first that works",
        built=built,
        calls=calls,
    )


REPORTS = [
    ProcessReport(process="engine"),
    ProcessReport(process="worker 0", ops=[op("linear", "file:a", 61), op("logits", "b", 0)]),
    ProcessReport(process="worker 1", ops=[op("linear", "file:a", 0, 0)]),
]


def test_what_runs_has_its_process_and_whether_it_has_run() -> None:
    lines = format_ops(running_ops(REPORTS)).splitlines()
    assert lines == [
        "op      implementation  owner   process   has run    because",
        "linear  mine            file:a  worker 0  61 times   the first that works",
        "logits  mine            b       worker 0  no         the first that works",
        "linear  mine            file:a  worker 1  not built  the first that works",
    ]


def test_what_plugins_compute_is_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "hookserve"):
        log_ops(REPORTS[:2], ["file:a"])
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [
        (
            "INFO",
            "op linear in worker 0: mine of file:a, built 2, called 61 times: the first that works",
        ),
        (
            "DEBUG",
            "op logits in worker 0: mine of b, built 2, called 0 times: the first that works",
        ),
    ]


# -- a server that runs ----------------------------------------------------------------------------


def ask(answer: bytes) -> tuple[list[ProcessReport], bytes]:
    """Of a server that answers so; and what it was asked."""
    asked = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def run() -> list[ProcessReport]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await read_reports(Address("127.0.0.1", port), "secret")

    return asyncio.run(run()), asked[0]


def reply(body: Any) -> bytes:
    return b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(body).encode()


def test_a_server_is_asked_for_all_of_its_processes() -> None:
    plugin = {
        "identity": "file:a",
        "name": "a",
        "group": "file",
        "distribution": None,
        "version": None,
        "file": "a.py",
        "api": "",
        "roles": ["worker"],
        "state": "active",
        "tomorrow": "a field of a newer server",
    }
    ops = [{"op": "linear", "class_name": "", "implementation": "mine", "owner": "file:a"}]
    ops[0] |= {"reason": "", "built": 1, "calls": 3}  # type: ignore[dict-item]
    body = {"processes": {"front": [], "worker 0": [plugin]}, "ops": {"worker 0": ops}}
    (front, worker), asked = ask(reply(body))
    assert asked.startswith(b"GET /v1/plugins HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in asked
    assert (front.process, front.plugins, front.ops) == ("front", [], [])
    assert (worker.process, worker.ops[0].calls) == ("worker 0", 3)
    assert isinstance(worker.plugins[0], PluginReport)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (reply({"processes": {}, "unanswered": {"engine": "no answer within 2 s"}}), "the engine "),
        (reply({"data": []}), "does not tell of plugins as this server does: .*processes"),
        (b'HTTP/1.1 401 No\r\n\r\n{"error": {"message": "no key"}}', "401: no key"),
    ],
)
def test_a_server_that_does_not_tell_is_told_in_a_sentence(answer: bytes, words: str) -> None:
    with pytest.raises(ReplyError, match=words):
        ask(answer)


def test_what_to_load_is_not_said_to_a_server_that_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plugins", "hooks", "--url", "http://127.0.0.1:9", "--disable-plugins", "a"]
    assert main(words) == 2
    assert (
        "--disable-plugins says what to load, and --url names a server" in capsys.readouterr().err
    )
    assert main(["plugins", "hooks", "--api-key", "k"]) == 2
    assert "--api-key is for the server at --url, which is not given" in capsys.readouterr().err
