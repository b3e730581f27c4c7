"""``make_guards``: what stands around each hook implementation of one process's loaded plugins.

What a guard is, is ``guard``'s; who is called when, ``hook``'s.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from .context import PluginContext
from .guard import Guard, bind
from .hook_trace import is_traced, traced
from .patience import watch
from .plugin import Implementation, Plugin
from .settings import PluginSettings
from .transaction import Transactions
from .types import Role


def make_guards(
    loaded: Sequence[Plugin],
    names: Iterable[str],
    *,
    roles: frozenset[Role],
    contexts: Mapping[Plugin, PluginContext],
    transactions: Transactions,
    settings: PluginSettings,
    process: str,
) -> dict[str, list[Guard]]:
    """The guards of each hook in call order: third parties before built-ins, and inside a band as
    ``tryfirst`` and ``trylast`` say.

    Args:
        loaded: in call order.
        names: of the hooks that are called at all.
        process: what a trace calls this process.
    """
    ranked: dict[str, list[tuple[bool, int, Guard]]] = {name: [] for name in names}
    make = partial(
        _guard, contexts=contexts, transactions=transactions, settings=settings, process=process
    )
    for plugin in loaded:
        for implementation in plugin.implementations:
            info = implementation.info
            if info.name in ranked and set(info.roles) & plugin.facts.roles & roles:
                rank = implementation.trylast - implementation.tryfirst
                guard = make(plugin, implementation)
                ranked[info.name].append((plugin.is_builtin, rank, guard))
    return {
        name: [guard for *_, guard in sorted(guards, key=lambda ranked: ranked[:2])]
        for name, guards in ranked.items()
    }


def _guard(
    plugin: Plugin,
    implementation: Implementation,
    *,
    contexts: Mapping[Plugin, PluginContext],
    transactions: Transactions,
    settings: PluginSettings,
    process: str,
) -> Guard:
    info = implementation.info
    call = bind(implementation, contexts[plugin])
    if info.failure == "refuse" and not plugin.is_builtin:  # these run at start-up
        call = transactions.recorded(call, plugin, info)
        call = watch(call, plugin, f"hook {info.name}", settings.budget_s(info))
    if is_traced(settings.trace_hooks, plugin, info.name):
        call = traced(call, plugin, info.name, process)
    return Guard(
        plugin,
        call,
        is_coroutine=inspect.iscoroutinefunction(implementation.function),
        buffers=implementation.buffer,
        at_once=info.failure == "request",
    )
