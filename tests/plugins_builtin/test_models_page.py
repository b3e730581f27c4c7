"""``docs/models.md`` names what is served, and its subclass is a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hookserve.engine.gguf_families import FAMILIES
from hookserve.engine.gguf_quant import TYPE_BLOCKS
from hookserve.engine.text.gguf_byte_level import RULES
from hookserve.plugins_builtin import llama
from hookserve.plugins_builtin.models import MODULES
from step_runner import StepRunner, load_model, make_vllm_config


@pytest.fixture(scope="module")
def page(source_root: Path) -> str:
    return (source_root / "docs" / "models.md").read_text(encoding="utf-8")


def names_of(page: str, start: str, column: int = 2) -> set[str]:
    """What stands between backticks in a cell of the table row that starts so."""
    (row,) = [line for line in page.splitlines() if line.startswith(start)]
    return set(re.findall(r"`([\w.-]+)`", row.split("|")[column]))


def test_the_architectures_and_their_files(page: str) -> None:
    rows = re.findall(r"^\| `(\w+ForCausalLM)` \| `(\w+)\.py` \|", page, re.MULTILINE)
    assert dict(rows) == MODULES


def test_what_a_gguf_file_may_hold(page: str) -> None:
    assert names_of(page, "| tensor types |") == set(TYPE_BLOCKS)
    assert names_of(page, "| `tokenizer.ggml.pre`") == set(RULES)
    for family in FAMILIES:
        assert names_of(page, f"| `{family}` |") <= {*MODULES, "attention.sliding_window"}


def test_the_subclass_of_the_page_is_a_model(page: str, tiny_llama: Path) -> None:
    (code,) = re.findall(r"```python\n(class ToyAttention.*?)```", page, re.DOTALL)
    names: dict[str, Any] = dict(vars(llama))
    exec(code, names)

    def logits(model_class: Any) -> torch.Tensor:
        config = make_vllm_config(tiny_llama, "float32", max_model_len=64, block_size=4)
        runner = StepRunner(config, load_model(config, model_class), num_blocks=8)
        return runner.step([([1, 2, 3, 4], 0, [1, 2])])

    plain, scaled = logits(llama.LlamaForCausalLM), logits(names["ToyForCausalLM"])
    assert plain.shape == scaled.shape
    assert not torch.allclose(plain, scaled)
