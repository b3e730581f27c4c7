"""Methods of the ecosystem's engines (vLLM's) for which these have no use: calling one raises and
says why. Which class has which is the class' own table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from .errors import NotServedError

C = TypeVar("C", bound=type[Any])

NO_BEAMS = "there is no beam search here; use SamplingParams(n=..., best_of=...)"
NO_ELASTIC = "the number of ranks is that of the start (--tensor-parallel-size)"
NO_LORA = "there are no LoRA adapters here; serve a model with the adapter merged into it"
NO_METRICS = "an engine in this process keeps no metrics to be read; a server does, at /metrics"
NO_PAUSE = "an engine here cannot be paused; stop sending requests, and wait or abort"
NO_PICTURES = "models here take text alone, and there is no cache of other inputs"
NO_POOLING = "no pooling model is served here; models generate"
NO_PROFILE = "this server profiles no engine; look at one with `py-spy` or torch's own profiler"
NO_QUEUE = "an LLM takes its prompts and answers them in one call; call generate or chat"
NO_RANKS = "a rank that fails ends the engine, whose state is_running and check_health tell"
NO_SLEEP = "an engine here gives its memory back at its end alone; stop the server"
NO_SLEEP_OFFLINE = "an engine here gives its memory back at its end alone; call shutdown"
NO_TRANSFER = "weights are read at the start alone; start a server with the new ones"


def not_served(name: str, why: str) -> Callable[..., Any]:
    """A method that raises."""

    def method(self: object, *args: Any, **kwargs: Any) -> Any:
        raise NotServedError(f"{name}: {why}")

    return _named(method, name, why)


def not_served_awaited(name: str, why: str) -> Callable[..., Awaitable[Any]]:
    """A method that raises where it is awaited."""

    async def method(self: object, *args: Any, **kwargs: Any) -> Any:
        raise NotServedError(f"{name}: {why}")

    return _named(method, name, why)


def _named(method: Callable[..., Any], name: str, why: str) -> Callable[..., Any]:
    method.__name__ = name
    method.__doc__ = f"Raises ``NotServedError``: {why}."
    return method


def not_serving(table: Mapping[str, str]) -> Callable[[C], C]:
    """Decorates a class with such methods: names to what each raises."""

    def decorate(kind: C) -> C:
        for name, why in table.items():
            assert not hasattr(kind, name), f"{kind.__name__} has {name}"
            setattr(kind, name, not_served(name, why))
        return kind

    return decorate
