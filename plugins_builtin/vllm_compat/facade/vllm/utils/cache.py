"""``LRUCache``: a mapping that forgets what was not asked for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["CacheInfo", "LRUCache"]

__surface__ = {
    "CacheInfo": "live: what LRUCache.stat answers",
    "LRUCache": "live: plugins build it",
}

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")


class CacheInfo(NamedTuple):
    hits: int
    total: int

    @property
    def hit_ratio(self) -> float:
        return self.hits / self.total if self.total else 0.0


class LRUCache(Generic[K, V]):
    """Not for several threads at once.

    Args:
        capacity: items that are kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._items: OrderedDict[K, V] = OrderedDict()
        self._hits = self._total = 0

    def __getitem__(self, key: K) -> V:
        value = self._items[key]
        self._items.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        while len(self._items) > self.capacity:
            self._items.popitem(last=False)

    def __delitem__(self, key: K) -> None:
        del self._items[key]

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K, default: D | None = None) -> V | D | None:
        self._total += 1
        if key not in self._items:
            return default
        self._hits += 1
        return self[key]

    def put(self, key: K, value: V) -> None:
        self[key] = value

    def pop(self, key: K, default: D | None = None) -> V | D | None:
        return self._items.pop(key, default)

    def touch(self, key: K) -> None:
        """It counts as asked for now."""
        self._items.move_to_end(key)

    def clear(self) -> None:
        self._items.clear()
        self._hits = self._total = 0

    def stat(self) -> CacheInfo:
        """What ``get`` found."""
        return CacheInfo(self._hits, self._total)
