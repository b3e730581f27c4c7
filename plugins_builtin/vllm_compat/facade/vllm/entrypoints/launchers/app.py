"""The application of a server."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "build_app": "refused: the server makes its application itself; add routes by an endpoint "
    "plugin (vllm.endpoint_plugins), middleware by --middleware, and make an application for "
    "another ASGI server with hookserve.server.build_app",
}
