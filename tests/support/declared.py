"""What a plugin declared, as its report tells it, and how a plugin's file begins."""

from __future__ import annotations

from hookserve.hookspecs import Host

HEADER = "from hookserve.hookspecs import Endpoint, ModelEntry, Named, hookimpl\n"


def declared(host: Host, identity: str) -> dict[str, str]:
    (report,) = [report for report in host.describe() if report.identity == identity]
    return {f"{one.kind}:{one.name}": one.state for one in report.declarations}
