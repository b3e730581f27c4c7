"""An engine for the length of an ``async with``, for programs that serve in their own way."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

from hookserve.engine.async_llm import AsyncLLM
from hookserve.engine.engine_args import AsyncEngineArgs, EngineArgs


@contextlib.asynccontextmanager
async def build_async_engine_client(args: Namespace, **given: Any) -> AsyncIterator[AsyncLLM]:
    """
    Args:
        args: with fields of ``AsyncEngineArgs``; others are the server's.
        given: as for ``build_async_engine_client_from_engine_args``.
    """
    names = {each.name for each in fields(AsyncEngineArgs)}
    engine_args = AsyncEngineArgs(**{k: v for k, v in vars(args).items() if k in names})
    async with build_async_engine_client_from_engine_args(engine_args, **given) as engine:
        yield engine


@contextlib.asynccontextmanager
async def build_async_engine_client_from_engine_args(
    engine_args: EngineArgs,
    *,
    usage_context: Any = None,
    disable_frontend_multiprocessing: bool = False,
    client_config: None = None,
) -> AsyncIterator[AsyncLLM]:
    """
    Args:
        usage_context: a word for vLLM's own statistics of usage, which are not kept here.
        disable_frontend_multiprocessing: the engine is one process either way.
        client_config: of an engine that runs already; there is none but the one made here.

    Raises:
        ValueError: a ``client_config``.
        HookserveError: whatever keeps an engine from coming up.
    """
    del usage_context, disable_frontend_multiprocessing
    if client_config is not None:
        raise ValueError(
            "client_config: each engine here is made by its own program; expected None"
        )
    engine = AsyncLLM.from_engine_args(engine_args)
    try:
        await engine.start()
        yield engine
    finally:
        engine.shutdown()
