"""The specifications of the live hooks; each is called by the host in the roles that it names.

How the host calls them is ``calls``'s, what they return is in ``types``. Every hook also offers
``ctx``, the plugin's own ``PluginContext``; an implementation names the arguments that it wants,
in any order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .markers import hookspec
from .request_types import (
    ApiRequest,
    EngineLoad,
    Principal,
    Refusal,
    RequestHead,
    ResponseDelta,
)
from .step_types import QueuedRequest, StepBatch
from .types import (
    Command,
    Endpoint,
    ModelEntry,
    Named,
    OpOverride,
    OpProvider,
    RequestRecord,
    Role,
    Target,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from .context import PluginContext


@hookspec(
    call="collect",
    roles=("front", "engine", "worker", "inspector"),
    failure="refuse",
    kind="model",
)
def register_model(ctx: PluginContext) -> ModelEntry | Iterable[ModelEntry] | None:
    """Declare model architectures. The class is imported only in workers and the inspector.

    Returns: one ``ModelEntry``, several, or ``None``.
    Runs in: front, engine, worker, inspector.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("engine", "worker"), failure="refuse", kind="oot_op")
def register_oot_op(ctx: PluginContext) -> OpOverride | Iterable[OpOverride] | None:
    """Replace ops and layers by subclasses of theirs, in every worker.

    Returns: one ``OpOverride``, several, or ``None``.
    Runs in: engine, worker.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("worker",), failure="refuse", kind="op_provider")
def register_op_provider(ctx: PluginContext) -> OpProvider | Iterable[OpProvider] | None:
    """Declare other ways to compute ops; each model takes the first that works, or the one that
    ``--ir-op-priority`` names.

    Returns: one ``OpProvider``, several, or ``None``.
    Runs in: worker.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(
    call="collect",
    roles=("front", "engine", "worker", "inspector", "cli"),
    failure="refuse",
    kind="platform",
)
def platform(ctx: PluginContext) -> str | None:
    """Offer a platform for this machine. The entry's name is the platform's name.

    Returns: the class path of the platform, or ``None``: not on this machine.
    Runs in: front, engine, worker, inspector, cli.
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


@hookspec(call="collect", roles=("engine",), failure="refuse", kind="scheduler")
def scheduler(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare schedulers, chosen by ``--scheduler-cls``.

    Returns: one ``Named``, several, or ``None``.
    Runs in: engine.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("worker",), failure="refuse", kind="worker_extension")
def worker_extension(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Add methods to every worker, for ``collective_rpc``; those of all plugins at once.

    Returns: one ``Named``, several, or ``None``.
    Runs in: worker.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("worker",), failure="refuse", kind="attention_backend")
def attention_backend(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare attention backends, chosen by ``--attention-backend``.

    Returns: one ``Named``, several, or ``None``.
    Runs in: worker.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front", "worker"), failure="refuse", kind="quantization")
def quantization(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare quantization methods, chosen by ``--quantization`` or the checkpoint's own
    ``quant_method``.

    Returns: one ``Named``, several, or ``None``.
    Runs in: front, worker.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front", "engine", "worker"), failure="refuse", kind="hf_config")
def hf_config(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare configuration classes, by the ``model_type`` of ``config.json``, and fix-ups, by
    architecture.

    Returns: one ``Named``, several, or ``None``.
    Runs in: front, engine, worker.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front", "worker"), failure="refuse", kind="logits_processor")
def logits_processor(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare logits processors. All that are declared are used, for every request; a processor
    looks at a request's parameters to see whether it is meant.

    Returns: one ``Named``, several, or ``None``.
    Runs in: front, worker.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front",), failure="refuse", kind="tool_parser")
def tool_parser(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare parsers that find calls of tools in what a model says, chosen by
    ``--tool-call-parser``.

    Returns: one ``Named``, several, or ``None``.
    Runs in: front.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front",), failure="refuse", kind="reasoning_parser")
def reasoning_parser(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare parsers that part what a model thought from what it answers, chosen by
    ``--reasoning-parser``.

    Returns: one ``Named``, several, or ``None``.
    Runs in: front.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front", "engine"), failure="refuse", kind="grammar_backend")
def grammar_backend(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare backends of structured output, chosen by ``--structured-outputs-config.backend``.

    Returns: one ``Named`` whose target satisfies ``GrammarBackend``, several, or ``None``.
    Runs in: front, engine.
    Called: once in each process, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front",), failure="refuse", kind="authenticator")
def authenticator(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare authenticators, chosen by ``--authenticator``. The chosen one is built as
    ``cls(config)`` (contract: ``Authenticator``) and asked after the keys, before the hook
    ``authenticate``.

    Returns: one ``Named``, several, or ``None``.
    Runs in: front.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("front",), failure="refuse", kind="middleware")
def middleware(ctx: PluginContext) -> Target | Iterable[Target] | None:
    """Put pure ASGI layers around the application, inside the server's own limits. They are behind
    the keys, the probes go past them, and nothing reaches them before the start is complete. A
    coroutine function ``(request, call_next)`` is taken as well.

    Returns: one ASGI middleware (``cls(app)``), its path, several, or ``None``.
    Runs in: front.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("cli",), failure="refuse", kind="cli_command")
def cli_command(ctx: PluginContext) -> Command | Iterable[Command] | None:
    """Add verbs to the command line; only plugins whose ``hookserve.toml`` names the role cli.

    Returns: one ``Command``, several, or ``None``.
    Runs in: cli.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


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
