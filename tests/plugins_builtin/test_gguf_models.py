"""Each family from a GGUF file: the tokens of transformers with the same weights."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from gguf_converter import Floats, convert_to_gguf
from hookserve.engine.core import EngineCore
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.messages import AddRequest
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Host, PluginSettings, bootstrap
from tiny_models import load_reference, write_tiny_model

TYPES = {"embed_tokens": "Q8_0", "q_proj": "Q5_0", "k_proj": "Q5_1", "down_proj": "Q4_1"}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-biased": {},
    "llama-yarn": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "gemma2": {"query_pre_attn_scalar": 16},
}
PROMPTS = [[(7 * n + 11 * at + at * at) % 250 for at in range(5 + 20 * n)] for n in range(3)]
NEW_TOKENS = 12


@pytest.fixture
def host() -> Iterator[Host]:
    threads = torch.get_num_threads()
    host = bootstrap({"front", "engine", "worker"}, PluginSettings(no_plugins=True))
    yield host
    host.close()
    torch.set_num_threads(threads)


def reference_tokens(folder: Path, weights: dict[str, Floats]) -> list[list[int]]:
    model = load_reference(folder)
    tensors = {name: torch.from_numpy(numpy.ascontiguousarray(w)) for name, w in weights.items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        found.append(generated[0, len(prompt) :].tolist())
    return found


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path, host: Host) -> None:
    folder = write_tiny_model(name, tmp_path / "folder", **MODELS[name])
    weights = convert_to_gguf(folder, tmp_path / "tiny.gguf", types=TYPES)
    args = EngineArgs(model=str(tmp_path / "tiny.gguf"), dtype="float32", max_model_len=128)
    core = EngineCore(VllmConfig.from_engine_config(args.to_engine_config(host)), host)
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    for n, prompt in enumerate(PROMPTS):
        core.add_request(AddRequest(str(n), prompt, params, time.time()))
    tokens: list[list[int]] = [[] for _ in PROMPTS]
    while core.has_work():
        for output in core.step().outputs:
            tokens[int(output.request_id)] += output.new_token_ids
    assert tokens == reference_tokens(folder, weights)
    assert len({token for answer in tokens for token in answer}) > 3
