"""Packages that wrap the two methods by which the engine's arguments become its configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookserve.engine.config import EngineConfig
from hookserve.engine.engine_args import AsyncEngineArgs, EngineArgs
from hookserve.engine.errors import ConfigError
from hookserve.engine.vllm_config import PassConfig, VllmConfig
from hookserve.hookspecs import Host, PluginError, PluginSettings, bootstrap
from hookserve.server.front_config import configure
from hookserve.server.settings import resolve_settings
from plugin_folder import install_plugin

pytestmark = pytest.mark.usefixtures("vllm_facade")

OWNER = "wrapping:vllm.general_plugins:wrapping"
_WRAPPING = """
import functools


def register():
    from vllm.config import CompilationMode, CUDAGraphMode
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

    {first}
    make_model, make_engine = EngineArgs.create_model_config, EngineArgs.create_engine_config

    def create_model_config(self):
        {before_model}
        model = make_model(self)
        {after_model}
        return model

    @functools.wraps(make_engine)
    def create_engine_config(self, *args, **kwargs):
        {before_engine}
        config = make_engine(self, *args, **kwargs)
        {after_engine}
        return config

    EngineArgs.create_model_config = create_model_config
    EngineArgs.create_engine_config = create_engine_config


class MyScheduler:
    pass
"""


@pytest.fixture
def wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Host]]:
    """A front whose plugin runs these statements around the methods that it wraps."""
    hosts: list[Host] = []
    for name in ("create_model_config", "create_engine_config"):
        monkeypatch.setattr(EngineArgs, name, getattr(EngineArgs, name))
    monkeypatch.syspath_prepend(tmp_path)

    def start(**statements: str) -> Host:
        names = ("first", "before_model", "after_model", "before_engine", "after_engine")
        source = _WRAPPING.format(**{name: statements.get(name, "pass") for name in names})
        groups = {"vllm.general_plugins": {"wrapping": "wrapping:register"}}
        install_plugin(tmp_path, "wrapping", {"wrapping": source}, groups=groups)
        hosts.append(bootstrap(["front"], PluginSettings()))
        assert hosts[-1].problems() == []
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


def build(host: Host, model: Path, **values: Any) -> EngineConfig:
    return EngineArgs(model=str(model), **values).to_engine_config(host)


def test_a_wrapper_that_changes_nothing_changes_nothing(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    alone = EngineArgs(model=str(tiny_llama)).to_engine_config()
    config = build(wrap(), tiny_llama)
    assert config == msgspec.structs.replace(alone, instance_id=config.instance_id)
    assert config.instance_id != alone.instance_id and len(config.instance_id) == 5
    trees = [VllmConfig.from_engine_config(each) for each in (config, config, alone)]
    assert [tree.instance_id for tree in trees] == [config.instance_id] * 2 + [alone.instance_id]
    assert len({tree.compute_hash() for tree in trees}) == 1


def test_arguments_are_changed_before_anything_is_decided(
    wrap: Callable[..., Host], tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookserve.engine.plugin_arguments")
    host = wrap(
        before_model="self.load_format = 'my_format'; self.max_model_len = 40",
        before_engine="self.enforce_eager = True",
    )
    args = EngineArgs(model=str(tiny_llama), sources={"load_format": "flag --load-format"})
    config = args.to_engine_config(host)
    assert (config.load.load_format, config.model.max_model_len) == ("my_format", 40)
    assert config.enforce_eager is True
    assert args.sources["load_format"] == args.sources["max_model_len"] == f"plugin {OWNER}"
    told = {record.getMessage(): record.levelno for record in caplog.records}
    assert told == {
        f"plugin {OWNER} set load_format to 'my_format' (it was 'auto', from flag --load-format)": (
            logging.WARNING
        ),
        f"plugin {OWNER} set max_model_len to 40 (it was None)": logging.INFO,
        f"plugin {OWNER} set enforce_eager to True (it was False)": logging.INFO,
    }


def test_arguments_of_vllm_are_read_and_set_as_there(
    wrap: Callable[..., Host], tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    host = wrap(
        before_engine="self.gpu_memory_utilization = min(self.gpu_memory_utilization, 0.25); "
        "self.compilation_config.custom_ops.append('none'); "
        "self.compilation_config.mode = CompilationMode.NONE; "
        "assert self.compilation_config.mode == CompilationMode.NONE",
        after_engine="assert self.gpu_memory_utilization == 0.25",
    )
    config = build(host, tiny_llama)
    assert config.custom_ops == ["none"]
    said = [each.getMessage() for each in caplog.records]
    assert (
        f"plugin {OWNER} set compilation_config to {{'custom_ops': ['none']}} (it was {{}})" in said
    )
    assert [each for each in said if "gpu_memory_utilization has no effect, because" in each]
    assert not [each for each in said if "mode has no effect" in each]


def test_what_the_methods_give_back_may_be_changed(
    wrap: Callable[..., Host], tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookserve.engine.config_changes")
    host = wrap(
        after_model="model.enforce_eager = True; model.max_model_len = 48",
        after_engine="config.scheduler_config.scheduler_cls = MyScheduler; "
        "config.cache_config.block_size = 32; config.additional_config['mark'] = [1]; "
        "config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY; "
        "config.compilation_config.level = CompilationMode.VLLM_COMPILE; "
        "config.compilation_config.pass_config.enable_sp = True; "
        "config.model_config.my_mark = 'seen'",
    )
    config = build(host, tiny_llama)
    assert (config.enforce_eager, config.model.max_model_len) == (True, 48)
    assert config.scheduler.scheduler_cls == "wrapping:MyScheduler"
    assert config.cache.block_size == 32
    assert config.additional_config == {"mark": [1]}
    tree = VllmConfig.from_engine_config(config)  # as another process makes it
    assert tree.compilation_config.cudagraph_mode.name == "FULL_DECODE_ONLY"
    assert tree.compilation_config.mode.name == "VLLM_COMPILE"
    assert tree.compilation_config.pass_config == PassConfig(enable_sp=True)
    other = VllmConfig.from_engine_config(build(host, tiny_llama, seed=1))
    assert tree.compute_hash() != other.compute_hash()
    assert tree.model_config.my_mark == "seen"  # type: ignore[attr-defined]
    lines = [record.getMessage() for record in caplog.records]
    assert f"{OWNER} changed model_config.max_model_len from 512 to 48" in lines
    assert f"{OWNER} changed cache_config.block_size from 16 to 32" in lines
    assert f"{OWNER} changed compilation_config.mode from 'NONE' to 'VLLM_COMPILE'" in lines


def test_a_form_that_the_host_gives_a_value_is_nobodys_change(
    wrap: Callable[..., Host], tiny_llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hookserve.engine.plugin_arguments")
    host = wrap(before_engine="self.compilation_config = 3")
    args = EngineArgs(model=str(tiny_llama))
    args.served_model_name = "mine"  # type: ignore[assignment]
    assert args.to_engine_config(host).model.served_model_names == ("mine",)
    assert args.sources == {"compilation_config": f"plugin {OWNER}"}
    (told,) = [each for each in caplog.messages if " set " in each]
    assert told == f"plugin {OWNER} set compilation_config to {{'mode': 3}} (it was {{}})"


def test_a_server_shows_whose_value_it_is(wrap: Callable[..., Host], tiny_llama: Path) -> None:
    host = wrap(before_engine="self.enforce_eager = True", after_model="model.max_model_len = 48")
    made = configure(resolve_settings({"model": str(tiny_llama)}, {"HOME": "/"}), host)
    assert (made.engine.enforce_eager, made.engine.model.max_model_len) == (True, 48)
    assert made.settings.values["enforce_eager"] is True
    assert str(made.settings.origins["enforce_eager"]) == f"plugin {OWNER}"


def test_a_server_calls_what_a_wrapper_puts_into_the_subclass(
    wrap: Callable[..., Host], tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AsyncEngineArgs, "create_engine_config", EngineArgs.create_engine_config)
    monkeypatch.setattr(AsyncEngineArgs, "create_model_config", EngineArgs.create_model_config)
    host = wrap(
        first="EngineArgs = AsyncEngineArgs", after_engine="config.cache_config.block_size = 8"
    )
    made = configure(resolve_settings({"model": str(tiny_llama)}, {"HOME": "/"}), host)
    assert made.engine.cache.block_size == 8
    assert EngineArgs(model=str(tiny_llama)).to_engine_config(host).cache.block_size == 16


def test_a_value_that_cannot_cross_is_refused_by_field_and_owner(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    host = wrap(after_engine="config.scheduler_config.policy = object()")
    with pytest.raises(ConfigError, match=rf"{OWNER} set scheduler_config.policy to an object"):
        build(host, tiny_llama)


@pytest.mark.parametrize(
    ("statements", "method"),
    [
        ({"after_engine": "config = None"}, "create_engine_config"),
        ({"after_model": "model = dict()"}, "create_model_config"),
    ],
)
def test_a_wrapper_must_give_back_a_configuration(
    wrap: Callable[..., Host], tiny_llama: Path, statements: dict[str, str], method: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{OWNER}: {method} gave back an object of type"):
        build(wrap(**statements), tiny_llama)


def test_a_wrapper_that_raises_is_out_with_its_plugin_and_what_it_changed(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    host = wrap(
        before_engine="self.enforce_eager = True",
        after_engine="config.cache_config.no_such_field",
    )
    config = build(host, tiny_llama)
    assert config.enforce_eager is False
    (problem,) = host.problems()
    assert problem.startswith(f"{OWNER} is out, failed at stage 'run'")
    assert "create_engine_config or create_model_config raised AttributeError" in problem
    assert "no_such_field" in problem
    assert EngineArgs.create_engine_config.__module__ == "hookserve.engine.engine_args"


def test_what_it_changed_in_its_place_is_undone_too(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    host = wrap(
        before_engine="self.additional_config['deep']['x'] = 1; self.max_num_seqs = 3",
        after_engine="1 / 0",
    )
    args = EngineArgs(model=str(tiny_llama), additional_config={"deep": {}})
    config = args.to_engine_config(host)
    assert (config.additional_config, config.scheduler.max_num_seqs) == ({"deep": {}}, 32)
    assert (args.additional_config, args.sources) == ({"deep": {}}, {})
    (plugin,) = [each for each in host.plugins if each.identity == OWNER]
    assert plugin.engine_arguments == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("self.max_num_seqs = -4", f"--max-num-seqs -4 (from plugin {OWNER}): expected"),
        ("self.speculative_config = {'a': 1}", f"{OWNER}: speculative_config={{'a': 1}} is ref"),
        ("self.cpu_offload_gb = 8", f"{OWNER}: cpu_offload_gb=8 is refused, because weights stay"),
        ("self.hf_overrides = print", f"print> (from plugin {OWNER}): expected a dict, and no fun"),
    ],
)
def test_what_it_sets_and_cannot_be_is_refused_by_its_name(
    wrap: Callable[..., Host], tiny_llama: Path, statement: str, message: str
) -> None:
    host = wrap(before_engine=statement)
    with pytest.raises(ConfigError) as raised:
        build(host, tiny_llama)
    assert message in str(raised.value)


def test_of_several_wrappers_one_that_raises_stops_the_start(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    host = wrap(after_model="1 / 0")
    other = next(each for each in host.plugins if each.is_builtin)
    other.patches.append("hookserve.engine.engine_args:EngineArgs.create_engine_config")
    try:
        with pytest.raises(PluginError, match="raised ZeroDivisionError") as raised:
            build(host, tiny_llama)
    finally:
        other.patches.pop()
    assert OWNER in str(raised.value) and other.identity in str(raised.value)
    assert raised.value.identity == OWNER, "whose code it was is known"


def test_arguments_that_cannot_be_are_read_and_refuse_to_be_set(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    host = wrap(before_engine="self.trust_remote_code = self.kv_cache_dtype != 'auto'")
    assert build(host, tiny_llama).model.architectures == ("LlamaForCausalLM",)
    host.close()
    with pytest.raises(ConfigError, match="trust_remote_code=True is refused, because a checkp"):
        EngineArgs().trust_remote_code = True


def test_a_quantization_that_a_wrapper_sets_must_be_one_that_is_there(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    host = wrap(before_model="self.quantization = 'nobodys'")
    with pytest.raises(ConfigError, match="nobodys"):
        build(host, tiny_llama)


REGISTER = """
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    @register_quantization_config("my_bits")
    class MyBits(QuantizationConfig):
        pass
"""


def test_a_quantization_and_its_loader_are_put_in_where_the_operator_named_none(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    host = wrap(
        first=REGISTER.strip(),
        before_model="self.quantization = self.load_format = 'my_bits'",
        after_model="model.enforce_eager = model.quantization == 'my_bits'",
    )
    config = build(host, tiny_llama)
    assert (config.model.quantization, config.load.load_format) == ("my_bits", "my_bits")
    assert config.enforce_eager is True


def test_the_methods_take_what_callers_of_the_ecosystem_give(
    wrap: Callable[..., Host], tiny_llama: Path
) -> None:
    wrap()
    args = EngineArgs(model=str(tiny_llama), scheduler_cls=VllmConfig)  # type: ignore[arg-type]
    tree = args.create_engine_config(usage_context="API server", headless=False)
    assert tree.scheduler_config.scheduler_cls == "hookserve.engine.vllm_config:VllmConfig"
    assert args.create_model_config().get_hidden_size() == tree.model_config.get_hidden_size()
    with pytest.raises(ConfigError, match="headless"):
        args.create_engine_config(headless=True)
