"""The messages between a front and its inspector that ``messages`` does not have already.

The inspector also says ``ManifestSent`` and ``Failed``.
"""

from __future__ import annotations

import msgspec

from hookserve.hookspecs.settings import PluginSettings

from .config import EngineConfig
from .model_facts import ModelFacts

# -- front to inspector ---------------------------------------------------------------------------


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """The first message and the only one: everything that the inspector needs; it never reads the
    environment."""

    architecture: str
    config: EngineConfig | None
    """``None``: asked before there is one; plugins are not told that this process has started."""
    plugins: PluginSettings
    """With what failed in any process on the list of those denied."""


# -- inspector to front ---------------------------------------------------------------------------


class Sources(msgspec.Struct, frozen=True):
    """What the facts about a class depend on."""

    packages: tuple[str, ...]
    """Top-level packages and modules that the class and its bases come from."""
    files: tuple[str, ...]
    """Paths of other files: modules of the host that it is built on, and the first file of each
    other package that was imported on the way."""


class Inspected(msgspec.Struct, frozen=True, tag=True):
    """The class is a model."""

    facts: ModelFacts
    sources: Sources
    need: str | None = None
    """Why it is not served here (``model_registry.unserved_need``)."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The class cannot be had, or is no model."""

    stage: str
    """Of ``PluginError``."""
    message: str
    detail: str
    """The traceback, for the log; empty where there is none to tell."""


InspectorMessage = Inspect | Inspected | Refused
