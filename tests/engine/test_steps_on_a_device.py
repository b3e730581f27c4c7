"""A step on another device than the CPU: each tensor is where the model is.

There is no such device: torch's fake tensors have a device and no numbers, and refuse to be mixed
with those of another one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from hookserve.engine.model_loader import initialize_model, process_weights_after_loading
from hookserve.ops.context import AttentionMetadata, ForwardContext, set_forward_context
from hookserve.plugins_builtin.gemma2 import Gemma2ForCausalLM
from hookserve.plugins_builtin.llama import LlamaForCausalLM
from hookserve.plugins_builtin.opt import OPTForCausalLM
from step_runner import make_vllm_config
from tiny_models import write_tiny_model

BLOCK = 4
ELSEWHERE = torch.device("meta")


def make_model(folder: Path, model_class: type[Any]) -> tuple[Any, dict[str, Any]]:
    """A model without its weights on the device, and its attention layers, which have caches."""
    tree = make_vllm_config(folder, "bfloat16", block_size=BLOCK)
    tree.device_config.device_type = ELSEWHERE.type
    model = initialize_model(tree, model_class=model_class)
    process_weights_after_loading(model, tree.model_config)
    layers = tree.compilation_config.static_forward_context
    for layer in layers.values():
        shape = layer.kv_cache_shape(64, BLOCK)
        layer.bind_kv_cache(torch.zeros(shape, dtype=layer.dtype, device=ELSEWHERE))
    return model, layers


def a_step(lengths: list[int], new: list[int]) -> AttentionMetadata:
    """Sequences of these lengths, of which so many tokens are new."""
    ends = [sum(new[:count]) for count in range(len(new) + 1)]
    width = -(-max(lengths) // BLOCK)
    return AttentionMetadata(
        num_reqs=len(new),
        num_tokens=ends[-1],
        num_decode_reqs=new.count(1),
        query_start_loc=ends,
        seq_lens=lengths,
        block_tables=torch.zeros(len(new), width, dtype=torch.int64, device=ELSEWHERE),
        slot_mapping=torch.zeros(ends[-1], dtype=torch.int64, device=ELSEWHERE),
        block_size=BLOCK,
    )


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor:UserWarning")
@pytest.mark.parametrize(
    ("name", "model_class"),
    [
        ("llama", LlamaForCausalLM),
        ("gemma2", Gemma2ForCausalLM),  # a window, capped scores, another norm
        ("opt", OPTForCausalLM),
    ],
)
def test_whatever_a_step_makes_is_on_the_models_device(
    name: str, model_class: type[Any], tmp_path: Path
) -> None:
    folder = write_tiny_model(name, tmp_path / "model")
    steps = [
        ([7], [7]),  # a prompt
        ([70, 40], [9, 30]),  # chunks behind what is in the cache
        ([33], [1]),
        ([33, 9, 400, 1], [1, 1, 1, 1]),  # in two groups
        ([33, 9, 12], [1, 1, 5]),
    ]
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, layers = make_model(folder, model_class)
        assert {weight.device for weight in model.parameters()} == {ELSEWHERE}
        for lengths, new in steps:
            metadata = a_step(lengths, new)
            ids = torch.zeros(metadata.num_tokens, dtype=torch.int64, device=ELSEWHERE)
            context = set_forward_context(ForwardContext(metadata, layers))
            try:
                with torch.no_grad(), context:
                    hidden = model(input_ids=ids, positions=ids)
                    logits = model.compute_logits(hidden)
            except RuntimeError as error:
                raise AssertionError(f"in a step of {new} of {lengths} tokens: {error}") from error
            assert logits.device == ELSEWHERE and len(logits) == metadata.num_tokens
