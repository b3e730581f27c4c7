"""``VLLM_PLUGINS``: which plugins of vLLM's groups it leaves, with vLLM's own meaning, and what an
operator should know of it where vLLM says nothing.

Entries are compared with the names of entry points as they stand: no spaces are taken off, case
counts, an empty list names nobody. What holds for plugins of all kinds is
``hookserve.hookspecs.selection``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hookserve.hookspecs import Plugin, PluginSelectionError, PluginSettings
from hookserve.hookspecs.errors import nearest
from hookserve.hookspecs.selection import canonical, matches

from .groups import ADAPTER, ENDPOINT, LOGITS_PROCESSOR

VARIABLE = "VLLM_PLUGINS"
LORA_RESOLVERS = ("lora_filesystem_resolver", "lora_hf_hub_resolver")
"""The entry points of vLLM itself, which are not served."""

Say = Callable[[str], None]


def select(plugins: Sequence[Plugin], settings: PluginSettings, say: Say) -> None:
    """Block what the list does not name; endpoints need to be named there, or by
    ``--enable-endpoints``.

    Raises:
        PluginSelectionError: a plugin that must work is not named.
    """
    text = settings.adapter_lists.get(ADAPTER)
    entries = None if text is None else text.split(",")
    own = [plugin for plugin in plugins if plugin.adapter == ADAPTER]
    for plugin in own:
        _choose(plugin, entries, settings)
    if entries is None:
        _tell_of_closed(own, say)
    elif any(entry.strip() for entry in entries):
        _tell_of_entries(entries, plugins, say)
        _tell_of_siblings(entries, own, say)
        _tell_of_unruled(entries, own, say)
    elif text:
        say(f"{VARIABLE} is {text!r}, which names nobody, as an empty list does")
    _tell_of_other_lists(own, settings, say)


def _choose(plugin: Plugin, entries: Sequence[str] | None, settings: PluginSettings) -> None:
    is_named = entries is not None and plugin.name in entries
    if plugin.group == ENDPOINT:
        plugin.opens_endpoints = is_named
        is_wanted = is_named or any(
            matches(entry.strip(), plugin) for entry in settings.enable_endpoints
        )
    else:
        is_wanted = is_named or entries is None or plugin.group == LOGITS_PROCESSOR
    if is_wanted or plugin.state != "found":
        return
    plugin.block(
        f"{VARIABLE}, which is not set: it opens endpoints by name"
        if entries is None
        else f"{VARIABLE}, which does not name it"
    )
    if plugin.required:
        raise PluginSelectionError(
            f"--require-plugins: {plugin.identity} is blocked by {plugin.reason}; name it in "
            f"{VARIABLE}, or require it no more"
        )


def _tell_of_closed(own: Sequence[Plugin], say: Say) -> None:
    """One line for what a list that is not set leaves out."""
    closed = [plugin for plugin in own if _is_left_out(plugin) and plugin.group == ENDPOINT]
    if closed:
        names = _names(closed)
        say(
            f"endpoints of vLLM's group are served only by name, and {_identities(closed)} "
            f"{'is' if len(closed) == 1 else 'are'} not: give --enable-endpoints {names}, or set "
            f"{VARIABLE} to {names} and every other plugin that is wanted"
        )


def _tell_of_entries(entries: Sequence[str], plugins: Sequence[Plugin], say: Say) -> None:
    """One line for each entry that means nobody."""
    own = [plugin for plugin in plugins if plugin.adapter == ADAPTER]
    names = sorted({plugin.name for plugin in own})
    for entry in dict.fromkeys(entries):
        trimmed = entry.strip()
        if not trimmed or entry in names:
            continue
        if trimmed in (*names, *LORA_RESOLVERS) and trimmed != entry:
            say(
                f"{VARIABLE}: the entry {entry!r} has a space around it and means nobody, since "
                f"entries are compared as they stand; write {trimmed!r}"
            )
        elif trimmed in LORA_RESOLVERS:
            say(
                f"{VARIABLE}: {trimmed} is one of vLLM's own finders of LoRA adapters, which this "
                "host does not have"
            )
        else:
            say(f"{VARIABLE}: no entry point is called {entry!r}{_hint(trimmed, plugins, names)}")


def _hint(entry: str, plugins: Sequence[Plugin], names: Sequence[str]) -> str:
    own = [plugin for plugin in plugins if plugin.adapter == ADAPTER]
    siblings = [plugin for plugin in own if plugin.distribution == canonical(entry)]
    if siblings:
        return f"; it is a distribution, with {_names(siblings)}"
    native = next((p for p in plugins if not p.adapter and matches(entry, p)), None)
    if native is not None:
        return f"; {native.identity} is no plugin of vLLM's groups, and the list does not rule it"
    fitting = [plugin for plugin in own if matches(entry, plugin)]
    if fitting:
        return f"; entries are bare names: write {fitting[0].name}"
    near = nearest(entry, names)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; there are: {', '.join(names)}" if names else "; none is installed"


def _tell_of_siblings(entries: Iterable[str], own: Sequence[Plugin], say: Say) -> None:
    """One line for each distribution of which the list names a part."""
    named = set(entries)
    for distribution in dict.fromkeys(plugin.distribution for plugin in own):
        parts = [plugin for plugin in own if plugin.distribution == distribution]
        wanted = [plugin for plugin in parts if plugin.name in named]
        rest = [plugin for plugin in parts if _is_left_out(plugin) and plugin not in wanted]
        if wanted and rest:
            say(
                f"{VARIABLE} names {_names(wanted)} of {distribution} and leaves out its "
                f"{_names(rest)}"
            )


def _tell_of_unruled(entries: Iterable[str], own: Sequence[Plugin], say: Say) -> None:
    named = set(entries)
    stay = [
        plugin
        for plugin in own
        if plugin.group == LOGITS_PROCESSOR and plugin.state == "found" and plugin.name not in named
    ]
    if stay:
        say(
            f"{VARIABLE} does not rule the group {LOGITS_PROCESSOR}, here as in vLLM: "
            f"{_identities(stay)} {'is' if len(stay) == 1 else 'are'} loaded; leave out with "
            "--disable-plugins"
        )


def _tell_of_other_lists(own: Sequence[Plugin], settings: PluginSettings, say: Say) -> None:
    for entry in settings.allow or ():
        for plugin in own:
            if matches(entry.strip(), plugin):
                say(
                    f"--plugins: {plugin.identity} is of vLLM's groups, which {VARIABLE} rules; "
                    "--plugins neither lets it in nor keeps others of them out"
                )


def _is_left_out(plugin: Plugin) -> bool:
    return plugin.state == "blocked" and plugin.reason.startswith(VARIABLE)


def _names(plugins: Iterable[Plugin]) -> str:
    return ",".join(dict.fromkeys(plugin.name for plugin in plugins))


def _identities(plugins: Iterable[Plugin]) -> str:
    return " and ".join(plugin.identity for plugin in plugins)
