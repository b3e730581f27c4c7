"""What can be declared and is used by nobody so far: resolvers of adapters, connectors."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hookserve.engine.kv_connector import (
    KVConnectorBase,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
    supports_hma,
)
from hookserve.engine.kv_connector_stats import KVConnectorPromMetrics, KVConnectorStats
from hookserve.engine.lora_resolver import LoRARequest, LoRAResolver
from hookserve.hookspecs import Host, Named, PluginSettings, hookimpl


class Asked(KVConnectorMetadata):
    pass


class Shelf(KVConnectorBase):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None: ...

    def wait_for_save(self) -> None: ...

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return Asked()


class Grouped(Shelf, SupportsHMA):
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return True, None


def test_a_connector_is_built_with_a_transfer_and_knows_its_step() -> None:
    config: Any = SimpleNamespace(kv_transfer_config="to the shelf")
    connector = Shelf(config, KVConnectorRole.WORKER, "blocks")
    assert (connector.role, connector._kv_cache_config) == (KVConnectorRole.WORKER, "blocks")
    asked = connector.build_connector_meta(None)
    connector.bind_connector_metadata(asked)
    assert connector.has_connector_metadata() and connector._get_connector_metadata() is asked
    connector.clear_connector_metadata()
    assert not connector.has_connector_metadata()
    with pytest.raises(RuntimeError, match="Shelf: there is metadata within a step alone"):
        connector._get_connector_metadata()
    assert connector.request_finished(config, []) == (False, None)
    assert connector.get_finished(set()) == (None, None)
    assert [supports_hma(each) for each in (connector, Shelf, Grouped)] == [False, False, True]
    config.kv_transfer_config = None
    with pytest.raises(ValueError, match="Shelf: the configuration has no kv_transfer_config"):
        Shelf(config, KVConnectorRole.SCHEDULER)


def test_numbers_of_a_connector_are_labelled_for_each_engine() -> None:
    class Sent(KVConnectorStats):
        def reset(self) -> None:
            self.data = {"bytes": 0}

        def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
            return Sent({"bytes": self.data["bytes"] + other.data["bytes"]})

        def reduce(self) -> dict[str, int | float]:
            return self.data

        def is_empty(self) -> bool:
            return not self.data["bytes"]

    class Shown(KVConnectorPromMetrics):
        def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
            self.seen = engine_idx, transfer_stats_data

    both = Sent({"bytes": 1}).aggregate(Sent({"bytes": 2}))
    assert (both.reduce(), both.is_empty()) == ({"bytes": 3}, False)
    config: Any = SimpleNamespace(kv_transfer_config=None)
    shown = Shown(config, {}, ["engine"], {0: ["a"], 1: ["b"]})
    metric = SimpleNamespace(labels=lambda *values: values)
    assert shown.make_per_engine(metric) == {0: ("a",), 1: ("b",)}
    shown.observe(both.data, 1)
    assert shown.seen == (1, {"bytes": 3})


def test_adapters_are_known_by_their_names() -> None:
    request = LoRARequest("a", 1, "/x")
    assert (request.name, request.adapter_id, request.path) == ("a", 1, "/x")
    assert {request, LoRARequest("a", 2, "/y")} == {request}
    for fields in (("a", 0, "/x"), ("a", 1, "")):
        with pytest.raises(ValueError, match="expected"):
            LoRARequest(*fields)


def test_resolvers_and_connectors_are_listed_where_they_would_be_used() -> None:
    class Mine(LoRAResolver):
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
            return LoRARequest(lora_name, 1, "/x")

    class Both:
        @hookimpl
        def lora_resolver(self) -> Named:
            return Named("mine", Mine)

        @hookimpl
        def kv_connector(self) -> Named:
            return Named("shelf", f"{__name__}:Shelf")

    host = Host(["front", "engine", "worker"], PluginSettings(allow=()), [Both()])
    resolver = host.registry("lora_resolver").resolve("mine")()
    assert asyncio.run(resolver.resolve_lora("m", "a")).lora_name == "a"
    assert [claim.name for claim in host.registry("kv_connector").claims()] == ["shelf"]
