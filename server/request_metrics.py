"""The metrics of whole HTTP requests, with the labels that plugins give them.

Both are bounded: a label whose values never repeat (a user, a session) must not fill the memory of
this process, and of everyone who scrapes it. The engine's own metrics are ``metrics``'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, Metric, SummaryMetricFamily

from hookserve.hookspecs import RequestRecord

from .metrics import PREFIX

OTHER = "other"
MAX_LABELS = 8
"""Names of labels, of all plugins together."""
MAX_VALUES = 100
"""Values of one label that are kept apart: the first ones."""
MAX_SERIES = 1000
"""Combinations of all labels that are kept apart."""
MAX_VALUE_LEN = 200
"""Characters."""
OWN_LABELS = ("model_name", "route", "finish_reason")
RESERVED = frozenset({*OWN_LABELS, "engine", "le", "quantile"})

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class RequestMetrics:
    """A Prometheus registry (``collect``): how many requests ended, how, and after how long."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._values: dict[str, set[str]] = {}
        self._series: dict[tuple[str, ...], _Series] = {}

    def claim(self, owner: str, labels: object) -> dict[str, str]:
        """What a plugin answered, checked; its names are its own from now on.

        Args:
            owner: the plugin's identity.

        Raises:
            TypeError, ValueError: no mapping of names to texts, a name that Prometheus or this
                page cannot take or that another plugin has, or one name too many.
        """
        if not isinstance(labels, Mapping):
            raise TypeError(f"labels are a {type(labels).__name__}; expected a mapping of texts")
        claimed = {}
        for name, value in labels.items():
            _check_name(name)
            _check_value(name, value)
            other = self._owners.get(name, owner)
            if other != owner:
                raise ValueError(f"the label {name!r} is that of {other}; choose another name")
            claimed[name] = value
        num_labels = len(self._owners.keys() | claimed.keys())
        if num_labels > MAX_LABELS:
            raise ValueError(f"{num_labels} labels of plugins; {MAX_LABELS} are the limit")
        self._owners.update(dict.fromkeys(claimed, owner))
        return claimed

    def observe(self, record: RequestRecord) -> None:
        """Count a request that ended, under its labels as far as they are within the bounds."""
        own = (record.model, record.route, record.finish_reason or "none")
        labels = {name: self._bounded(name, value) for name, value in record.labels.items()}
        key = (*own, *self._in_order(labels))
        if key not in self._series and len(self._series) >= MAX_SERIES:
            key = (*own, *self._in_order(dict.fromkeys(labels, OTHER)))
        series = self._series.setdefault(key, _Series())
        series.count += 1
        series.seconds += record.latency_s

    def _bounded(self, name: str, value: str) -> str:
        kept = self._values.setdefault(name, set())
        if value in kept:
            return value
        if len(kept) >= MAX_VALUES:
            return OTHER
        kept.add(value)
        return value

    def _in_order(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The values in the order in which the names were claimed. Trailing ones that are absent
        are left out, so that a name that comes later leaves the keys as they are."""
        values = [labels.get(name, "") for name in self._owners]
        while values and not values[-1]:
            values.pop()
        return tuple(values)

    def collect(self) -> Iterator[Metric]:
        names = [*OWN_LABELS, *self._owners]
        total = CounterMetricFamily(PREFIX + "requests", "HTTP requests that ended", labels=names)
        seconds = SummaryMetricFamily(
            PREFIX + "request_seconds", "seconds from arrival to end", labels=names
        )
        for key, series in self._series.items():
            values = _padded(key, len(names))
            total.add_metric(values, series.count)
            seconds.add_metric(values, count_value=series.count, sum_value=series.seconds)
        return iter((total, seconds))


class _Series:
    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0


def _padded(values: Sequence[str], length: int) -> list[str]:
    """An empty label is the same as none, to Prometheus."""
    return [*values, *[""] * (length - len(values))]


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a label's name is a {type(name).__name__}; expected a text")
    if not _NAME.fullmatch(name) or name.startswith("__"):
        raise ValueError(
            f"the label {name[:MAX_VALUE_LEN]!r} is no name for Prometheus: letters, digits and _"
        )
    if name in RESERVED:
        raise ValueError(f"the label {name!r} is taken by the server; choose another name")


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"the label {name!r} is a {type(value).__name__}; expected a text")
    if len(value) > MAX_VALUE_LEN:
        raise ValueError(
            f"the label {name!r} has {len(value)} characters; {MAX_VALUE_LEN} are the limit"
        )
    value.encode()  # a lone surrogate would break the whole page
