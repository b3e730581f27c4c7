"""What the processes of a server that runs tell of their plugins and ops, read from its route
``GET /v1/plugins`` (``operations``)."""

from __future__ import annotations

import msgspec

from hookserve.hookspecs.report import OpReport, PluginReport, ProcessReport

from .http_lines import Address, ReplyError, request


class _Answer(msgspec.Struct):
    processes: dict[str, list[PluginReport]]
    ops: dict[str, list[OpReport]] = {}
    unanswered: dict[str, str] = {}


async def read_reports(address: Address, api_key: str | None) -> list[ProcessReport]:
    """
    Args:
        api_key: of the scope admin, where the server wants keys.

    Raises:
        ReplyError: the server refuses, is another program, or one of its processes does not answer.
        ServerUnreachableError: as ``http_lines.request``.
    """
    async with request(address, "GET", "/v1/plugins", api_key=api_key) as reply:
        found = await reply.json()
    try:
        answer = msgspec.convert(found, _Answer)
    except msgspec.ValidationError as error:
        raise ReplyError(
            f"{address} does not tell of plugins as this server does: {error}"
        ) from error
    for process, problem in answer.unanswered.items():
        raise ReplyError(f"the {process} process of {address} does not tell: {problem}")
    return [
        ProcessReport(process=process, plugins=plugins, ops=answer.ops.get(process, []))
        for process, plugins in answer.processes.items()
    ]
