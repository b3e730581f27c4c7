"""What a platform did to the tree, carried back or refused by field and owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hookserve.engine.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from hookserve.engine.config_changes import fold_changes
from hookserve.engine.errors import ConfigError
from hookserve.engine.vllm_config import VllmConfig

OWNER = "dist:hookserve:platform"


@pytest.fixture
def config() -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(
            model="m",
            path="/m",
            format="safetensors",
            served_model_names=("m",),
            tokenizer="/m",
            hf_config={"hidden_size": 64, "rope_scaling": {"factor": 2.0}, "list": [1]},
            generation_config={},
            architectures=("A",),
            dtype="float32",
            dtype_reason="asked for",
            max_model_len=64,
            vocab_size=10,
        ),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(),
        parallel=ParallelConfig(),
        load=LoadConfig(),
        device=DeviceConfig(platform="p:P", platform_owner=OWNER),
        additional_config={"a": {"b": 1}},
    )


def fold(config: EngineConfig, change: Callable[[VllmConfig], Any]) -> EngineConfig:
    tree = VllmConfig.from_engine_config(msgspec.convert(msgspec.to_builtins(config), EngineConfig))
    change(tree)
    return fold_changes(config, tree, OWNER)


def test_no_change_is_the_same_struct(config: EngineConfig) -> None:
    assert fold(config, lambda tree: None) == config


@pytest.mark.parametrize(
    ("section", "name", "value", "read"),
    [
        ("cache_config", "block_size", 64, lambda c: c.cache.block_size),
        ("cache_config", "kv_cache_memory_bytes", 9, lambda c: c.cache.kv_cache_memory_bytes),
        ("scheduler_config", "max_num_seqs", 2, lambda c: c.scheduler.max_num_seqs),
        ("scheduler_config", "max_model_len", 32, lambda c: c.model.max_model_len),
        ("model_config", "max_model_len", 32, lambda c: c.model.max_model_len),
        ("model_config", "dtype_name", "bfloat16", lambda c: c.model.dtype),
        ("model_config", "enforce_eager", True, lambda c: c.enforce_eager),
        ("parallel_config", "worker_cls", "a:B", lambda c: c.parallel.worker_cls),
        (
            "parallel_config",
            "worker_extension_cls",
            "a:B",
            lambda c: c.parallel.worker_extension_cls,
        ),
        ("scheduler_config", "scheduler_cls", "a:B", lambda c: c.scheduler.scheduler_cls),
        ("device_config", "device_type", "toy", lambda c: c.device.device_type),
        ("load_config", "load_format", "toy", lambda c: c.load.load_format),
    ],
)
def test_a_plain_change_lands_in_its_field(
    section: str, name: str, value: Any, read: Callable[[EngineConfig], Any], config: EngineConfig
) -> None:
    changed = fold(config, lambda tree: setattr(getattr(tree, section), name, value))
    assert read(changed) == value
    assert changed.tree_changes == {}
    again = VllmConfig.from_engine_config(changed)
    assert getattr(getattr(again, section), name) == value


def test_a_changed_dtype_has_its_owner_as_reason(config: EngineConfig) -> None:
    changed = fold(config, lambda tree: setattr(tree.model_config, "dtype_name", "float16"))
    assert OWNER in changed.model.dtype_reason


def test_fields_without_a_place_travel_and_arrive(config: EngineConfig) -> None:
    def change(tree: VllmConfig) -> None:
        tree.compilation_config.mode = 3
        tree.model_config.brand_new = {"x": (1, 2)}  # type: ignore[attr-defined]
        tree.quant_config = {"bits": 8}

    changed = fold(config, change)
    assert changed.tree_changes == {
        "compilation_config.mode": "VLLM_COMPILE",
        "model_config.brand_new": {"x": [1, 2]},
        "quant_config": {"bits": 8},
    }
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(changed), type=EngineConfig)
    tree = VllmConfig.from_engine_config(sent)
    assert tree.compilation_config.mode == 3
    assert tree.model_config.brand_new == {"x": [1, 2]}  # type: ignore[attr-defined]
    assert tree.quant_config == {"bits": 8}


def test_what_the_engine_does_not_read_is_told(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    def change(tree: VllmConfig) -> None:
        tree.cache_config.block_size = 32
        tree.cache_config.cache_dtype = "fp8"
        tree.scheduler_config.async_scheduling = True
        tree.compilation_config.custom_ops = ["none"]
        tree.model_config.brand_new = 1  # type: ignore[attr-defined]

    caplog.set_level("INFO")
    fold(config, change)
    said = [each for each in caplog.messages if "does not read" in each]
    unread = "cache_config.cache_dtype, scheduler_config.async_scheduling"
    assert said == [f"{OWNER}: of these, the engine does not read {unread}"]


def test_the_models_own_configuration_can_be_changed(config: EngineConfig) -> None:
    def change(tree: VllmConfig) -> None:
        tree.model_config.hf_config.sliding_window = 8  # type: ignore[attr-defined]

    changed = fold(config, change)
    assert changed.model.hf_config == {**config.model.hf_config, "sliding_window": 8}


def test_an_importable_class_becomes_its_path(config: EngineConfig) -> None:
    from hookserve.engine.platform import Platform

    changed = fold(config, lambda tree: setattr(tree.parallel_config, "worker_cls", Platform))
    assert changed.parallel.worker_cls == "hookserve.engine.platform:Platform"


@pytest.mark.parametrize(
    "value", [object(), {1: 2}, lambda: None, [object()], type("Local", (), {})]
)
def test_what_is_not_plain_is_refused_by_field_and_owner(value: Any, config: EngineConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        fold(config, lambda tree: setattr(tree.cache_config, "extra", value))
    assert "cache_config.extra" in str(caught.value) and OWNER in str(caught.value)


def test_a_wrong_type_is_refused_with_its_owner(config: EngineConfig) -> None:
    with pytest.raises(ConfigError, match=OWNER):
        fold(config, lambda tree: setattr(tree.cache_config, "block_size", "many"))


def test_one_value_in_two_places_must_agree(config: EngineConfig) -> None:
    def change(tree: VllmConfig) -> None:
        tree.model_config.max_model_len = 32
        tree.scheduler_config.max_model_len = 16

    with pytest.raises(ConfigError, match=r"32.*16"):
        fold(config, change)
