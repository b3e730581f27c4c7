"""Platforms as vLLM's plugins write them: found by their entry points, asked by the names of vLLM's
class, and heeded in every process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine.errors import ConfigError
from hookserve.engine.llm import LLM
from hookserve.engine.op_choices import platform_key
from hookserve.engine.platform_calls import import_platform
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import (
    Host,
    PluginConflictError,
    PluginSettings,
    RequiredPluginError,
    current,
)
from plugin_folder import install_plugin

PLATFORM_GROUP, GENERAL = "vllm.platform_plugins", "vllm.general_plugins"
DUMMY = """
ASKED = []

def dummy_platform_plugin():
    ASKED.append("function")
    return "dummy_platform.platform.DummyPlatform"

def register_custom_ops():
    from vllm.platforms import current_platform
    ASKED.append(("registering", current_platform.device_name, current_platform.is_out_of_tree()))
    import dummy_platform.custom_ops
"""
DUMMY_PLATFORM = """
from dummy_platform import ASKED
from vllm.platforms.interface import Platform, PlatformEnum


class DummyPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "DummyDevice"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"

    @classmethod
    def check_and_update_config(cls, vllm_config):
        ASKED.append("check_and_update_config")
        vllm_config.parallel_config.worker_cls = "dummy_platform.worker.DummyWorker"
        vllm_config.compilation_config.custom_ops = ["all"]

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config):
        ASKED.append("defaults")

    @classmethod
    def pre_register_and_update(cls, parser=None):
        ASKED.append(("before", parser))

    @classmethod
    def verify_model_arch(cls, model_arch):
        ASKED.append(model_arch)

    @classmethod
    def check_max_model_len(cls, max_model_len):
        return min(max_model_len, 64)

    @classmethod
    def get_attn_backend_cls(cls, backend_name, head_size, dtype, kv_cache_dtype, block_size,
                             use_v1, use_mla):
        ASKED.append((backend_name, head_size, str(dtype), block_size, use_v1, use_mla))
        return None

    @classmethod
    def get_device_communicator_cls(cls):
        return "dummy_platform.communicator.DummyCommunicator"

    @classmethod
    def support_static_graph_mode(cls):
        return True
""".replace("backend_name", "selected_backend")
DUMMY_OPS = """
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding


@RotaryEmbedding.register_oot
class DummyRotaryEmbedding(RotaryEmbedding):
    calls = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.addition_config = True

    def forward_oot(self, *args, **kwargs):
        type(self).calls += 1
        return super().forward_oot(*args, **kwargs)
"""
DUMMY_COMMUNICATOR = """
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class DummyCommunicator(DeviceCommunicatorBase):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.counts = {"all_reduce": 0, "all_gather": 0}
        self.model = None

    def all_reduce(self, input_):
        self.counts["all_reduce"] += 1
        return super().all_reduce(input_)

    def all_gather(self, input_, dim=-1):
        self.counts["all_gather"] += 1
        return super().all_gather(input_, dim)

    def prepare_communication_buffer_for_model(self, model):
        self.model = model
"""
DUMMY_WORKER = """
import torch
from dummy_platform import ASKED
from dummy_platform.custom_ops import DummyRotaryEmbedding
from vllm.distributed import get_tensor_model_parallel_rank, get_world_group
from vllm.platforms import current_platform
from vllm.v1.worker.cpu_worker import CPUWorker


class DummyWorker(CPUWorker):
    def looked_at(self):
        found = [m for m in self.get_model().modules() if type(m) is DummyRotaryEmbedding]
        return {
            "marked": [m.addition_config for m in found] == [True] * len(found) and bool(found),
            "calls": DummyRotaryEmbedding.calls,
            "asked": [each if isinstance(each, str) else list(each) for each in ASKED],
            "same": current_platform.__class__ is type(self.platform),
            "custom_ops": self.vllm_config.compilation_config.custom_ops,
            "place": [get_tensor_model_parallel_rank(), get_world_group().world_size],
        }

    def communicated(self):
        own, model = self.tp_group.communicator, self.get_model()
        return [own.counts, self.num_collectives(), own.model is model, own.ranks, own.unique_name]

    def exchange(self):
        own, rank = self.tp_group.communicator, self.rank
        mine = torch.tensor([[1.0, 2.0]]) + 10 * rank
        gathered = own.gather(mine, dst=1, dim=0)
        long = torch.full((1 + rank, 2), float(rank))
        return [each if each is None else each.tolist() for each in (
            own.all_gatherv(long, sizes=[1, 2]),
            own.all_gatherv(mine),
            own.reduce_scatter(mine),
            own.reduce_scatterv(torch.arange(3.0), dim=0, sizes=[1, 2]),
            gathered,
            own.broadcast(mine.clone(), src=1),
            own.recv(mine.shape, mine.dtype) if rank else own.send(mine),
        )]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return tmp_path


@pytest.fixture
def dummy_platform(site: Path) -> Path:
    """A platform of its own kind, and an op that it has code for, in one package."""
    groups = {
        PLATFORM_GROUP: {"dummy_platform_plugin": "dummy_platform:dummy_platform_plugin"},
        GENERAL: {"dummy_platform_ops": "dummy_platform:register_custom_ops"},
    }
    install_plugin(site, "dummy-platform", {"dummy_platform": DUMMY}, groups=groups)
    for name, source in {
        "platform": DUMMY_PLATFORM,
        "custom_ops": DUMMY_OPS,
        "communicator": DUMMY_COMMUNICATOR,
        "worker": DUMMY_WORKER,
    }.items():
        (site / "dummy_platform" / f"{name}.py").write_text(source)
    return site


def install_platform(site: Path, name: str, function: str, body: str = "") -> str:
    """A distribution with one platform; its identity."""
    source = f"def plugin():\n    {function}\n{body}"
    groups = {PLATFORM_GROUP: {name: f"{name}:plugin"}}
    install_plugin(site, f"{name}-dist", {name: source}, groups=groups)
    return f"{name}-dist:{PLATFORM_GROUP}:{name}"


BASED = """
from vllm.platforms.cpu import CpuPlatform

class Own(CpuPlatform):
    device_name = "{name}"
"""


@pytest.mark.checklist(53, 76, 78, 131)
@pytest.mark.usefixtures("vllm_facade")
def test_a_platform_of_its_own_kind_is_heeded_in_every_process(
    dummy_platform: Path, tiny_llama: Path, torch_threads: None
) -> None:
    """Function, configuration, worker, op, attention and communicator, with two ranks."""
    params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
    prompt = {"prompt_token_ids": [5, 6, 7, 8]}
    with LLM(str(tiny_llama), plugin_settings=PluginSettings(no_plugins=True)) as plain:
        expected = plain.generate([prompt], params)[0].outputs[0].token_ids
    with LLM(str(tiny_llama), tensor_parallel_size=2) as llm:
        assert llm.generate([prompt], params)[0].outputs[0].token_ids == expected
        config = llm.llm_engine.engine_config
        looked = llm.collective_rpc("looked_at")
        communicated = llm.collective_rpc("communicated")
        exchanged = llm.collective_rpc("exchange")
        import dummy_platform as package

        front = list(package.ASKED)
    assert config.parallel.worker_cls == "dummy_platform.worker.DummyWorker"
    assert config.model.max_model_len == 64
    assert front == [
        "function",
        ("registering", "DummyDevice", True),
        ("before", None),
        "LlamaForCausalLM",
        "defaults",
        "check_and_update_config",
    ]
    for rank, found in enumerate(looked):
        assert found["marked"] and found["same"]
        assert found["calls"] > 0, "forward_oot has run"
        assert found["custom_ops"] == ["all"]
        assert found["place"] == [rank, 2]
        assert found["asked"] == [
            "function",
            ["registering", "DummyDevice", True],
            [None, 16, "torch.float32", 16, True, False],
        ]
        counts, of_group, has_model, ranks, name = communicated[rank]
        assert counts == {
            "all_reduce": of_group["all_reduces"],
            "all_gather": of_group["all_gathers"],
        }
        assert counts["all_reduce"] > 0 and counts["all_gather"] > 0
        assert has_model and ranks == [0, 1] and name == "tp:0"
    check_exchanged(exchanged)


def check_exchanged(exchanged: list[Any]) -> None:
    """What the base does for a plugin's own calls, of ``[[1, 2]]`` and ``[[11, 12]]``."""
    both = [[1.0, 2.0], [11.0, 12.0]]
    for rank, (gatherv, even, part, parts, gathered, of_one, received) in enumerate(exchanged):
        assert gatherv == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert even == both
        assert part == [[[12.0], [14.0]][rank]]
        assert parts == [[0.0], [2.0, 4.0]][rank]
        assert gathered == [None, both][rank]
        assert of_one == [[11.0, 12.0]]
        assert received == [None, [[1.0, 2.0]]][rank]


@pytest.mark.checklist(132)
@pytest.mark.usefixtures("vllm_facade")
def test_a_third_partys_beats_the_built_in_and_one_that_is_not_here_is_silent(site: Path) -> None:
    own = install_platform(site, "npu", "return 'npu.Own'", BASED.format(name="npu"))
    install_platform(site, "absent", "return None")
    host = Host(["front"], PluginSettings())
    assert host.platform().owner == own
    assert not [line for line in [*host.warnings, *host.problems()] if "absent" in line]
    assert any("overrides built-in hookserve:builtin:cpu" in line for line in host.warnings)


@pytest.mark.usefixtures("vllm_facade")
def test_two_that_both_answer_need_the_flag(site: Path) -> None:
    names = [
        install_platform(site, name, f"return '{name}.Own'", BASED.format(name=name))
        for name in ("npu", "xpu")
    ]
    with pytest.raises(PluginConflictError, match="choose one with --platform") as caught:
        Host(["front"], PluginSettings()).platform()
    assert all(name in str(caught.value) for name in names)
    assert Host(["front"], PluginSettings(platform="xpu")).platform().owner == names[1]


@pytest.mark.usefixtures("vllm_facade")
def test_one_that_raises_stops_the_start_unless_another_is_named(site: Path) -> None:
    own = install_platform(site, "npu", "raise OSError('no driver')")
    with pytest.raises(RequiredPluginError, match=r"no driver.*--platform NAME chooses another"):
        Host(["front"], PluginSettings())
    host = Host(["front"], PluginSettings(platform="cpu"))
    assert host.platform().owner == "hookserve:builtin:cpu"
    assert any(own in line and "no driver" in line for line in host.problems())


@pytest.mark.usefixtures("vllm_facade")
def test_an_import_decides_nothing_and_the_first_question_does(
    site: Path, tiny_llama: Path
) -> None:
    install_platform(site, "npu", "return 'npu.Own'", BASED.format(name="npu"))
    import vllm.platforms
    from vllm.platforms import Platform, current_platform

    assert vllm.platforms._init_trace == ""
    assert isinstance(current_platform, Platform) and vllm.platforms._init_trace == ""
    assert current_platform.device_name == "npu"
    assert "test_vllm_platforms.py" in vllm.platforms._init_trace
    assert vllm.platforms.resolve_current_platform_cls_qualname() == "npu.Own"
    assert type(current_platform) is not current_platform.__class__
    assert current_platform.is_cpu() and not current_platform.is_out_of_tree()
    assert current_platform.current_stream is torch.cpu.current_stream
    assert not hasattr(current_platform, "get_punica_wrapper")
    with pytest.raises(AttributeError, match="platform Own has no attribute 'typo'"):
        current_platform.typo()
    with LLM(str(tiny_llama)) as llm:
        made = llm.collective_rpc(lambda worker: worker.platform)[0]
        assert made is current().platform().made
        current_platform.note = "of everybody's"
        assert made.note == "of everybody's"
        del current_platform.note
        assert not hasattr(made, "note")


OUTSIDE = """
from vllm.platforms.cuda import NvmlCudaPlatform

class Own(NvmlCudaPlatform):
    def is_out_of_tree(self):
        return True
"""


@pytest.mark.checklist(76)
@pytest.mark.usefixtures("vllm_facade")
def test_one_that_keeps_the_kind_that_it_builds_on_is_asked_what_it_is(site: Path) -> None:
    own = install_platform(site, "npu", "return 'npu.Own'", OUTSIDE)
    host = Host(["front"], PluginSettings())
    platform = import_platform(host.platform(), host)
    assert host.platform().owner == own
    assert platform.is_cuda() and platform.is_out_of_tree(), "both hold at once"
    assert platform_key(platform) == "oot"


HASTY = """
from vllm.platforms import current_platform

FOUND = current_platform.device_name

def register(): ...
"""


@pytest.mark.usefixtures("vllm_facade")
def test_a_module_may_ask_while_it_is_imported_at_the_start(site: Path) -> None:
    """Though it comes first by its name, and the platform's function runs once."""
    body = "CALLS = []\n" + BASED.format(name="npu")
    install_platform(site, "npu", "CALLS.append(1); return 'npu.Own'", body)
    install_plugin(site, "hasty", {"hasty": HASTY}, groups={GENERAL: {"hasty": "hasty:register"}})
    host = Host(["front"], PluginSettings())
    assert host.problems() == []
    import hasty
    import npu

    assert hasty.FOUND == "npu" and npu.CALLS == [1]


@pytest.mark.usefixtures("vllm_facade")
def test_a_module_that_asks_before_there_is_any_is_told_where_to(
    site: Path, tmp_path: Path
) -> None:
    file = tmp_path / "hasty.py"
    file.write_text("from vllm.platforms import current_platform\ncurrent_platform.is_cpu()\n")
    (problem,) = Host(["front"], PluginSettings(files=(str(file),))).problems()
    assert "file:hasty" in problem
    assert "ask inside of a function" in problem


@pytest.mark.usefixtures("vllm_facade")
def test_a_device_that_torch_does_not_have_is_named_with_its_owner(
    site: Path, tiny_llama: Path, torch_threads: None
) -> None:
    body = BASED.format(name="npu") + "    device_type = 'privateuseone'\n"
    own = install_platform(site, "npu", "return 'npu.Own'", body)
    with pytest.raises(ConfigError, match=f"platform {own} computes on 'privateuseone', which"):
        LLM(str(tiny_llama))


@pytest.mark.usefixtures("vllm_facade")
def test_what_is_no_platform_is_refused_under_its_owners_name(site: Path, tiny_llama: Path) -> None:
    own = install_platform(site, "npu", "return 'npu.Own'", "class Own: device_type = 'cpu'\n")
    with pytest.raises(Exception, match=r"npu.Own.*is no subclass of .*:Platform") as caught:
        LLM(str(tiny_llama))
    assert own in str(caught.value)


def test_a_platform_is_asked_in_front_without_torch() -> None:
    code = (
        "import sys\n"
        "from hookserve.plugins_builtin.vllm_compat import finder\n"
        "finder.install()\n"
        "from vllm.platforms import builtin_platform_plugins, current_platform\n"
        "import vllm.platforms.cpu, vllm.platforms.cuda, vllm.platforms.interface\n"
        "assert current_platform.is_cpu() and not current_platform.is_cuda_alike()\n"
        "assert current_platform.get_cpu_architecture().name\n"
        "assert builtin_platform_plugins['cpu']().endswith('.cpu_platform.CpuPlatform')\n"
        "assert builtin_platform_plugins['cuda']() in (None, "
        "'hookserve.plugins_builtin.cuda_platform.CudaPlatform')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
