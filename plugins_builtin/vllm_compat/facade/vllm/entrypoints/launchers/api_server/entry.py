"""Engines for programs that serve in their own way."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.engine_contexts import (
    build_async_engine_client,
    build_async_engine_client_from_engine_args,
)

__all__ = ["build_async_engine_client", "build_async_engine_client_from_engine_args"]

__surface__ = {
    "build_async_engine_client": "live: an AsyncLLM made of a Namespace with the arguments of an "
    "engine, for the length of an `async with`",
    "build_async_engine_client_from_engine_args": "live: an AsyncLLM for the length of an `async "
    "with`",
    "run_server": "refused: start the server with `server run`, or serve "
    "hookserve.server.build_app with any ASGI server",
    "run_server_worker": "refused: there is one front process; start it with `server run`",
}
