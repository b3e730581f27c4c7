"""The application of a server."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.wrapped_app import build_app

__all__ = ["build_app"]

__surface__ = {
    "build_app": "live: what wraps it, here or at vllm.entrypoints.openai.api_server, is called "
    "when the server makes its application, with one to three arguments, where --enable-endpoints "
    "vllm:build_app opens it; any other call of it raises",
}
