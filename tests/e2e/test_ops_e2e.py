"""Four plugins that replace and provide ops, in one worker and in two: the tokens are those of the
reference, each worker says that the plugins' code ran there, and without one all is as before."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import RunningServer, run_command, wait_until
from hookserve.engine import LLM, SamplingParams

PROMPTS = [{"prompt_token_ids": [7 * n + at for at in range(3 + 9 * n)]} for n in range(3)]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

PLUGINS = {
    "exact": """
from hookserve.hookspecs import OpOverride, hookimpl


@hookimpl
def register_oot_op():
    return OpOverride("rms_norm", "classes_of_ops:ExactRMSNorm")


@hookimpl
def process_started(roles):
    if "worker" in roles:
        import classes_of_ops
""",
    "cuda": """
from hookserve.hookspecs import OpOverride, hookimpl


@hookimpl
def register_oot_op():
    return OpOverride("SiluAndMul", "classes_of_ops:OnCuda")
""",
    "turns": """
from hookserve.hookspecs import OpProvider, hookimpl


@hookimpl
def register_op_provider():
    return [
        OpProvider("rotary_embedding", "mine", "classes_of_ops:rotate", priority=1),
        OpProvider("linear", "mine", "classes_of_ops:multiply"),
        OpProvider("sampling", "mine", "hookserve.ops.op_references:sampling"),
    ]
""",
    "attends": """
from hookserve.hookspecs import Named, hookimpl


@hookimpl
def attention_backend():
    return Named("plainly", "classes_of_ops:PlainBackend")
""",
}
CLASSES = """
import torch

from hookserve.ops.activation import SiluAndMul
from hookserve.ops.attention_backend import AttentionBackend, AttentionImpl
from hookserve.ops.layernorm import RMSNorm
from hookserve.ops.logits_processor import LogitsProcessor
from hookserve.ops.op_references import kv_write, paged_attention_prefill


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


def multiply(x, weight, bias):
    return NotImplemented if bias is not None else x @ weight.T


class PlainImpl(AttentionImpl):
    writes_output = False

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output=None):
        metadata = attn_metadata
        kv_write(kv_cache, key, value, metadata.slot_mapping)
        return paged_attention_prefill(
            query,
            kv_cache,
            metadata.block_tables,
            torch.tensor(metadata.seq_lens),
            torch.tensor(metadata.query_start_loc),
            self.scale,
            None,
            None,
        )


class PlainBackend(AttentionBackend):
    @staticmethod
    def get_name():
        return "plainly"

    @staticmethod
    def get_impl_cls():
        return PlainImpl
"""
OWNED: Mapping[str, Mapping[str, str]] = {
    "exact": {
        "rms_norm": "classes_of_ops:ExactRMSNorm",
        "logits_processor": "classes_of_ops:MyLogitsProcessor",
    },
    "cuda": {"silu_and_mul": "classes_of_ops:OnCuda"},
    "turns": {"rotary_embedding": "mine", "linear": "mine", "sampling": "mine"},
    "attends": {
        "kv_write": "plainly",
        "paged_attention_decode": "plainly",
        "paged_attention_prefill": "plainly",
    },
}
"""Of each plugin its ops, and what stands for them in the table."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ops")
    for name, source in PLUGINS.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "classes_of_ops.py").write_text(CLASSES)
    return folder


@pytest.fixture
def paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The files of all plugins but some."""
    monkeypatch.setenv("PYTHONPATH", str(folder))  # of the worker processes
    monkeypatch.syspath_prepend(str(folder))
    return lambda *without: [str(folder / f"{name}.py") for name in PLUGINS if name not in without]


def run(
    model: Path, plugins: Sequence[str] = (), **options: Any
) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Tokens, and the ops of each process that has any."""
    if any(path.endswith("attends.py") for path in plugins):
        options["attention_backend"] = "plainly"
    llm = LLM(str(model), plugins=list(plugins), kv_cache_memory_bytes=8 << 20, **options)
    try:
        outputs = llm.generate(PROMPTS, PARAMS)
        reports = llm.plugins.describe(all_processes=True)
        tables = [{row.op: row for row in each.ops} for each in reports if each.ops]
        return [list(output.outputs[0].token_ids) for output in outputs], tables
    finally:
        llm.shutdown()


def implementations(table: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {op: (row.implementation, row.owner) for op, row in table.items()}


def test_every_worker_has_each_plugins_ops_as_long_as_it_has_the_plugin(
    tiny_llama: Path, paths: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    tokens, (plain,) = run(tiny_llama)
    assert all(owner.startswith("hookserve") for _, owner in implementations(plain).values())
    theirs = {
        op: (shown, f"file:{name}") for name, ops in OWNED.items() for op, shown in ops.items()
    }
    for num_ranks in (1, 2):
        got, tables = run(tiny_llama, paths(), tensor_parallel_size=num_ranks)
        assert got == tokens
        assert len(tables) == num_ranks
        for table in tables:
            assert implementations(table) == {**implementations(plain), **theirs}
            assert all(row.built and row.calls for row in table.values() if row.op in theirs)
            assert table["rms_norm"].calls == table["rms_norm"].built * table["attention"].calls / 2
    assert caplog.text.count("file:cuda overrides forward_cuda of silu_and_mul") == 1
    for without in (("exact", "turns"), ("cuda", "attends")):
        got, (table,) = run(tiny_llama, paths(*without))
        assert got == tokens
        restored = {op: implementations(plain)[op] for name in without for op in OWNED[name]}
        assert implementations(table) == {**implementations(plain), **theirs, **restored}


def test_the_list_of_ops_leaves_overrides_out_also_those_of_an_imported_module(
    tiny_llama: Path, paths: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    listed = {"custom_ops": ["none", "+RMSNorm", "+logits_processor"]}
    _, (table,) = run(tiny_llama, paths("turns", "attends"), compilation_config=listed)
    left = {op for op, row in table.items() if row.owner.startswith("file:")}
    assert left == {"rms_norm", "logits_processor"}
    assert "none, so file:cuda's override of silu_and_mul (SiluAndMul) is not" in caplog.text


@pytest.mark.e2e
def test_a_server_tells_who_computes_what_and_whether_it_has_run(
    tiny_llama: Path,
    folder: Path,
    paths: Callable[..., list[str]],
    running_server: Callable[..., RunningServer],
) -> None:
    plugins = [word for path in paths() for word in ("--plugin", path)]
    env = {"PYTHONPATH": str(folder)}
    words = ("--attention-backend", "plainly", "--tensor-parallel-size", "2")
    server = running_server(
        ["--model", str(tiny_llama), "--admin-key", "k", *words, *plugins], env=env
    )
    answer = httpx.get(
        f"{server.base_url}/v1/plugins", headers={"Authorization": "Bearer k"}
    ).json()
    assert set(answer["ops"]) == {"worker 0", "worker 1"}
    asked = ("plugins", "hooks", "--url", server.base_url, "--api-key", "k")
    told = json.loads(run_command([*asked, "--json"], env=env).stdout)
    lines = {(each["process"], each["op"]): each for each in told["ops"]}
    for process, (name, ops) in [(p, each) for p in answer["ops"] for each in OWNED.items()]:
        for op, shown in ops.items():
            line = lines[process, op]
            assert (line["implementation"], line["owner"]) == (shown, f"file:{name}")
            assert line["built"] and line["calls"], "the warm-up ran"
            start = f"op {op} in {process}: {shown} of file:{name}, built {line['built']}, called "
            wait_until(lambda line=start: line in server.stderr, 10, line)
