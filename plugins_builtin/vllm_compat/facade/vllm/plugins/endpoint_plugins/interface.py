"""What an endpoint plugin is, and the two phases for an application of one's own."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.endpoints import EndpointPlugin
from hookserve.plugins_builtin.vllm_compat.own_application import (
    attach_endpoint_plugins,
    init_endpoint_plugins_state,
)

__all__ = ["EndpointPlugin", "attach_endpoint_plugins", "init_endpoint_plugins_state"]

__surface__ = {
    "EndpointPlugin": "live: the protocol of the objects that the server attaches; it reads name, "
    "required_tasks, attach_router and init_state of them",
    "attach_endpoint_plugins": "shape: adds the chosen plugins' routes to an application that the "
    "caller made, as tests of plugins do; the server attaches them by itself",
    "init_endpoint_plugins_state": "shape: the second phase for such an application; the server "
    "does it by itself",
}
