"""The inspector: a short-lived process that imports a plugin's model class, in place of the front,
and says what the class is: ``python -P -m hookserve.engine.inspector --fd N``.

``Inspect`` comes in, plugins are loaded, their manifest goes out, the class is imported,
``Inspected`` or ``Refused`` goes out. Who asks, and what follows from the answer, is
``model_inspection``'s.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hookserve.hookspecs.errors import PluginError, traceback_of

from .channel import ChannelError
from .child_process import ChildProcess, run_child
from .inspector_messages import Inspect, Inspected, Refused, Sources
from .log import log_host, own_logging
from .messages import ManifestSent

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

_OURS = "hookserve"
_UNTOLD = frozenset({*sys.stdlib_module_names, _OURS, "torch", "__main__", "__mp_main__"})
"""Packages whose state their version tells."""


class Inspector(ChildProcess):
    """The life of the process."""

    name = "the inspector"

    def serve(self) -> int:
        asked = self.channel.recv()
        if not isinstance(asked, Inspect):
            raise ChannelError(f"expected Inspect, got {type(asked).__name__}")
        if asked.config is not None:
            level = asked.config.log_level  # what is only news is said by the front
            level = "WARNING" if level == "INFO" else level
            own_logging(level, "Inspector", color=asked.config.log_color)
        before = set(sys.modules)
        host = self._bootstrap(asked)
        try:
            self.channel.send(inspect_class(asked.architecture, host, before))
        finally:
            host.close()
        return 0

    def _bootstrap(self, asked: Inspect) -> Host:
        from hookserve.hookspecs import bootstrap

        from .vllm_config import VllmConfig

        host = bootstrap({"inspector"}, asked.plugins, crash_mark=self.crash_mark)
        log_host(host)
        if asked.config is not None:
            host.calls.process_started(host.roles, VllmConfig.from_engine_config(asked.config))
        self.channel.send(ManifestSent(msgspec.to_builtins(host.manifest())))
        return host


def inspect_class(architecture: str, host: Host, before: set[str]) -> Inspected | Refused:
    """Import the class and look at it.

    Args:
        before: names of the modules that were imported before any plugin's.
    """
    from .model_facts import facts_of
    from .model_registry import import_architecture, unserved_need

    try:
        name, model_class = import_architecture([architecture], host)
        claim = host.registry("model").get(name)
        assert claim is not None
        with host.enter(claim.plugin):
            facts = facts_of(name, model_class)
            need = unserved_need(model_class)
    except PluginError as error:
        cause = error.__cause__
        return Refused(error.stage, error.message, "" if cause is None else traceback_of(cause))
    return Inspected(facts, find_sources(model_class, before), need)


def find_sources(model_class: type[Any], before: set[str]) -> Sources:
    """What the class is made of: its own and its bases' packages, and what came in besides."""
    modules = {base.__module__ for base in model_class.__mro__}
    packages = {_top(name) for name in modules} - _UNTOLD
    beside = {_top(name) for name in set(sys.modules) - before} - _UNTOLD - packages
    ours = {name for name in modules if _top(name) == _OURS}
    paths = (getattr(sys.modules.get(name), "__file__", None) for name in {*beside, *ours})
    return Sources(tuple(sorted(packages)), tuple(sorted(filter(None, paths))))


def _top(name: str) -> str:
    return name.partition(".")[0]


def main(argv: Sequence[str] | None = None) -> int:
    return run_child("hookserve.engine.inspector", Inspector, argv)


if __name__ == "__main__":
    sys.exit(main())
