"""``Guard``: one implementation of one hook, with its owner, its thread and its counters.

What a failure leads to is ``hook``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .context import PluginContext, enter
from .plugin import Implementation, Plugin
from .plugin_thread import Outcome, PluginThread
from .plugin_threads import PluginThreads

OBSERVE_FAILURES = 5
OBSERVE_WINDOW_S = 60.0


class Guard:
    """Args:
    plugin: the owner.
    call: takes the specification's arguments (without ``ctx``) by position.
    is_coroutine: whether it is a coroutine function.
    buffers: whoever calls it collects the text, and calls once.
    at_once: a plain function may be called from several threads at a time.

    The attribute ``calls`` leaves out what a ``notify`` loop counts until it ends:
    ``Hook.calls_of`` has all.
    """

    __slots__ = (
        "buffers",
        "call",
        "calls",
        "errors",
        "failures",
        "is_coroutine",
        "last_error",
        "plugin",
        "sampled",
        "sampled_s",
        "thread",
    )

    def __init__(
        self,
        plugin: Plugin,
        call: Callable[..., Any],
        *,
        is_coroutine: bool = False,
        buffers: bool = False,
        at_once: bool = False,
    ) -> None:
        self.plugin = plugin
        self.call = call
        self.is_coroutine = is_coroutine
        self.buffers = buffers
        threads = PluginThreads if at_once else PluginThread
        self.thread: PluginThread | PluginThreads = threads(f"plugin {plugin.identity}")
        self.calls = 0
        self.errors = 0
        self.last_error: str | None = None
        self.sampled = 0
        self.sampled_s = 0.0
        self.failures: deque[float] = deque(maxlen=OBSERVE_FAILURES)

    def call_in_thread(self, args: tuple[Any, ...]) -> Future[Outcome]:
        """
        Raises:
            TimeoutError: a call that was given up still runs there.
        """

        def work() -> Any:
            with enter(self.plugin):
                return self.call(*args)

        return self.thread.call(work)

    def sample(self, elapsed_s: float) -> None:
        self.sampled += 1
        self.sampled_s += elapsed_s


class Bound:
    """A plugin's function that wants other arguments than the specification offers, or another
    order. A loop that is compiled calls ``function`` itself."""

    __slots__ = ("_sources", "context", "function", "wanted")

    def __init__(self, implementation: Implementation, context: PluginContext) -> None:
        self.function = implementation.function
        self.wanted = implementation.arguments
        self.context = context
        offered = implementation.info.arguments
        self._sources = [None if name == "ctx" else offered.index(name) for name in self.wanted]

    def __call__(self, *given: Any) -> Any:
        return self.function(*[self.context if at is None else given[at] for at in self._sources])


def bind(implementation: Implementation, context: PluginContext) -> Callable[..., Any]:
    """A callable that takes the hook's arguments by position and hands on those that the
    implementation wants, in its order. The common shape costs nothing: the function itself."""
    if implementation.arguments == implementation.info.arguments:
        return implementation.function
    return Bound(implementation, context)
