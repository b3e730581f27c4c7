"""The types that cross hooks: declarations, contexts, records, contracts.

Nothing here imports torch, an HTTP library, or a plugin. A ``target`` is the text
``"package.module:attribute"`` (``"package.module.attribute"`` is accepted too); it is imported
only in the process that needs it, when it needs it. An object in place of the text is accepted
only where all roles share one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from .op_names import class_of

if TYPE_CHECKING:
    from starlette.datastructures import State
    from starlette.routing import BaseRoute

API_VERSION = "1.0"
"""Version of the hook contract; a plugin states the range that it accepts in ``hookserve.toml``."""

Role = Literal["front", "engine", "worker", "inspector", "cli"]
ROLES: tuple[Role, ...] = ("front", "engine", "worker", "inspector", "cli")

Target = str | Callable[..., Any]


class ModelEntry(msgspec.Struct, frozen=True):
    """A model architecture: the name found in ``config.json`` under ``architectures``.

    Args:
        arch: the architecture's name, such as ``"LlamaForCausalLM"``.
        target: the class that implements it (model contract: ``docs/models.md``).
        info: facts about the class, by the names of ``hookserve.engine.model_facts.ModelFacts``,
            for processes that do not import it; ``None``: an inspector finds them out.
    """

    arch: str
    target: Target
    info: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return self.arch


class Named(msgspec.Struct, frozen=True):
    """Something that is chosen by name: a loader, an executor, a model source, ..."""

    name: str
    target: Target


class OpOverride(msgspec.Struct, frozen=True):
    """A class that is built in the place of an op's or a layer's.

    Args:
        op: either name of it, such as ``"rms_norm"`` or ``"RMSNorm"``.
        target: a subclass of the op's class.
        when: called with the worker's ``VllmConfig``; where it answers false the op stays as it
            is. ``None``: always.
    """

    op: str
    target: Target
    when: Target | None = None

    @property
    def name(self) -> str:
        return class_of(self.op)


class OpProvider(msgspec.Struct, frozen=True):
    """Another way to compute an op; what an op's provider is called with its class says.

    Args:
        op: either name of it, such as ``"rotary_embedding"``.
        name: of the provider; ``"torch"`` is what every op has.
        target: a function, or a class that is made once in each worker and whose object is called.
            It may answer ``NotImplemented`` to what it does not take: then torch computes.
        supports: called once with the worker's ``torch.device`` and the model's ``torch.dtype``;
            answers ``True``, ``False``, or why not. ``None``: everything.
        priority: the highest is tried first; among equals third parties come before built-ins.
    """

    op: str
    name: str
    target: Target
    supports: Target | None = None
    priority: int = 0


class Endpoint(msgspec.Struct, frozen=True):
    """A set of HTTP routes.

    Args:
        name: the name by which ``--enable-endpoints`` opens it.
        factory: takes no argument and returns an ``EndpointInstance``.
        required_tasks: served only when the model supports one of these tasks; ``None``: always.
    """

    name: str
    factory: Target
    required_tasks: tuple[str, ...] | None = None

    @property
    def target(self) -> Target:
        return self.factory


class Command(msgspec.Struct, frozen=True):
    """A verb of the command line: ``server NAME ...``.

    Args:
        name: one word.
        target: called with the list of the arguments behind the name; returns the exit code.
        help: one line for ``server --help``.
    """

    name: str
    target: Target
    help: str = ""


class RequestRecord(msgspec.Struct, frozen=True):
    """What ``request_finished`` is told: end, abort and error alike. Times in seconds."""

    request_id: str
    route: str
    model: str
    num_prompt_tokens: int
    num_completion_tokens: int
    finish_reason: str | None
    """``"stop"``, ``"length"``, ``"content_filter"`` (a plugin ended it), ``"abort"``,
    ``"error"``; ``None`` if nothing was generated."""
    error: str | None
    arrival_time: float
    """Wall clock, seconds since the epoch."""
    ttft_s: float | None
    latency_s: float
    principal: str | None = None
    """Name of who sent it; ``None`` if nobody is authenticated."""
    labels: Mapping[str, str] = {}
    """What the hook ``metric_labels`` answered."""


class StatLogger(Protocol):
    """Receives the engine's statistics in the front process.

    Built once for each engine, positionally: ``cls(config, engine_index)``, within a minute, in a
    thread of its own. Loggers add to the built-in ones. ``record`` runs on the event loop, or
    between two steps where the engine is in this process, and must not block.

    Optional: ``request_finished(record)`` with the ``RequestRecord`` of each HTTP request,
    ``shutdown()`` at the end, and ``registry``, a Prometheus registry that ``/metrics`` shows too.
    """

    def __init__(self, config: Any, engine_index: int = 0) -> None: ...

    def record(
        self,
        scheduler_stats: Any | None,
        iteration_stats: Any | None,
        mm_cache_stats: Any | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Called once for each report of the engine: one for each step
        (``hookserve.engine.messages.SchedulerStats`` with ``iteration_details``), and one where
        something changed without a step. ``scheduler_stats`` is ``None`` for requests that ended
        with the engine, ``iteration_stats`` where no request is concerned."""

    def log(self) -> None:
        """Called every stats interval (10 s)."""

    def log_engine_initialized(self) -> None:
        """Called once, when the engine is ready."""


@runtime_checkable
class EndpointInstance(Protocol):
    """What an endpoint's factory returns.

    Optional: ``async init_state(engine_client, state, settings)`` once the engine is ready, and
    ``async shutdown()``.
    """

    def routes(self) -> list[BaseRoute]: ...


class EndpointStateful(Protocol):
    """The optional half of ``EndpointInstance``."""

    async def init_state(self, engine_client: Any, state: State, settings: Any) -> None: ...

    async def shutdown(self) -> None: ...


class ModelSource(Protocol):
    """Resolves a model reference to files on this machine."""

    def matches(self, reference: str) -> bool:
        """Whether this source is the one for the reference. Must not touch the network."""

    def resolve(self, reference: str, *, revision: str | None, cache_dir: str) -> str:
        """Return the path of a local folder or ``.gguf`` file; fetch it if need be.

        Raises:
            hookserve.engine.errors.ModelSourceError: with what was tried and what to do.
        """
