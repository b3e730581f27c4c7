"""What a connector may tell of its transfers: numbers of one interval, and what becomes of them in
Prometheus. As ``kv_connector``: nobody asks so far.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .vllm_config import VllmConfig


@dataclass
class KVConnectorStats(abc.ABC):
    """Numbers since the last ``reset``; ``data`` crosses between processes."""

    data: dict[str, Any] = field(default_factory=dict)

    @abc.abstractmethod
    def reset(self) -> None: ...

    @abc.abstractmethod
    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """One of both."""

    @abc.abstractmethod
    def reduce(self) -> dict[str, int | float]:
        """What the log shows."""

    @abc.abstractmethod
    def is_empty(self) -> bool: ...


class KVConnectorPromMetrics(abc.ABC):
    """
    Args:
        metric_types: the classes of metrics to make in the place of ``prometheus_client``'s.
        per_engine_labelvalues: of ``labelnames``, by engine.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._metric_types = metric_types
        self._labelnames = labelnames
        self.per_engine_labelvalues = per_engine_labelvalues

    def make_per_engine(self, metric: Any) -> dict[int, Any]:
        """A metric with the labels of each engine."""
        labelled: Callable[..., Any] = metric.labels
        return {engine: labelled(*values) for engine, values in self.per_engine_labelvalues.items()}

    @abc.abstractmethod
    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take the ``data`` of an interval."""
