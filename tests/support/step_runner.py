"""Runs a model class step by step over a paged cache, as an engine would, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from hookserve.engine import config as plain
from hookserve.engine.model_files import read_model_files
from hookserve.engine.model_loader import (
    DefaultModelLoader,
    GGUFModelLoader,
    initialize_model,
)
from hookserve.engine.vllm_config import ModelConfig, VllmConfig
from hookserve.ops.context import AttentionMetadata, ForwardContext, set_forward_context
from hookserve.plugins_builtin.llama import LlamaForCausalLM


def make_vllm_config(
    path: Path | str, dtype: str = "float32", max_model_len: int = 512, block_size: int = 16
) -> VllmConfig:
    files = read_model_files(str(path))
    return VllmConfig.from_engine_config(
        plain.EngineConfig(
            model=plain.ModelConfig(
                model=str(path),
                path=str(path),
                format=files.format,
                served_model_names=("test",),
                tokenizer=str(path),
                hf_config=files.hf_config,
                generation_config=files.generation_config,
                architectures=tuple(files.hf_config["architectures"]),
                dtype=dtype,
                dtype_reason="the test says so",
                max_model_len=max_model_len,
                vocab_size=files.hf_config["vocab_size"],
            ),
            cache=plain.CacheConfig(block_size=block_size),
            scheduler=plain.SchedulerConfig(),
            parallel=plain.ParallelConfig(),
            load=plain.LoadConfig(),
            device=plain.DeviceConfig(platform="test", platform_owner="test"),
        )
    )


class LoaderOf:
    """Mixin: a loader that builds the given class, whatever the checkpoint says."""

    model_class: type[Any] = LlamaForCausalLM

    def create_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = ""
    ) -> Any:
        return initialize_model(
            vllm_config, prefix=prefix, model_class=self.model_class, model_config=model_config
        )


def load_model(vllm_config: VllmConfig, model_class: type[Any] = LlamaForCausalLM) -> Any:
    is_gguf = vllm_config.model_config.format == "gguf"
    base = GGUFModelLoader if is_gguf else DefaultModelLoader
    loader = type("Loader", (LoaderOf, base), {"model_class": model_class})
    return loader(vllm_config.load_config).load_model(vllm_config, vllm_config.model_config)


class StepRunner:
    """A loaded model and its cache. Sequences are lists of block numbers chosen by the test."""

    def __init__(self, vllm_config: VllmConfig, model: Any, num_blocks: int = 64) -> None:
        self.model = model
        self.block_size = vllm_config.cache_config.block_size
        self.layers = vllm_config.compilation_config.static_forward_context
        for layer in self.layers.values():
            shape = layer.kv_cache_shape(num_blocks, self.block_size)
            layer.bind_kv_cache(torch.zeros(shape, dtype=layer.dtype))

    def step(self, batch: Sequence[tuple[list[int], int, list[int]]]) -> torch.Tensor:
        """Run ``(new tokens, tokens before them, blocks)`` of each sequence.

        Returns the logits of every new token, ``[tokens, vocab]``. Sequences that decode (one
        token after others) must come first.
        """
        metadata, ids, positions = self._metadata(batch)
        with (
            torch.inference_mode(),
            set_forward_context(ForwardContext(metadata, self.layers)),
        ):
            hidden = self.model(torch.tensor(ids), torch.tensor(positions))
            logits: torch.Tensor = self.model.compute_logits(hidden)
            return logits

    def _metadata(
        self, batch: Sequence[tuple[list[int], int, list[int]]]
    ) -> tuple[AttentionMetadata, list[int], list[int]]:
        size = self.block_size
        width = max(len(blocks) for _, _, blocks in batch)
        tables = torch.zeros(len(batch), width, dtype=torch.int64)
        starts, lengths, ids, positions, slots = [0], [], [], [], []
        for row, (tokens, before, blocks) in enumerate(batch):
            tables[row, : len(blocks)] = torch.tensor(blocks)
            places = range(before, before + len(tokens))
            ids += tokens
            positions += places
            slots += [blocks[place // size] * size + place % size for place in places]
            starts.append(len(ids))
            lengths.append(before + len(tokens))
        decodes = sum(1 for tokens, before, _ in batch if len(tokens) == 1 and before)
        metadata = AttentionMetadata(
            num_reqs=len(batch),
            num_tokens=len(ids),
            num_decode_reqs=decodes,
            query_start_loc=starts,
            seq_lens=lengths,
            block_tables=tables,
            slot_mapping=torch.tensor(slots),
            block_size=size,
        )
        return metadata, ids, positions
