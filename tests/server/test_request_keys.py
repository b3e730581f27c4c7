"""Who is given the key of a request, and who is told only whose it is."""

from __future__ import annotations

import asyncio
from typing import Any

from hookserve.hookspecs import ApiRequest, Principal, RequestHead, hookimpl
from hookserve.server.secret import Secret
from scripted_engine import say


class Reader:
    def __init__(self) -> None:
        self.heads: list[RequestHead] = []
        self.requests: list[tuple[ApiRequest, Principal | None]] = []

    @hookimpl
    async def authenticate(self, request: RequestHead) -> Principal | None:
        self.heads.append(request)
        return Principal("guest") if request.headers["authorization"] == "Bearer guest" else None

    @hookimpl
    async def before_request(self, request: ApiRequest, principal: Principal | None) -> None:
        self.requests.append((request, principal))


def test_only_who_says_whose_a_key_is_sees_it(serve_script: Any) -> None:
    reader = Reader()

    async def run() -> None:
        settings = {"api_key": (Secret("sesame"),)}
        async with serve_script(say("a"), plugins=[reader], settings=settings) as served:
            for key in ("sesame", "guest"):
                headers = {"authorization": f"Bearer {key}", "x-tenant": "red"}
                body = {"prompt": "a"}
                reply = await served.http.post("/v1/completions", json=body, headers=headers)
                assert reply.status_code == 200

    asyncio.run(run())
    # A key of the server's own is shown to nobody.
    assert [head.headers["authorization"] for head in reader.heads] == ["Bearer guest"]
    assert [principal and principal.name for _, principal in reader.requests] == [
        "api-key-1",
        "guest",
    ]
    for request, _ in reader.requests:
        assert request.headers["x-tenant"] == "red"
        assert "authorization" not in request.headers
