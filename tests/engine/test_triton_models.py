"""Whole models with every Triton kernel chosen, in the interpreter: transformers' tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine import LLM, SamplingParams
from hookserve.ops.provided_attention import ATTENTION_OPS
from hookserve.plugins_builtin.op_providers import register_op_provider
from tiny_models import load_reference, write_tiny_model

PROMPTS = [[5, 1, 200], [(7 * at + at * at) % 250 for at in range(17)]]
NEW_TOKENS = 3
OPS = {each.op for each in register_op_provider() if each.name == "triton"} - {*ATTENTION_OPS}


def expected_tokens(folder: Path) -> list[list[int]]:
    model = load_reference(folder)
    found = []
    for prompt in PROMPTS:
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NEW_TOKENS):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        found.append(tokens[len(prompt) :])
    return found


@pytest.mark.parametrize(
    ("name", "layers", "ops"),
    [
        ("llama", 1, {"rms_norm", "silu_and_mul", "rotary_embedding"}),
        ("gemma2", 2, {"gemma_rms_norm", "gelu_and_mul", "rotary_embedding"}),
    ],
)
def test_a_model_gives_the_references_tokens_by_triton_alone(
    name: str, layers: int, ops: set[str], tmp_path: Path, torch_threads: None
) -> None:
    """With windows, which the second prompt outgrows, and capped scores in the second model."""
    folder = write_tiny_model(name, tmp_path, num_hidden_layers=layers)
    options: dict[str, Any] = {
        "attention_backend": "triton",
        "ir_op_priority": {op: ["triton"] for op in sorted(OPS)},
        "max_num_seqs": 4,
        "max_num_batched_tokens": 12,  # so that the second prompt goes in two chunks
        "block_size": 4,
        "num_gpu_blocks_override": 32,
        "max_model_len": 64,
    }
    with LLM(str(folder), **options) as llm:
        params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
        outputs = llm.generate(PROMPTS, params)
        (rows,) = [each.ops for each in llm.plugins.describe(all_processes=True) if each.ops]
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected_tokens(folder)
    by_triton = {row.op for row in rows if row.implementation == "triton"}
    assert by_triton == ops | {*ATTENTION_OPS}
    assert all(row.calls for row in rows if row.op in by_triton)
