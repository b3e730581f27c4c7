"""The contract between the host and its plugins: hook specifications, the types that cross them,
plugin manager, discovery, the call layer, registries with owners, reports. Knows no torch and no
HTTP.
"""

from __future__ import annotations

if __name__ != "hookserve.hookspecs":
    raise ImportError(
        "import hookserve.hookspecs instead of hookspecs: the folder is installed under that name"
    )

from .context import PluginContext, running
from .current_host import (
    bootstrap,
    create_plugin_manager,
    current,
    is_claimed,
    known_claims,
    known_platform,
)
from .errors import (
    HostError,
    PluginConflictError,
    PluginError,
    PluginSelectionError,
    RequiredPluginError,
    SettingsDifferError,
    UnknownNameError,
)
from .host import Host
from .manager import PluginManager
from .manifest import Manifest, compare_manifests
from .markers import hookimpl, hookspec
from .plugin import Plugin
from .registry import Claim, Registry
from .report import PluginReport, ProcessReport
from .request_types import (
    SCOPES,
    ApiRequest,
    Authenticator,
    EngineLoad,
    Principal,
    Refusal,
    RequestHead,
    ResponseDelta,
    Scope,
)
from .self_registration import declare, tell_operator
from .settings import Denied, PluginSettings
from .step_types import QueuedRequest, StepBatch
from .types import (
    API_VERSION,
    ROLES,
    Command,
    Endpoint,
    EndpointInstance,
    EndpointStateful,
    ModelEntry,
    ModelSource,
    Named,
    OpOverride,
    OpProvider,
    RequestRecord,
    Role,
    StatLogger,
    Target,
)
from .worker_methods import worker_method

__all__ = [
    "API_VERSION",
    "ROLES",
    "SCOPES",
    "ApiRequest",
    "Authenticator",
    "Claim",
    "Command",
    "Denied",
    "Endpoint",
    "EndpointInstance",
    "EndpointStateful",
    "EngineLoad",
    "Host",
    "HostError",
    "Manifest",
    "ModelEntry",
    "ModelSource",
    "Named",
    "OpOverride",
    "OpProvider",
    "Plugin",
    "PluginConflictError",
    "PluginContext",
    "PluginError",
    "PluginManager",
    "PluginReport",
    "PluginSelectionError",
    "PluginSettings",
    "Principal",
    "ProcessReport",
    "QueuedRequest",
    "Refusal",
    "Registry",
    "RequestHead",
    "RequestRecord",
    "RequiredPluginError",
    "ResponseDelta",
    "Role",
    "Scope",
    "SettingsDifferError",
    "StatLogger",
    "StepBatch",
    "Target",
    "UnknownNameError",
    "bootstrap",
    "compare_manifests",
    "create_plugin_manager",
    "current",
    "declare",
    "hookimpl",
    "hookspec",
    "is_claimed",
    "known_claims",
    "known_platform",
    "running",
    "tell_operator",
    "worker_method",
]
