"""Workers, their extensions and executors that are written against vLLM's names and named by their
class paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.llm import LLM
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import PluginSettings

pytestmark = pytest.mark.usefixtures("vllm_facade")
OWN_CLASSES = """
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.worker_base import WorkerBase

CALLED = []


class OwnUniProcExecutor(UniProcExecutor):
    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        CALLED.append(method)
        return super().collective_rpc(method, timeout, args, kwargs, non_block)


class OwnMultiprocExecutor(MultiprocExecutor):
    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False,
                       unique_reply_rank=None, kv_output_aggregator=None):
        assert kv_output_aggregator is None
        CALLED.append(method)
        return super().collective_rpc(method, timeout, args, kwargs, non_block, unique_reply_rank)


class OwnRunner(GPUModelRunner):
    steps = 0

    def execute_model(self, scheduler_output):
        type(self).steps += 1
        return super().execute_model(scheduler_output)


class OwnWorker(Worker):
    def init_device(self):
        super().init_device()
        self.model_runner = OwnRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self):
        self.warmed = self.cache_config.num_gpu_blocks
        return super().compile_or_warm_up_model()


class OwnExtension:
    unit = "steps"

    def report_steps(self, factor):
        return [self.rank, self.model_runner.steps * factor, self._unit(), self.warmed > 0]

    def _unit(self):
        return self.unit


class FromTheBase(WorkerBase):
    '''Computes nothing: it says which of the base's it has.'''

    def init_device(self):
        self.place = [self.local_rank, self.rank, self.is_driver_worker]

    def load_model(self): ...
    def get_kv_cache_spec(self): return {}
"""


@pytest.fixture
def own_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_classes.py").write_text(OWN_CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "own_classes"


def generated(llm: LLM) -> Any:
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    return llm.generate([{"prompt_token_ids": [5, 6, 7]}], params)[0].outputs[0].token_ids


def test_classes_that_are_named_by_their_paths_run(
    own_classes: str, tiny_llama: Path, torch_threads: None
) -> None:
    settings = PluginSettings(no_plugins=True)
    with LLM(str(tiny_llama), plugin_settings=settings) as plain:
        expected = generated(plain)
    with LLM(
        str(tiny_llama),
        distributed_executor_backend=f"{own_classes}.OwnUniProcExecutor",
        worker_cls=f"{own_classes}.OwnWorker",
        worker_extension_cls=f"{own_classes}.OwnExtension",
        plugin_settings=settings,
    ) as llm:
        import own_classes as module

        assert generated(llm) == expected
        steps = module.OwnRunner.steps
        assert steps >= 3, "the prompt's, and one for each token beyond the first"
        assert llm.collective_rpc("report_steps", args=(2,)) == [[0, steps * 2, "steps", True]]
        assert llm.collective_rpc(lambda worker, x: [type(worker).__name__, x], args=(7,)) == [
            ["OwnWorker", 7]
        ]
        (is_same,) = llm.collective_rpc(
            lambda worker: (
                worker.model_runner.get_model() is worker.get_model()
                and worker.model_runner.model_config is worker.model_config
            )
        )
        assert is_same
        (num_layers,) = llm.apply_model(lambda model: len(model.model.layers))
        assert num_layers == 2
        assert module.CALLED[:2] == ["init_device", "load_model"]
        assert module.CALLED.count("execute_model") == steps
        executor = llm.llm_engine.core.executor
        assert executor.get_class(executor.vllm_config) is module.OwnUniProcExecutor
        future = executor.collective_rpc("check_health", non_block=True)
        assert future.done() and future.result() == [True]
        failed = executor.collective_rpc("nothing_of_that_name", non_block=True)
        assert isinstance(failed.exception(), AttributeError)


def test_an_executor_of_several_processes_runs_too(own_classes: str, tiny_llama: Path) -> None:
    with LLM(
        str(tiny_llama),
        tensor_parallel_size=2,
        distributed_executor_backend=f"{own_classes}.OwnMultiprocExecutor",
        worker_cls=f"{own_classes}.OwnWorker",
        worker_extension_cls=f"{own_classes}.OwnExtension",
    ) as llm:
        import own_classes as module

        assert len(generated(llm)) == 3
        first, second = llm.collective_rpc("report_steps", args=(1,))
        assert first[0] == 0 and second == [1, *first[1:]] and first[1] >= 3
        executor = llm.llm_engine.core.executor
        assert executor.collective_rpc("report_steps", None, (1,), None, False, 1) == second
        future = executor.collective_rpc("check_health", non_block=True)
        assert future.result() == [True, True]
        with pytest.raises(TypeError, match="is a function, and the workers are other processes"):
            llm.collective_rpc(len)
        assert "load_model" in module.CALLED


def test_what_a_worker_must_define_is_told_by_its_name(own_classes: str, tiny_llama: Path) -> None:
    with pytest.raises(Exception, match="FromTheBase must define determine_available_memory"):
        LLM(str(tiny_llama), worker_cls=f"{own_classes}.FromTheBase")
