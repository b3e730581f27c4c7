"""A Llama of random weights by the engine's own core: whether Triton and torch generate the same
tokens, and how fast. Part of ``run.py``.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from run import Bench, Report, Sizes

OPS = ("rms_norm", "silu_and_mul", "rotary_embedding")
"""Those of a Llama that have a provider; attention has its backend."""


class RandomWeights:
    """A plugin: the loader ``random``, which draws weights on the device instead of reading."""

    @staticmethod
    def loader() -> type[Any]:
        import torch

        from hookserve.engine.model_loader import BaseModelLoader

        class Loader(BaseModelLoader):
            def download_model(self, model_config: Any) -> None:
                """There is nothing to fetch."""

            def load_weights(self, model: Any, model_config: Any) -> None:
                spread = model_config.hf_config.hidden_size**-0.5
                for name, weight in model.named_parameters():
                    if "norm" not in name:
                        # Drawn in float32, so that every type rounds the same numbers.
                        seed = zlib.crc32(name.encode())
                        generator = torch.Generator(weight.device).manual_seed(seed)
                        drawn = torch.randn(weight.shape, generator=generator, device=weight.device)
                        weight.data.copy_(drawn * spread)

        return Loader


def plugin() -> object:
    from hookserve.hookspecs import Named, hookimpl

    class Plugin:
        @hookimpl
        def model_loader(self) -> Any:
            return Named("random", RandomWeights.loader())

    return Plugin()


@contextmanager
def engine(bench: Bench, dtype: str, way: str) -> Iterator[Any]:
    """An engine core in this process.

    Args:
        way: ``"torch"``, ``"triton"``, or ``"auto"``: whatever the device takes by itself.
    """
    from hookserve.engine.core import EngineCore
    from hookserve.engine.vllm_config import VllmConfig
    from hookserve.hookspecs import PluginSettings, bootstrap

    settings = PluginSettings(allow=(), platform=bench.device.type)
    host = bootstrap({"engine", "worker"}, settings, objects=[plugin()])
    core = None
    try:
        core = EngineCore(VllmConfig.from_engine_config(make_config(bench, dtype, way)), host)
        yield core
    finally:
        if core is not None:
            core.shutdown()
        host.close()
        bench.finish()


def make_model_config(sizes: Sizes, dtype: str, longest: int) -> Any:
    from hookserve.engine import config as plain

    shape = {
        **sizes.model,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": longest,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    return plain.ModelConfig(
        model="random",
        path="random",
        format="safetensors",
        served_model_names=("random",),
        tokenizer="random",
        hf_config=shape,
        generation_config={},
        architectures=("LlamaForCausalLM",),
        dtype=dtype,
        dtype_reason="the run says so",
        max_model_len=longest,
        vocab_size=sizes.model["vocab_size"],
    )


def make_config(bench: Bench, dtype: str, way: str) -> Any:
    from hookserve.engine import config as plain

    sizes = bench.sizes
    longest = sizes.prompt + sizes.generated
    named = {"torch": "paged", "triton": "triton", "auto": None}[way]
    priority = {} if named is None else {op: [way] for op in OPS}
    if way == "torch":
        priority["kv_write"] = [way]  # of the other backend it is a part
    return plain.EngineConfig(
        model=make_model_config(sizes, dtype, longest),
        cache=plain.CacheConfig(
            block_size=sizes.block_size,
            num_gpu_blocks_override=max(sizes.batches) * -(-longest // sizes.block_size),
            enable_prefix_caching=False,
        ),
        scheduler=plain.SchedulerConfig(
            max_num_seqs=max(sizes.batches), max_num_batched_tokens=max(4096, sizes.prompt)
        ),
        parallel=plain.ParallelConfig(worker_cls="hookserve.engine.worker:Worker"),
        load=plain.LoadConfig(load_format="random"),
        device=plain.DeviceConfig(
            platform=bench.device.type,
            platform_owner="hookserve",
            device_type=bench.device.type,
        ),
        attention_backend=named,
        enforce_eager=True,
        ir_op_priority=priority,
    )


@dataclass
class Generated:
    tokens: list[list[int]]
    prefill_s: float
    """Until the first token of each was there."""
    step_s: float
    """Of the decoding steps that follow, the one in the middle."""


def generate(core: Any, bench: Bench, batch: int, prompt: int) -> Generated:
    """``batch`` random prompts to their ends, greedily."""
    from hookserve.engine.messages import AddRequest
    from hookserve.engine.sampling_params import SamplingParams

    vocab, count = bench.sizes.model["vocab_size"], bench.sizes.generated
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    for row in range(batch):
        ids = [(7919 * (row + 1) + 104729 * at * (row + 3)) % vocab for at in range(prompt)]
        core.add_request(AddRequest(f"{row}", ids, params, arrival_time=time.time()))
    tokens: list[list[int]] = [[] for _ in range(batch)]
    started, prefill_s, steps = time.perf_counter(), 0.0, []
    while core.has_work():
        before = time.perf_counter()
        for output in core.step().outputs:
            if output.error is not None:
                raise RuntimeError(f"request {output.request_id}: {output.error}")
            tokens[int(output.request_id)] += output.new_token_ids
        if prefill_s:
            steps.append(time.perf_counter() - before)
        elif all(tokens):
            prefill_s = time.perf_counter() - started
    core.report_idle()
    return Generated(tokens, prefill_s, sorted(steps)[len(steps) // 2])


def check_model(bench: Bench, report: Report) -> None:
    """The tokens of both ways, in float32, are one another's; and the device takes Triton."""
    prompt = min(bench.sizes.prompt, 300)
    batch = min(8, max(bench.sizes.batches))
    made = {}
    for way in ("torch", "auto" if bench.is_gpu else "triton"):
        with engine(bench, "float32", way) as core:
            made[way] = generate(core, bench, batch, prompt).tokens
            if way != "torch":
                check_choice(core, report)
    by_torch, by_triton = made.values()
    same = sum(one == other for one, other in zip(by_torch, by_triton, strict=True))
    report.check(
        "model, float32: the tokens of Triton and of torch",
        same == batch and all(len(row) == bench.sizes.generated for row in by_torch),
        f"{same} of {batch} sequences of {bench.sizes.generated} tokens are the same",
    )


def check_choice(core: Any, report: Report) -> None:
    rows = {row.op: row for row in core.vllm_config.compilation_config.ops.rows()}
    ran = {op: (rows[op].implementation, rows[op].calls > 0) for op in OPS}
    layer = next(iter(core.vllm_config.compilation_config.static_forward_context.values()))
    ran["attention"] = (layer.attn_backend.get_name(), True)
    said = ", ".join(f"{op}: {name}" for op, (name, _) in ran.items())
    report.check("model: what computes", set(ran.values()) == {("triton", True)}, said)


def time_model(bench: Bench, report: Report) -> None:
    """Prompts and decoding steps in bfloat16, by both ways."""
    for way in ("torch", "triton"):
        with engine(bench, "bfloat16", way) as core:
            facts = core.executor.describe()
            if bench.is_gpu:  # kernels are compiled for what they meet first
                generate(core, bench, max(bench.sizes.batches), bench.sizes.prompt)
            for batch in bench.sizes.batches:
                made = generate(core, bench, batch, bench.sizes.prompt)
                name = f"model by {way}, batch {batch}"
                operations, num_bytes = work_of(bench.sizes, facts, batch)
                report.rate(f"{name}: prompts", made.prefill_s, operations=operations)
                report.rate(f"{name}: a step", made.step_s, num_bytes=num_bytes)
                tokens = batch * bench.sizes.prompt / made.prefill_s, batch / made.step_s
                print(f"     {'':44} {tokens[0]:.0f} and {tokens[1]:.0f} tokens/s", flush=True)


def work_of(sizes: Sizes, facts: dict[str, Any], batch: int) -> tuple[float, float]:
    """Operations of the prompts' products, attention left out; and bytes that a decoding step must
    read: the weights once, and the keys and values of every sequence."""
    shape = sizes.model
    table = shape["vocab_size"] * shape["hidden_size"]
    operations = 2.0 * (facts["num_parameters"] - 2 * table) * batch * sizes.prompt
    token = 2 * shape["num_key_value_heads"] * shape["head_dim"] * shape["num_hidden_layers"]
    seen = batch * (sizes.prompt + sizes.generated / 2)
    # Of the embeddings a step reads only the rows of its tokens.
    return operations, facts["weight_bytes"] - 2 * table + 2 * token * seen
