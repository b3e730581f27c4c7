"""IO processors, resolvers of adapters and KV connectors written for vLLM: what becomes of each."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hookserve.engine.model_section import HfConfig
from hookserve.hookspecs import Host, Named, PluginSettings, UnknownNameError, bootstrap, hookimpl
from hookserve.plugins_builtin.vllm_compat.general import GeneralPlugin
from hookserve.plugins_builtin.vllm_compat.groups import IOProcessorPlugin
from plugin_folder import install_plugin
from scripted_engine import say

pytestmark = pytest.mark.usefixtures("vllm_facade")

GROUP = "vllm.io_processor_plugins"
PROCESSOR = """
from collections.abc import Sequence

from vllm.config import VllmConfig
from vllm.entrypoints.pooling.pooling.protocol import IOProcessorResponse
from vllm.inputs import PromptType
from vllm.outputs import PoolingRequestOutput
from vllm.plugins.io_processors.interface import IOProcessor, IOProcessorInput, IOProcessorOutput
from vllm.pooling_params import PoolingParams
from vllm.renderers import BaseRenderer


class Sorting(IOProcessor[list, IOProcessorResponse]):
    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer):
        super().__init__(vllm_config, renderer)
        self.tokenizer = renderer.get_tokenizer()

    def parse_data(self, data: object) -> list:
        return sorted(data)

    def merge_pooling_params(self, params=None) -> PoolingParams:
        return params or PoolingParams(task="token_embed", skip_reading_prefix_cache=True)

    def pre_process(self, prompt, request_id=None, **kwargs) -> PromptType | Sequence[PromptType]:
        return prompt

    def post_process(self, model_output: Sequence[PoolingRequestOutput], request_id=None, **kwargs):
        made = [each.outputs for each in model_output]
        return IOProcessorResponse(request_id=request_id, data=made)


calls = []


def sorting():
    calls.append("sorting")
    return "io_toys.Sorting"


def absent():
    return None


def broken():
    raise RuntimeError("no gdal")
"""


@pytest.fixture
def io_toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entries = {name: f"io_toys:{name}" for name in ("sorting", "absent", "broken")}
    install_plugin(tmp_path, "io-toys", {"io_toys": PROCESSOR}, groups={GROUP: entries})
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("io_toys", None)


def config_of(name: str | None, **checkpoint: Any) -> Any:
    model = SimpleNamespace(io_processor_plugin=name, hf_config=HfConfig(checkpoint))
    return SimpleNamespace(model_config=model)


@pytest.mark.checklist(144)
def test_processors_are_entry_points_that_are_called_once_and_chosen_by_name(
    io_toys: None,
) -> None:
    host = bootstrap(["front"], PluginSettings())
    try:
        states = {each.name: each.state_text() for each in host.describe() if each.group == GROUP}
        assert (states["sorting"], states["absent"]) == ("active", "active")
        assert "hook io_processor raised RuntimeError: no gdal" in states["broken"]
        assert sys.modules["io_toys"].calls == ["sorting"]
        plugins = importlib.import_module("vllm.plugins.io_processors")
        renderer = SimpleNamespace(get_tokenizer=lambda: "a tokenizer")
        assert plugins.has_io_processor(config_of("sorting"))
        assert plugins.has_io_processor(config_of(None, io_processor_plugin="sorting"))
        assert not plugins.has_io_processor(config_of(None))
        assert plugins.get_io_processor(config_of(None), renderer) is None
        made = plugins.get_io_processor(config_of("absent"), renderer, "sorting")
        assert made.tokenizer == "a tokenizer"
        assert made.parse_data("ba") == ["a", "b"]
        assert made.merge_pooling_params().task == "token_embed"
        response = made.post_process([SimpleNamespace(outputs=1)], request_id="r")
        assert response.model_dump(exclude={"created_at"}) == {"data": [1], "request_id": "r"}
        for name in ("absent", "sortign"):
            with pytest.raises(ValueError, match="registered: sorting of io-toys"):
                plugins.get_io_processor(config_of(name), renderer)
    finally:
        host.close()


def test_a_server_builds_the_named_one_and_says_that_no_route_asks_it(
    serve_script: Any, io_toys: None, caplog: pytest.LogCaptureFixture
) -> None:
    how: dict[str, Any] = {"plugins": [IOProcessorPlugin("sorting", lambda: "io_toys.Sorting")]}

    async def run(name: str) -> Any:
        async with serve_script(say("a"), io_processor_plugin=name, **how) as served:
            return served.runtime.app.state.io_processor, served.runtime.parsers

    with caplog.at_level(logging.WARNING):
        made, _ = asyncio.run(run("sorting"))
    assert type(made).__name__ == "Sorting"
    assert made.vllm_config.model_config.io_processor_plugin == "sorting"
    assert "io processor sorting (Sorting) is built, and no route asks it" in caplog.text
    with pytest.raises(UnknownNameError, match="did you mean sorting"):
        asyncio.run(run("sort1ng"))


# -- adapters and caches -------------------------------------------------------------------------


def host_with(register: Callable[[], None], *roles: Any) -> Host:
    """A host with a general plugin, which must be in."""
    host = Host(
        roles or ["front", "engine", "worker"],
        PluginSettings(allow=()),
        [GeneralPlugin("mine:register", register)],
    )
    (report,) = [each for each in host.describe() if each.group == "object"]
    assert report.state_text() == "active"
    return host


def claims(host: Host, kind: str) -> dict[str, str]:
    return {claim.name: claim.target_text() for claim in host.registry(kind).claims()}


@pytest.mark.checklist(126, 127)
def test_a_resolver_is_an_object_that_is_listed_under_its_owner() -> None:
    resolver = importlib.import_module("vllm.lora.resolver")
    request = importlib.import_module("vllm.lora.request")
    registry = resolver.LoRAResolverRegistry

    class Shelf(resolver.LoRAResolver):  # type: ignore[name-defined, misc]
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
            return request.LoRARequest(lora_name, 1, f"/srv/{base_model_name}/{lora_name}")

    shelf = Shelf()

    def register() -> None:
        assert registry.get_supported_resolvers() == set()
        registry.register_resolver("shelf", shelf)
        assert registry.get_resolver("shelf") is shelf
        with pytest.raises(KeyError, match="no LoRA resolver is called 'x'; there are: shelf"):
            registry.get_resolver("x")

    host = host_with(register)
    assert list(claims(host, "lora_resolver")) == ["shelf"]
    found = asyncio.run(host.registry("lora_resolver").resolve("shelf").resolve_lora("m", "a"))
    assert (found.lora_name, found.lora_path) == ("a", "/srv/m/a")


def test_a_resolver_that_a_native_plugin_declares_is_made_when_it_is_asked_for() -> None:
    resolver = importlib.import_module("vllm.lora.resolver")

    class Native(resolver.LoRAResolver):  # type: ignore[name-defined, misc]
        async def resolve_lora(self, base_model_name: str, lora_name: str) -> None: ...

    class Declares:
        @hookimpl
        def lora_resolver(self) -> Named:
            return Named("native", Native)

    host = bootstrap(["front"], PluginSettings(allow=()), objects=[Declares()])
    try:
        assert resolver.LoRAResolverRegistry.get_supported_resolvers() == {"native"}
        assert isinstance(resolver.LoRAResolverRegistry.get_resolver("native"), Native)
    finally:
        host.close()


@pytest.mark.checklist(126, 127)
def test_a_connector_is_registered_by_its_path_and_never_twice() -> None:
    factory = importlib.import_module(
        "vllm.distributed.kv_transfer.kv_connector.factory"
    ).KVConnectorFactory
    v1 = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1")

    def register() -> None:
        for _ in range(2):
            factory.register_connector("Shelf", "shelf.connector", "ShelfConnector")
        with pytest.raises(
            ValueError, match=r"'Shelf' is registered already, as shelf\.connector:"
        ):
            factory.register_connector("Shelf", "shelf.connector", "Another")
        with pytest.raises(ValueError, match="no connector is called 'x'; there are: Shelf"):
            factory.get_connector_class_by_name("x")

    host = host_with(register, "engine", "worker")
    assert claims(host, "kv_connector") == {"Shelf": "shelf.connector:ShelfConnector"}
    in_front = host_with(
        lambda: factory.register_connector("Shelf", "shelf.connector", "ShelfConnector"), "front"
    )
    with pytest.raises(UnknownNameError, match="is filled in engine, worker"):
        in_front.registry("kv_connector")

    transfer = importlib.import_module("vllm.config").KVTransferConfig
    config: Any = SimpleNamespace(kv_transfer_config=transfer("Shelf", kv_role="kv_both"))
    idle = type(
        "Idle",
        (v1.KVConnectorBase_V1,),
        {name: lambda *_: None for name in v1.KVConnectorBase_V1.__abstractmethods__},
    )
    assert idle(config, v1.KVConnectorRole.WORKER, None).role is v1.KVConnectorRole.WORKER


def test_code_that_asks_for_a_transfer_learns_that_there_is_none() -> None:
    transfer = importlib.import_module("vllm.distributed.kv_transfer")
    assert not transfer.has_kv_transfer_group()
    assert not transfer.is_v1_kv_transfer_group()
    with pytest.raises(RuntimeError, match="ask has_kv_transfer_group before"):
        transfer.get_kv_transfer_group()
    events = importlib.import_module("vllm.distributed.kv_events")
    stored = events.BlockStored([1], None, [5, 6], 2)
    assert events.KVEventBatch(ts=0.0, events=[stored]).events[0].token_ids == [5, 6]
    for module in ("ec_transfer", "weight_transfer"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"vllm.distributed.{module}")
