"""An engine whose model is arithmetic: real scheduler, cache, runner and sampler, no weights.

The model keeps the ids of tokens in its cache where a real one keeps keys and values, and its
next token is a sum over the whole context as it reads it back. So a wrong block, slot or position
changes the output, and the right output is a line of Python (``continuation``).
"""

from __future__ import annotations

import time
from typing import Any

import torch

from hookserve.engine.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from hookserve.engine.messages import AddRequest, EngineCoreOutput
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.engine.worker import Worker
from hookserve.ops.context import get_forward_context
from hookserve.ops.kv_cache_spec import FullAttentionSpec

VOCAB = 97
POISON = 96
"""A prompt with this token gets logits that are not numbers."""


def next_token(context: list[int]) -> int:
    return (7 + sum((at + 1) * (token * token + 1) for at, token in enumerate(context))) % (
        VOCAB - 1
    )


def continuation(prompt: list[int], count: int) -> list[int]:
    """The ``count`` greedy tokens after the prompt."""
    context = list(prompt)
    for _ in range(count):
        context.append(next_token(context))
    return context[len(prompt) :]


class FakeLayer(torch.nn.Module):
    """Stands where attention does; its cache is ``[blocks, block_size, 2]``: token, position."""

    kv_cache: torch.Tensor

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> FullAttentionSpec:
        return FullAttentionSpec(vllm_config.cache_config.block_size, 1, 1, torch.int32)

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        return (num_blocks, block_size, 2)

    def bind_kv_cache(self, tensor: torch.Tensor) -> None:
        self.kv_cache = tensor

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> list[list[int]]:
        """The context of each token of the step, itself included."""
        metadata = get_forward_context().attn_metadata
        assert metadata is not None
        cells = self.kv_cache.view(-1, 2)
        assert int(metadata.slot_mapping.min()) >= metadata.block_size, "block 0 is written"
        cells[metadata.slot_mapping, 0] = input_ids.int()
        cells[metadata.slot_mapping, 1] = positions.int()
        contexts = []
        for row in range(metadata.num_reqs):
            start, end = metadata.query_start_loc[row : row + 2]
            assert row >= metadata.num_decode_reqs or end == start + 1
            length = metadata.seq_lens[row]
            gathered = self.kv_cache[metadata.block_tables[row]].reshape(-1, 2)[:length]
            assert gathered[:, 1].tolist() == list(range(length)), "a position is not in its place"
            tokens = gathered[:, 0].tolist()
            contexts += [tokens[: length - (end - start) + at + 1] for at in range(end - start)]
        return contexts


class FakeModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.layer = FakeLayer()

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Any = None,
    ) -> torch.Tensor:
        contexts = self.layer(input_ids, positions)
        return torch.tensor(
            [[next_token(c), float(POISON in c)] for c in contexts], dtype=torch.float32
        )

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The best token by far is ``next_token``; the others form a smooth tail."""
        best = hidden[:, :1]
        logits = -((torch.arange(VOCAB)[None] - best).abs() ** 0.5)
        logits[hidden[:, 1] > 0] = torch.nan
        return logits


class FakeWorker(Worker):
    def load_model(self) -> None:
        self.runner.model = FakeModel()
        context = self.vllm_config.compilation_config.static_forward_context
        context["layer"] = self.runner.model.layer


class RaisingModel(FakeModel):
    """Raises at a token above 88, so not in the warm-up."""

    def forward(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if (input_ids > 88).any():
            raise ValueError("the third matrix is missing")
        return super().forward(input_ids, *args, **kwargs)


class RaisingWorker(FakeWorker):
    def load_model(self) -> None:
        super().load_model()
        self.runner.model.__class__ = RaisingModel


def make_config(
    *,
    num_blocks: int | None = 64,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 128,
    prefix_caching: bool = True,
    seed: int = 0,
    worker_cls: str = "fake_engine:FakeWorker",
    dtype: str = "float32",
    policy: str = "fcfs",
    logits_processors: tuple[str, ...] = (),
    grammar_backend: str = "toy_grammars:ToyBackend",
) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(
            model="fake",
            path="/nowhere",
            format="safetensors",
            served_model_names=("fake",),
            tokenizer="/nowhere",
            hf_config={},
            generation_config={},
            architectures=("FakeForCausalLM",),
            dtype=dtype,
            dtype_reason="a test",
            max_model_len=max_model_len,
            vocab_size=VOCAB,
            seed=seed,
            logits_processors=logits_processors,
        ),
        cache=CacheConfig(
            block_size=block_size,
            num_gpu_blocks_override=num_blocks,
            enable_prefix_caching=prefix_caching,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            policy=policy,
        ),
        parallel=ParallelConfig(worker_cls=worker_cls),
        load=LoadConfig(),
        structured_outputs=StructuredOutputsConfig(backend=grammar_backend),
        device=DeviceConfig(
            platform="hookserve.plugins_builtin.cpu_platform:CpuPlatform",
            platform_owner="hookserve:builtin:cpu",
        ),
    )


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    max_tokens: int = 4,
    temperature: float = 0.0,
    cache_salt: str | None = None,
    priority: int = 0,
    **params: Any,
) -> AddRequest:
    return AddRequest(
        request_id,
        prompt,
        SamplingParams(max_tokens=max_tokens, temperature=temperature, **params),
        arrival_time=time.time(),
        cache_salt=cache_salt,
        priority=priority,
    )


class Collected:
    """What the engine said of each request, folded."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, EngineCoreOutput] = {}

    def add(self, outputs: list[EngineCoreOutput]) -> None:
        for output in outputs:
            ended = self.last.get(output.request_id)
            assert ended is None or ended.finish_reason is None, f"spoke after its end: {output}"
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            self.last[output.request_id] = output
