"""Our logits beside transformers', both fed the same tokens.

``teacher_forced.py FLOAT32_FOLDER BFLOAT16_FOLDER SEQUENCES.json`` prints one line of JSON. Ours
come from the engine's own worker and runner: paged KV cache, the loader, the packed weights, all
of it; only the scheduler and the sampler are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.executor import UniProcExecutor
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.step import NewRequestData, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Host, PluginSettings, bootstrap
from hookserve.ops.context import ForwardContext, set_forward_context

NUM_BLOCKS = 64
MAX_LEN = 512

Logits = Callable[[list[int]], torch.Tensor]
"""Token ids to logits [tokens, vocabulary] float32."""


def theirs(folder: str, dtype: torch.dtype) -> Logits:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def logits(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()

    return logits


def ours(folder: str, dtype: str, host: Host) -> Logits:
    arguments = EngineArgs(model=folder, dtype=dtype, max_model_len=MAX_LEN)
    config = VllmConfig.from_engine_config(arguments.to_engine_config(host))
    executor = UniProcExecutor(config)
    executor.initialize_cache(NUM_BLOCKS)
    runner = executor.worker.runner
    block_size = config.cache_config.block_size
    number = iter(range(1 << 30))

    def logits(tokens: list[int]) -> torch.Tensor:
        name = f"sequence-{next(number)}"
        blocks = list(range(1, 1 + -(-len(tokens) // block_size)))
        new = NewRequestData(name, tokens, SamplingParams(max_tokens=1), blocks, 0)
        step = SchedulerOutput(
            scheduled_new_reqs=[new],
            num_scheduled_tokens={name: len(tokens)},
            total_num_scheduled_tokens=len(tokens),
        )
        with torch.inference_mode():
            runner._update_states(step)
            inputs = runner._prepare_inputs(step)
            context = ForwardContext(inputs.attn_metadata, runner.attention_layers())
            with set_forward_context(context):
                hidden = runner.model(input_ids=inputs.input_ids, positions=inputs.positions)
                found = runner.model.compute_logits(hidden).float()
            runner._update_states(SchedulerOutput(finished_req_ids={name}))
        return found

    return logits


def main(f32_folder: str, bf16_folder: str, sequences: list[list[int]]) -> dict[str, float]:
    host = bootstrap(["front", "engine", "worker"], PluginSettings(no_plugins=True))
    exact = theirs(f32_folder, torch.float32)
    ours_f32 = ours(f32_folder, "float32", host)
    ours_bf16 = ours(bf16_folder, "bfloat16", host)
    theirs_bf16 = theirs(bf16_folder, torch.bfloat16)
    positions = missed = missed_theirs = 0
    difference = widest = 0.0
    for tokens in sequences:
        want = exact(tokens)
        difference = max(difference, float((want - ours_f32(tokens)).abs().max()))
        best = want.topk(2)
        right = best.indices[:, 0]
        wrong = ours_bf16(tokens).argmax(-1) != right
        positions += len(right)
        missed += int(wrong.sum())
        missed_theirs += int((theirs_bf16(tokens).argmax(-1) != right).sum())
        gaps = (best.values[:, 0] - best.values[:, 1])[wrong]
        widest = max(widest, float(gaps.max()) if len(gaps) else 0.0)
    return {
        "positions": positions,
        "f32_max_difference": difference,
        "bf16_ours": missed,
        "bf16_theirs": missed_theirs,
        "bf16_gap": widest,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], json.loads(Path(sys.argv[3]).read_text()))))
