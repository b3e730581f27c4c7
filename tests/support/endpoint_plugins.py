"""Endpoint plugins as they are written for vLLM, made of a function that adds routes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from hookserve.plugins_builtin.vllm_compat.endpoints import EndpointEntry

Attach = Callable[[FastAPI], None]


class Routes:
    """An endpoint plugin as its author writes one."""

    name = "mine"
    required_tasks: tuple[str, ...] | None = None

    def __init__(self, attach: Attach) -> None:
        self._attach = attach
        self.given: tuple[Any, ...] = ()

    def attach_router(self, app: FastAPI) -> None:
        self._attach(app)

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        self.given = (engine_client, state, args)


class One(EndpointEntry):
    def __init__(self, attach: Attach | Any, name: str = "mine") -> None:
        made = Routes(attach) if callable(attach) else attach
        self.made = made
        super().__init__(name, lambda: made)


class Two(One):
    def __init__(self, attach: Attach | Any) -> None:
        super().__init__(attach, "other")
