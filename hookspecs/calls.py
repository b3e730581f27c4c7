"""``Calls``: a typed method for each hook that the host's users call.

How one hook is called, and what its failures lead to, is ``hook``'s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .config_calls import ConfigCalls
from .hook import Hook, notify
from .notify_loop import caught
from .plugin import Plugin
from .request_calls import RequestCalls
from .step_calls import StepCalls
from .types import RequestRecord, Role

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Calls(ConfigCalls, RequestCalls, StepCalls):
    """A typed method for each hook that the host's users call; registration hooks are called by
    the host alone."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self.hooks = hooks
        self._started: set[Role] = set()
        self._telling_start = threading.RLock()
        self._request_finished = notify(hooks, "request_finished")

    def register_by_call(self) -> None:
        """Let every plugin register by calls of ``declare``.

        Raises:
            RequiredPluginError: if a plugin that must work fails.
        """
        notify(self.hooks, "register_by_call").tell()

    @property
    def is_started(self) -> bool:
        """Whether ``process_started`` was called."""
        return bool(self._started)

    def process_started(self, roles: Iterable[Role], config: Any) -> None:
        """Tell every plugin which process this is; once for each role of the process.

        Raises:
            RequiredPluginError: if a plugin that must work fails.
        """
        told = frozenset(roles)
        assert not told & self._started, f"process_started was already called for {sorted(told)}"
        self._started |= told
        notify(self.hooks, "process_started").tell(told, config)

    def tell_start_once(self, roles: Iterable[Role], config: Any) -> None:
        """``process_started``, unless somebody has called it; safe from several threads, of which
        the others wait until the plugins are told.

        Raises:
            RequiredPluginError: if a plugin that must work fails.
        """
        with self._telling_start:
            if not self.is_started:
                self.process_started(roles, config)

    def cli_options(self, parser: ArgumentParser) -> ArgumentParser:
        """Let every plugin add its options to the parser, which is returned.

        Raises:
            RequiredPluginError: if a plugin that must work fails.
        """
        hook = self.hooks["cli_options"]
        for guard in hook.guards:
            try:
                answer = hook.answer_now(guard, parser)
                if answer is not None and answer is not parser:
                    raise TypeError("returned another parser; expected the one given, or None")
            except caught() as error:
                hook.failed(guard, error)
        return parser

    async def request_finished(self, record: RequestRecord) -> None:
        """Tell every plugin about a request that ended; never raises for a plugin."""
        hook = self._request_finished
        if hook.guards:
            await hook.run(record)

    def shutdown(self, roles: Iterable[Role]) -> None:
        """Tell every plugin that the process stops cleanly; never raises for a plugin.

        In front each has its time, and then the stop goes on. Other processes are ended by front.
        """
        hook, told = notify(self.hooks, "shutdown"), frozenset(roles)
        if "front" in told:
            hook.tell_within(told)
        else:
            hook.tell(told)

    def withdraw(self, plugin: Plugin) -> None:
        for hook in self.hooks.values():
            hook.withdraw(plugin)
