"""The specifications of the live hooks; each is called by the host in the roles that it names.

How the host calls them is ``calls``'s, what they return is in ``types``. Every hook also offers
``ctx``, the plugin's own ``PluginContext``; an implementation names the arguments that it wants,
in any order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from .markers import hookspec
from .types import Endpoint, ModelEntry, Named, RequestRecord, Role

if TYPE_CHECKING:
    from .context import PluginContext


@hookspec(
    call="collect",
    roles=("front", "engine", "worker", "inspector"),
    failure="refuse",
    kind="model",
)
def register_model(ctx: PluginContext) -> ModelEntry | Iterable[ModelEntry] | None:
    """Declare model architectures. The class is imported only in the process that builds it.

    Returns: one ``ModelEntry``, several, or ``None``.
    Runs in: front, engine, worker, inspector.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(
    call="collect",
    roles=("front", "engine", "worker", "cli"),
    failure="refuse",
    kind="platform",
)
def platform(ctx: PluginContext) -> str | None:
    """Offer a platform for this machine. The entry's name is the platform's name.

    Returns: the class path of the platform, or ``None``: not on this machine.
    Runs in: front, engine, worker, cli.
    Called: once in each process, at bootstrap (collect).
    Fails: the start stops, unless ``--platform`` names another one (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front",), failure="refuse", kind="stat_logger")
def stat_logger(ctx: PluginContext) -> type | str | Iterable[type | str] | None:
    """Add loggers of the engine's statistics; they never replace the built-in ones.

    Returns: one class that satisfies ``StatLogger`` or its path, several, or ``None``.
    Runs in: front.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front",), failure="refuse", kind="endpoint")
def endpoint(ctx: PluginContext) -> Endpoint | Iterable[Endpoint] | None:
    """Declare HTTP routes. A third party's are served only when the operator opened them.

    Returns: one ``Endpoint``, several, or ``None``.
    Runs in: front.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front",), failure="refuse", kind="model_source")
def model_source(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare sources that turn a model reference into files on this machine.

    Returns: one ``Named`` whose target satisfies ``ModelSource``, several, or ``None``.
    Runs in: front.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("worker",), failure="refuse", kind="model_loader")
def model_loader(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare loaders of weights, chosen by ``--load-format``.

    Returns: one ``Named``, several, or ``None``.
    Runs in: worker.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("engine",), failure="refuse", kind="executor")
def executor(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare executors, chosen by ``--distributed-executor-backend``.

    Returns: one ``Named``, several, or ``None``.
    Runs in: engine.
    Called: once in each process, at bootstrap (collect).
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
