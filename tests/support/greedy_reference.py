"""Transformers' greedy tokens, and by how much each won.

``greedy_reference.py FOLDER PROMPTS.json NUM_TOKENS OUT.json``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache


@torch.inference_mode()
def continue_greedily(
    model: torch.nn.Module, prompt: list[int], num_tokens: int
) -> dict[str, list[float]]:
    cache = DynamicCache()
    tokens: list[float] = []
    gaps: list[float] = []
    fed = torch.tensor([prompt])
    for _ in range(num_tokens):
        logits = model(input_ids=fed, past_key_values=cache, use_cache=True).logits[0, -1]
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        fed = best.indices[:1].unsqueeze(0)
    return {"tokens": tokens, "gaps": gaps}


def main(folder: str, prompts: Path, num_tokens: int, out: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = [
        continue_greedily(model, prompt, num_tokens) for prompt in json.loads(prompts.read_text())
    ]
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
