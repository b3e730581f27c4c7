"""The parser of the server's flags as the platform is shown it, once the flags are read.

A platform that was written for another host adds options to it, or widens the choices of one. Here
a name is checked against the registry that holds it, and flags are read before any plugin is
imported, so that neither has an effect: choices need none, and of options the operator is told.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hookserve.engine.platform import Platform
from hookserve.engine.platform_calls import import_platform
from hookserve.engine.plugin_code import as_plugin

from .arguments import Parser, add_settings, options_of

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

logger = logging.getLogger(__name__)


def show_options(host: Host) -> None:
    """Call ``pre_register_and_update`` with the parser, if the platform has its own.

    Raises:
        hookserve.hookspecs.HostError: there is no platform, or it raised.
    """
    claim = host.platform()
    platform = import_platform(claim, host)
    if _function(type(platform)) is _function(Platform):
        return
    parser = Parser(prog="server run", add_help=False)
    add_settings(parser)
    known = set(options_of(parser))
    with as_plugin(host, claim.plugin, "pre_register_and_update"):
        platform.pre_register_and_update(parser)
    added = [option for option in options_of(parser) if option not in known]
    if added:
        logger.warning(
            "platform %s of %s adds %s, which nobody can give: flags are read before plugins are "
            "imported; what the platform is to know goes into --additional-config",
            claim.name,
            claim.owner,
            ", ".join(added),
        )


def _function(platform: type[Platform]) -> Any:
    """What stands behind the method, which a plugin need not have made one of the class."""
    method = platform.pre_register_and_update
    return getattr(method, "__func__", method)
