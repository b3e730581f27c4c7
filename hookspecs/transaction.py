"""``Transactions``: what each plugin changed in this process while its import, its start-up hooks
and the imports of its targets ran; all of it is undone if the plugin goes out, and reported if it
stays. A step that fails leaves nothing.

What is watched is ``snapshot``'s. Registrations are the registries' to withdraw, and modules,
threads and files stay.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from .adapters import Adapters
from .context import enter
from .errors import PluginError, describe_error
from .first_call import watch_calls
from .markers import HookInfo
from .patch_owners import forget_patches, note_patch
from .plugin import Plugin
from .snapshot import Change, ModuleWatch, Snapshot, same

logger = logging.getLogger(__name__)

SHOWN = 8
"""So many names stand in one line of a report."""


class Transactions:
    """One for each plugin of a host, begun when its code first runs.

    Args:
        say: told the plugin and a line about it that an operator should know.
        adapters: know of packages that are watched as the host's own are.
    """

    def __init__(self, say: Callable[[Plugin, str], None], adapters: Adapters) -> None:
        self._say = say
        self._adapters = adapters
        self._changes: dict[Plugin, list[Change]] = {}

    @contextmanager
    def recording(self, plugin: Plugin) -> Iterator[None]:
        """Attribute to the plugin what changes in the block. Built-ins are not recorded."""
        if plugin.is_builtin:
            yield
            return
        snapshot = Snapshot(self._adapters.packages())
        threads = set(threading.enumerate())
        try:
            with ModuleWatch(snapshot), _ending_forks(plugin):
                yield
        except BaseException:
            self._undo(plugin, snapshot.changes())
            self._tell_threads(plugin, threads)
            raise
        changes = snapshot.changes()
        self._keep(plugin, changes)
        self._note_patches(plugin, changes, snapshot.is_host_module)
        self._tell_threads(plugin, threads)

    def _tell_threads(self, plugin: Plugin, before: set[threading.Thread]) -> None:
        started = [thread.name for thread in threading.enumerate() if thread not in before]
        if started:
            count = f"{len(started)} thread{'s' if len(started) > 1 else ''}"
            self.tell(plugin, f"started {count}: {_names(started)}")

    def recorded(
        self, call: Callable[..., Any], plugin: Plugin, info: HookInfo
    ) -> Callable[..., Any]:
        """The same call, recorded; the body of a generator of declarations is part of it."""

        def recorded_call(*args: Any) -> Any:
            with self.recording(plugin):
                result = call(*args)
            if info.call == "collect" and inspect.isgenerator(result):
                return self._recorded_generator(plugin, result)
            return result

        return recorded_call

    def _recorded_generator(self, plugin: Plugin, answers: Iterable[Any]) -> Iterator[Any]:
        with self.recording(plugin):
            yield from answers

    def take_over(self, other: Transactions, before: Plugin, plugin: Plugin) -> None:
        """Answer for what the plugin did under another host of this process, which had another
        record of it."""
        self._record(plugin, other._changes.pop(before, []))
        plugin.patches += before.patches
        plugin.patch_calls |= before.patch_calls
        plugin.warnings += before.warnings

    @contextmanager
    def running(self, plugin: Plugin | None) -> Iterator[None]:
        """Run a plugin's code later than its start-up hooks, under its name and recorded;
        ``None``: that of a class which the operator named."""
        recorded = nullcontext() if plugin is None else self.recording(plugin)
        with self._adapters.importing(plugin), recorded, enter(plugin):
            yield

    def rollback(self, plugin: Plugin) -> None:
        """Undo what the plugin changed, the last change first."""
        self._undo(plugin, self._changes.pop(plugin, []))
        forget_patches(plugin.identity)
        plugin.patches.clear()
        plugin.patch_calls.clear()

    def _undo(self, plugin: Plugin, changes: list[Change]) -> None:
        undone = [(change, change.undo()) for change in reversed(changes)]
        for title, labels in _by_title(change for change, done in reversed(undone) if done):
            plugin.warnings.append(f"changed {title}: {labels}; undone")
        for title, labels in _by_title(change for change, done in reversed(undone) if not done):
            self.tell(plugin, f"changed {title}: {labels}; not undone, it was changed again since")

    def _record(self, plugin: Plugin, changes: Iterable[Change]) -> None:
        self._changes.setdefault(plugin, []).extend(changes)

    def _keep(self, plugin: Plugin, changes: list[Change]) -> None:
        """Let stay what may stay, and report it."""
        news, put_back = [], []
        for change in changes:
            kept = change.namespace.may_stay(change.name, change.before, change.after)
            if not same(kept, change.after):
                change.namespace.write(change.name, kept)
                put_back.append(change)
            elif change.namespace.is_news(change.name, change.before, change.after):
                news.append(change)
            if not same(kept, change.before):
                self._record(plugin, [replace(change, after=kept)])
        for title, labels in _by_title(news):
            self.tell(plugin, f"changed {title}: {labels}")
        for title, labels in _by_title(put_back):
            self.tell(plugin, f"changed {title}: {labels}; what was there before is back")

    def _note_patches(
        self, plugin: Plugin, changes: Iterable[Change], is_host_module: Callable[[str], bool]
    ) -> None:
        """What stands in the place of the host's own code, and whether anybody was there first."""
        for change in changes:
            if not change.namespace.is_host_code:
                continue
            label = change.label
            plugin.patches.append(label)
            note_patch(plugin.identity, label, change.after)
            call = watch_calls(change.after, is_host_module)
            if call is not None:
                plugin.patch_calls[label] = call
            for other, earlier in self._changes.items():
                if other is not plugin and any(_is_before(each, change) for each in earlier):
                    self.tell(plugin, f"changed {label}, which {other.identity} changed before")

    def tell(self, plugin: Plugin, line: str) -> None:
        """Keep a line about the plugin for its report, and say it."""
        plugin.warnings.append(line)
        self._say(plugin, line)


@contextmanager
def _ending_forks(plugin: Plugin) -> Iterator[None]:
    """A process that the plugin's code forks in the block ends where it would leave the block: it
    would go on as a second one of the host, with the first one's sockets."""
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            error = sys.exc_info()[1]
            if isinstance(error, PluginError):
                error = error.__cause__  # what the plugin itself raised
            if isinstance(error, SystemExit) and error.code in (None, 0):
                os._exit(0)
            how = "returned" if error is None else f"raised {describe_error(error)}"
            logger.error(
                "plugin %s: a process that it forked from %d %s, and was ended: it may not go on "
                "as another one of the server; end it with os._exit, or use subprocess",
                *(plugin.identity, process, how),
            )
            os._exit(os.EX_SOFTWARE)


def _is_before(earlier: Change, change: Change) -> bool:
    """Whether both are of one name; what ran inside the other's code is told of both."""
    is_one = earlier.label == change.label and earlier.namespace.is_host_code
    return is_one and not same(earlier.after, change.after)


def _by_title(changes: Iterable[Change]) -> Iterator[tuple[str, str]]:
    labels: dict[str, list[str]] = {}
    for change in changes:
        labels.setdefault(change.namespace.title, []).append(change.label)
    for title, found in labels.items():
        yield title, _names(found)


def _names(found: list[str]) -> str:
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
