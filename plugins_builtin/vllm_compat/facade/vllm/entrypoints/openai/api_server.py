"""The older path of ``vllm.entrypoints.launchers``."""

from __future__ import annotations

from ..launchers.api_server.app_state import __surface__ as _STATE
from ..launchers.api_server.entry import __surface__ as _ENTRY
from ..launchers.api_server.entry import (
    build_async_engine_client,
    build_async_engine_client_from_engine_args,
)
from ..launchers.app import __surface__ as _APP
from ..launchers.app import build_app
from ..launchers.launcher import __surface__ as _LAUNCHER

__older_path_of__ = "vllm.entrypoints.launchers"

__all__ = [
    "build_app",
    "build_async_engine_client",
    "build_async_engine_client_from_engine_args",
]

__surface__ = {
    **_ENTRY,
    **_APP,
    **_STATE,
    **_LAUNCHER,
    "router": "refused: routes are added by an endpoint plugin (vllm.endpoint_plugins)",
}
