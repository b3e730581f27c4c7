"""The specifications of the live hooks; each is called by the host in the roles that it names.

How the host calls them is ``calls``'s, what they return is in ``types``. Every hook also offers
``ctx``, the plugin's own ``PluginContext``; an implementation names the arguments that it wants,
in any order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .markers import hookspec
from .registration_specs import *  # noqa: F403 - in their order, which is that of every table
from .request_types import (
    ApiRequest,
    EngineLoad,
    Principal,
    Refusal,
    RequestHead,
    ResponseDelta,
)
from .step_types import QueuedRequest, StepBatch
from .types import RequestRecord, Role

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from .context import PluginContext


@hookspec(
    call="collect",
    roles=("front", "engine", "worker", "inspector", "cli"),
    failure="refuse",
)
def settings_schema(ctx: PluginContext) -> type | None:
    """State what the plugin's own section of ``--plugin-config`` may hold. It is asked before every
    other hook; afterwards ``ctx.config`` is an instance.

    Returns: a ``msgspec.Struct`` class, or ``None``.
    Runs in: front, engine, worker, inspector, cli.
    Called: once in each process, at bootstrap, before every other hook (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="notify", roles=("front", "engine", "worker", "inspector"), failure="refuse")
def register_by_call(ctx: PluginContext) -> None:
    """Register by calls of ``declare`` instead of answers, once every declaration is known.

    Returns: nothing.
    Runs in: front, engine, worker, inspector.
    Called: once in each process, at bootstrap, after all registration hooks (notify).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(
    call="notify",
    roles=("front", "engine", "worker", "inspector", "cli"),
    failure="refuse",
)
def process_started(roles: frozenset[Role], config: Any, ctx: PluginContext) -> None:
    """Told which process this is, after bootstrap and before any work.

    Returns: nothing.
    Runs in: front, engine, worker, inspector, cli.
    Called: once in each process, after bootstrap (notify).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="pipeline", roles=("front",), failure="refuse")
def engine_config(config: Mapping[str, Any], ctx: PluginContext) -> Mapping[str, Any] | None:
    """Change the engine's arguments before its configuration is made. Two plugins that set one
    field to different values stop the start.

    Returns: the changed fields by name, or ``None``.
    Runs in: front.
    Called: once, before the engine is built (pipeline).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="pipeline", roles=("cli",), failure="refuse")
def cli_options(parser: ArgumentParser, ctx: PluginContext) -> ArgumentParser | None:
    """Add options to ``server run``; only plugins whose ``hookserve.toml`` names the role cli.
    Their values are part of the plugin's own section, ``ctx.config``, in every process.

    Returns: the parser that was given, or ``None``.
    Runs in: cli.
    Called: while the parser of ``server run`` is built (pipeline).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("worker",), failure="refuse")
def compile_cache_key(config: Any, ctx: PluginContext) -> str | None:
    """Say what compiled code depends on that only the plugin knows: code that was compiled under
    another key is left alone.

    Returns: a text, or ``None``.
    Runs in: worker.
    Called: once in each worker, before kernels are compiled or loaded (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="notify", roles=("worker",), failure="refuse")
def model_loaded(model: Any, config: Any, ctx: PluginContext) -> None:
    """Told that the weights are in; the model is the live module.

    Returns: nothing.
    Runs in: worker.
    Called: once in each worker, after loading (notify).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="pipeline", roles=("worker",), failure="refuse", may_yield=True)
def weights(
    iterator: Iterator[tuple[str, Any]], config: Any, ctx: PluginContext
) -> Iterator[tuple[str, Any]] | None:
    """Change the stream of weights on its way to the model.

    Returns: an iterator of names and tensors, or ``None``; may be a generator function.
    Runs in: worker.
    Called: once in each worker, while loading (pipeline).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="first", roles=("front",), failure="request", may_await=True)
def authenticate(
    request: RequestHead, ctx: PluginContext
) -> Principal | Awaitable[Principal | None] | None:
    """Say who sends an HTTP request. A plugin that implements this closes every route but
    ``/livez``, ``/readyz`` and ``/health``. A WebSocket's first request is asked about too.

    Returns: a ``Principal``, or ``None``: not known here; may be a coroutine function.
    Runs in: front.
    Called: for each HTTP request to a closed route, after the keys (first).
    Fails: the request is denied (request).
    Since: 1.0.
    """


@hookspec(call="pipeline", roles=("front",), failure="request", may_await=True)
def before_request(
    request: ApiRequest, principal: Principal | None, ctx: PluginContext
) -> ApiRequest | Refusal | Awaitable[ApiRequest | Refusal | None] | None:
    """Change or refuse a request for text before its template is rendered.

    Returns: a changed request, a ``Refusal``, or ``None``; may be a coroutine function.
    Runs in: front.
    Called: for each request, decoded and checked (pipeline).
    Fails: that request fails (request).
    Since: 1.0.
    """


@hookspec(call="first", roles=("front",), failure="request", may_await=True)
def admit(
    request: ApiRequest, principal: Principal | None, load: EngineLoad, ctx: PluginContext
) -> Refusal | Awaitable[Refusal | None] | None:
    """Refuse a request instead of queueing it.

    Returns: a ``Refusal``, or ``None``; may be a coroutine function.
    Runs in: front.
    Called: for each request, before its submission (first).
    Fails: that request fails (request).
    Since: 1.0.
    """


@hookspec(call="pipeline", roles=("front",), failure="request", may_await=True, may_buffer=True)
def before_response(
    request: ApiRequest, delta: ResponseDelta, ctx: PluginContext
) -> ResponseDelta | Awaitable[ResponseDelta | None] | None:
    """Change the text on its way to the client; a whole reply is the fold of what it let through.
    With ``@hookimpl(buffer=True)`` a choice's text is collected and this is called once.

    Returns: a changed delta, or ``None``; may be a coroutine function.
    Runs in: front.
    Called: for each piece of text of each choice (pipeline).
    Fails: that request fails (request).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front",), failure="observe", may_await=True)
def metric_labels(
    request: ApiRequest, principal: Principal | None, ctx: PluginContext
) -> Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None:
    """Label a finished request in the metrics; of each label 100 values are kept apart, the rest
    is ``other``.

    Returns: label names and values, or ``None``; may be a coroutine function.
    Runs in: front.
    Called: once for each request, at its end (collect).
    Fails: logged once and counted; off after 5 failures in 60 s (observe).
    Since: 1.0.
    """


@hookspec(call="pipeline", roles=("engine",), failure="default")
def order_waiting(queue: list[QueuedRequest], ctx: PluginContext) -> list[QueuedRequest] | None:
    """Change the order in which waiting requests are scheduled.

    Returns: the same requests in another order, or ``None``.
    Runs in: engine.
    Called: at each step at which somebody waits (pipeline).
    Fails: the order stays (default).
    Since: 1.0.
    """


@hookspec(call="first", roles=("engine",), failure="default")
def select_victim(running: list[QueuedRequest], ctx: PluginContext) -> str | None:
    """Choose who gives up its KV cache under pressure.

    Returns: a request id, or ``None``.
    Runs in: engine.
    Called: when a running request needs a block and none is free (first).
    Fails: the default choice stays (default).
    Since: 1.0.
    """


@hookspec(call="notify", roles=("engine",), failure="observe")
def after_schedule(output: Any, ctx: PluginContext) -> None:
    """Told what a step will compute (``hookserve.engine.step.SchedulerOutput``).

    Returns: nothing.
    Runs in: engine.
    Called: at each step (notify).
    Fails: logged once and counted; off after 5 failures in 60 s (observe).
    Since: 1.0.
    """


@hookspec(call="notify", roles=("worker",), failure="observe")
def before_step(batch: StepBatch, ctx: PluginContext) -> None:
    """Told which requests a worker computes next.

    Returns: nothing.
    Runs in: worker.
    Called: at each step (notify).
    Fails: logged once and counted; off after 5 failures in 60 s (observe).
    Since: 1.0.
    """


@hookspec(call="notify", roles=("worker",), failure="observe")
def after_step(batch: StepBatch, output: Any, ctx: PluginContext) -> None:
    """Told what a worker computed (``hookserve.engine.step.ModelRunnerOutput``).

    Returns: nothing.
    Runs in: worker.
    Called: at each step (notify).
    Fails: logged once and counted; off after 5 failures in 60 s (observe).
    Since: 1.0.
    """


@hookspec(call="notify", roles=("front",), failure="observe", may_await=True)
def request_finished(record: RequestRecord, ctx: PluginContext) -> Awaitable[None] | None:
    """Told about each HTTP request for text that ended, aborted or failed, once for all its
    choices. A plain function runs in a thread of its own, a coroutine function on the event loop;
    either has 5 s.

    Returns: nothing; may be a coroutine function.
    Runs in: front.
    Called: once for each request, at its end (notify).
    Fails: logged once and counted; off after 5 failures in 60 s (observe).
    Since: 1.0.
    """


@hookspec(
    call="notify",
    roles=("front", "engine", "worker", "inspector", "cli"),
    failure="logged",
)
def shutdown(roles: frozenset[Role], ctx: PluginContext) -> None:
    """Told that the process stops cleanly. In front it has 5 s, in a thread of its own.

    Returns: nothing.
    Runs in: front, engine, worker, inspector, cli.
    Called: once in each process, at a clean stop (notify).
    Fails: logged; the stop goes on (logged).
    Since: 1.0.
    """
