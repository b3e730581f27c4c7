"""A plugin that replaces and provides ops, in one worker and in two: the tokens are those of the
reference, each worker says that the plugin's code ran there, and without it all is as before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine import LLM, SamplingParams

PROMPTS = [{"prompt_token_ids": [7 * n + at for at in range(3 + 9 * n)]} for n in range(3)]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

PLUGIN = """
from hookserve.hookspecs import OpOverride, OpProvider, hookimpl


@hookimpl
def register_oot_op():
    return [OpOverride("rms_norm", "norms:ExactRMSNorm"), OpOverride("SiluAndMul", "norms:OnCuda")]


@hookimpl
def register_op_provider():
    return OpProvider("rotary_embedding", "mine", "norms:rotate", priority=1)


@hookimpl
def process_started(roles):
    if "worker" in roles:
        import norms
"""
CLASSES = """
import torch

from hookserve.ops.activation import SiluAndMul
from hookserve.ops.layernorm import RMSNorm
from hookserve.ops.logits_processor import LogitsProcessor


class ExactRMSNorm(RMSNorm):
    def forward_native(self, x, residual=None):
        total = x if residual is None else x + residual
        wide = total.double()
        norm = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
        normalised = (wide * norm * self.weight).to(x.dtype)
        return normalised if residual is None else (normalised, total)


class OnCuda(SiluAndMul):
    def forward_cuda(self, x):
        raise AssertionError("there is no such device")


@LogitsProcessor.register_oot
class MyLogitsProcessor(LogitsProcessor):
    pass


def rotate(x, cos, sin, head_size):
    heads = x.reshape(x.shape[0], -1, head_size)
    first, second = heads.chunk(2, dim=-1)
    return (heads * cos + torch.cat((second, first), dim=-1) * sin).reshape(x.shape)
"""
EXPECTED = {
    "rms_norm": ("norms:ExactRMSNorm", "file:my_ops"),
    "silu_and_mul": ("norms:OnCuda", "file:my_ops"),
    "rotary_embedding": ("mine", "file:my_ops"),
    "logits_processor": ("norms:MyLogitsProcessor", "file:my_ops"),
    "attention": ("torch", "hookserve"),
}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ops")
    (folder / "my_ops.py").write_text(PLUGIN)
    (folder / "norms.py").write_text(CLASSES)
    return folder / "my_ops.py"


def run(
    model: Path, plugins: Sequence[str] = (), **options: Any
) -> tuple[list[list[int]], dict[str, dict[str, Any]]]:
    """Tokens, and of each process that has any its ops."""
    llm = LLM(str(model), plugins=list(plugins), kv_cache_memory_bytes=8 << 20, **options)
    try:
        outputs = llm.generate(PROMPTS, PARAMS)
        reports = llm.plugins.describe(all_processes=True)
        tables = {each.process: {row.op: row for row in each.ops} for each in reports if each.ops}
        return [list(output.outputs[0].token_ids) for output in outputs], tables
    finally:
        llm.shutdown()


def implementations(table: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {op: (row.implementation, row.owner) for op, row in table.items()}


def test_every_worker_has_a_plugins_ops_as_long_as_it_has_the_plugin(
    tiny_llama: Path,
    plugin: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(plugin.parent))  # of the worker processes
    monkeypatch.syspath_prepend(str(plugin.parent))
    tokens, (plain,) = _one_table(run(tiny_llama))
    for num_ranks in (1, 2):
        got, tables = run(tiny_llama, [str(plugin)], tensor_parallel_size=num_ranks)
        assert got == tokens
        assert len(tables) == num_ranks
        for table in tables.values():
            found = implementations(table)
            assert {op: found[op] for op in EXPECTED} == EXPECTED
            assert all(table[op].built and table[op].calls for op in EXPECTED)
            assert table["rms_norm"].calls == table["rms_norm"].built * table["attention"].calls / 2
    assert caplog.text.count("file:my_ops overrides forward_cuda of silu_and_mul") == 1
    again, (restored,) = _one_table(run(tiny_llama))
    assert again == tokens
    assert implementations(restored) == implementations(plain)
    assert all(owner.startswith("hookserve") for _, owner in implementations(plain).values())
    switched_off = {"custom_ops": ["none", "+RMSNorm", "+logits_processor"]}
    got, (table,) = _one_table(run(tiny_llama, [str(plugin)], compilation_config=switched_off))
    assert got == tokens
    left = {op for op, row in table.items() if row.owner == "file:my_ops"}
    assert left == {"rms_norm", "logits_processor"}, "also what a module did when it was imported"
    assert "none, so file:my_ops's override of silu_and_mul (SiluAndMul) is not" in caplog.text


def _one_table(ran: tuple[Any, dict[str, Any]]) -> tuple[Any, list[Any]]:
    return ran[0], list(ran[1].values())
