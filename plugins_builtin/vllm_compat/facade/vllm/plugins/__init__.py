"""The groups of entry points, and what is loaded of them.

Where this module can be imported, the host loads the plugins itself, each once in every process
that it is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hookserve.plugins_builtin.vllm_compat.group_objects import load_group, make_endpoints
from hookserve.plugins_builtin.vllm_compat.groups import (
    ENDPOINT as ENDPOINT_PLUGINS_GROUP,
)
from hookserve.plugins_builtin.vllm_compat.groups import (
    GENERAL as DEFAULT_PLUGINS_GROUP,
)
from hookserve.plugins_builtin.vllm_compat.groups import (
    IO_PROCESSOR as IO_PROCESSOR_PLUGINS_GROUP,
)
from hookserve.plugins_builtin.vllm_compat.groups import (
    PLATFORM as PLATFORM_PLUGINS_GROUP,
)
from hookserve.plugins_builtin.vllm_compat.groups import (
    STAT_LOGGER as STAT_LOGGER_PLUGINS_GROUP,
)

__all__ = [
    "DEFAULT_PLUGINS_GROUP",
    "ENDPOINT_PLUGINS_GROUP",
    "IO_PROCESSOR_PLUGINS_GROUP",
    "PLATFORM_PLUGINS_GROUP",
    "STAT_LOGGER_PLUGINS_GROUP",
    "load_endpoint_plugins",
    "load_general_plugins",
    "load_plugins_by_group",
    "plugins_loaded",
]

__surface__ = {
    "DEFAULT_PLUGINS_GROUP": "live: the group of the functions that register by calls",
    "ENDPOINT_PLUGINS_GROUP": "live: the group of the endpoints",
    "IO_PROCESSOR_PLUGINS_GROUP": "live: the group of the IO processors",
    "PLATFORM_PLUGINS_GROUP": "live: the group of the platforms",
    "STAT_LOGGER_PLUGINS_GROUP": "live: the group of the stat loggers",
    "load_endpoint_plugins": "shape: makes the endpoints' objects anew; the server makes and "
    "attaches its own",
    "load_general_plugins": "shape: does nothing, since the host has called each function by then",
    "load_plugins_by_group": "live: the objects of the entry points that are chosen and can be "
    "imported",
    "plugins_loaded": "shape: always true; setting it to false loads nothing again",
}

plugins_loaded = True


def load_plugins_by_group(group: str) -> dict[str, Any]:
    """What each entry point of the group names, by the name of the entry point."""
    return load_group(group)


def load_general_plugins() -> None:
    """Every function of the group has been called in this process; none is called again."""


def load_endpoint_plugins(supported_tasks: Iterable[str] | None = None) -> list[Any]:
    """An object of each endpoint plugin that one of the tasks is enough for."""
    return make_endpoints(supported_tasks)
