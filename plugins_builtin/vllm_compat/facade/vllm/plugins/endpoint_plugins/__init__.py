"""Plugins that add routes to the server."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.endpoints import EndpointPlugin
from hookserve.plugins_builtin.vllm_compat.own_application import (
    attach_endpoint_plugins,
    init_endpoint_plugins_state,
)

from .interface import __surface__ as _INTERFACE

__all__ = ["EndpointPlugin", "attach_endpoint_plugins", "init_endpoint_plugins_state"]

__surface__ = dict(_INTERFACE)
