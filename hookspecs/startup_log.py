"""``StartupLog``: what a process says of its plugins while it starts, as it happens.

At DEBUG each step of each plugin, in this order: discovered, blocked or skipped, loaded,
registered, overridden, first use. At INFO one line for each plugin that is not built in, once all
are loaded.
Role and process id are the log's own (``engine.log``). ``docs/plugins.md`` shows the lines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from .plugin import Plugin
from .registry import Claim
from .report import PluginReport

logger = logging.getLogger(__name__)


class StartupLog:
    """
    Args:
        speaks: whether there is a process that starts; nobody is told of an inspection.
        of_failures: the level at which a plugin that is out is told of.
    """

    def __init__(self, *, speaks: bool, of_failures: int = logging.WARNING) -> None:
        self._speaks = speaks
        self._of_failures = of_failures

    def discovered(self, plugins: Iterable[Plugin]) -> None:
        for plugin in plugins:
            release = " ".join(filter(None, (plugin.distribution, plugin.version)))
            self._debug(
                "plugin %s: discovered%s in %s",
                plugin,
                f" ({release})" if release else "",
                plugin.file or "this process",
            )

    def selected(self, plugins: Sequence[Plugin]) -> None:
        """After lists and roles were compared; ``plugins`` in call order."""
        for plugin in plugins:
            if plugin.state == "blocked":
                self._debug("plugin %s: blocked by %s", plugin, plugin.reason)
            elif plugin.state == "other role":
                self._debug("plugin %s: skipped: %s", plugin, plugin.reason)
            elif plugin.state == "out":
                self._debug("plugin %s: left out: %s", plugin, plugin.reason)
        wanted = [plugin.identity for plugin in plugins if plugin.state == "found"]
        if self._speaks:
            logger.debug("plugins in call order: %s", ", ".join(wanted) or "none")

    def loaded(self, plugin: Plugin) -> None:
        hooks = ", ".join(each.info.name for each in plugin.implementations)
        self._debug("plugin %s: loaded in %.1f ms: %s", plugin, plugin.load_ms or 0.0, hooks)

    def superseded(self, plugin: Plugin) -> None:
        self._debug("plugin %s: skipped: %s", plugin, plugin.reason)

    def registered(self, claim: Claim, *, is_new: bool) -> None:
        again = "" if is_new else " again, which changes nothing"
        self._debug(
            "plugin %s: registered %s '%s' -> %s%s",
            claim.plugin,
            claim.kind,
            claim.name,
            claim.target_text(),
            again,
        )

    def decided(self, claims: Iterable[Claim]) -> None:
        """Who does not have the name that it registered."""
        for claim in claims:
            if claim.state != "active":
                self._debug(
                    "plugin %s: %s '%s' is %s", claim.plugin, claim.kind, claim.name, claim.state
                )

    def ready(self, reports: Iterable[PluginReport]) -> None:
        """One line for each third party."""
        if not self._speaks:
            return
        for report in reports:
            is_out = report.state == "out"
            if is_out or report.state == "blocked" or report.group != "builtin":
                level = self._of_failures if is_out else logging.INFO
                logger.log(level, "plugin %s: %s", report.identity, _in_a_line(report))

    def _debug(self, line: str, plugin: Plugin, *rest: object) -> None:
        if self._speaks:
            logger.debug(line, plugin.identity, *rest)


def _in_a_line(report: PluginReport) -> str:
    if report.state != "active":
        return report.state_text().replace("other role", "skipped")
    declared = [
        f"{each.kind} '{each.name}'{_unless_active(each.state)}" for each in report.declarations
    ]
    hooks = [hook.name for hook in report.hooks if hook.called_here]
    parts = [f"active, loaded in {report.load_ms or 0.0:.0f} ms", ", ".join(declared)]
    parts.append(f"hooks {', '.join(hooks)}" if hooks else "no hook is called here")
    return "; ".join(filter(None, parts))


def _unless_active(state: str) -> str:
    return "" if state == "active" else f" ({state})"
