"""The specifications of the hooks by which plugins declare what they have; ``specs`` has them too.

Who wins a name that two declare is ``registry``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .markers import hookspec
from .types import (
    Command,
    Endpoint,
    ModelEntry,
    Named,
    OpOverride,
    OpProvider,
    Target,
)

if TYPE_CHECKING:
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


@hookspec(call="collect", roles=("front",), failure="refuse", kind="io_processor")
def io_processor(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare processors that turn a request's data into prompts and a pooling model's outputs into
    its answer, chosen by ``--io-processor-plugin``.

    Returns: one ``Named``, several, or ``None``.
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


@hookspec(call="collect", roles=("front",), failure="refuse", kind="lora_resolver")
def lora_resolver(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare resolvers that find LoRA adapters by name; registered and listed, and asked by
    nobody so far.

    Returns: one ``Named``, several, or ``None``.
    Runs in: front.
    Called: once, at bootstrap (collect).
    Fails: the plugin is out everywhere (refuse).
    Since: 1.0.
    """


@hookspec(call="collect", roles=("engine", "worker"), failure="refuse", kind="kv_connector")
def kv_connector(ctx: PluginContext) -> Named | Iterable[Named] | None:
    """Declare connectors that carry the KV cache between engines; registered and listed, and used
    by nobody so far.

    Returns: one ``Named``, several, or ``None``.
    Runs in: engine, worker.
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
