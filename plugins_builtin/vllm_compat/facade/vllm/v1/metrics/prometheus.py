"""The process' registry of metrics, for plugins that bring their own."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry

__all__ = ["get_prometheus_registry", "unregister_vllm_metrics"]

__surface__ = {
    "get_prometheus_registry": "live: the process' own registry; what plugins put there stands in "
    "/metrics behind the server's metrics",
    "unregister_vllm_metrics": "live: takes metrics out of that registry whose names have vllm in "
    "them; the server's own are elsewhere",
    "setup_multiprocess_prometheus": "refused: one process serves HTTP, and keeps the metrics",
    "shutdown_prometheus": "refused: there are no metrics of other processes to clean up",
}


def get_prometheus_registry() -> CollectorRegistry:
    """``prometheus_client.REGISTRY``."""
    return REGISTRY


def unregister_vllm_metrics() -> None:
    """Forget the metrics of the process' registry that are named after vLLM, so that they can be
    made again."""
    named = {
        id(each): each for name, each in REGISTRY._names_to_collectors.items() if "vllm" in name
    }
    for collector in named.values():
        REGISTRY.unregister(collector)
