"""``arguments_of``: the settings of a server under the names of vLLM's arguments, as endpoint
plugins are given them.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import msgspec

from hookserve.engine.config import EngineConfig
from hookserve.server.settings import ServerSettings

_NOT_SHOWN = ("api_key", "admin_key", "authenticator", "single_process", "dry_run")
"""Fields of the server's settings: keys are nobody's to read, and vLLM does not have the rest."""


def arguments_of(settings: ServerSettings, config: EngineConfig) -> Namespace:
    """What the server and its engine run with; tuples are lists, as argparse makes them.

    An argument of vLLM's that this server does not have is no attribute.
    """
    server = msgspec.structs.asdict(settings)
    shown = {name: value for name, value in server.items() if name not in _NOT_SHOWN}
    return Namespace(**{name: _plain(value) for name, value in (shown | _engine(config)).items()})


def _engine(config: EngineConfig) -> dict[str, Any]:
    model, cache, scheduler, parallel = (
        config.model,
        config.cache,
        config.scheduler,
        config.parallel,
    )
    return {
        "model": model.model,
        "model_tag": model.model,
        "tokenizer": model.tokenizer,
        "served_model_name": model.served_model_names,
        "dtype": model.dtype,
        "max_model_len": model.max_model_len,
        "max_logprobs": model.max_logprobs,
        "quantization": model.quantization,
        "seed": model.seed,
        "logits_processors": model.logits_processors or None,
        "chat_template": model.chat_template,
        "tool_call_parser": model.tool_call_parser,
        "reasoning_parser": model.reasoning_parser or "",
        "block_size": cache.block_size,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "num_gpu_blocks_override": cache.num_gpu_blocks_override,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "scheduling_policy": scheduler.policy,
        "scheduler_cls": scheduler.scheduler_cls,
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "distributed_executor_backend": parallel.distributed_executor_backend,
        "worker_cls": parallel.worker_cls,
        "worker_extension_cls": parallel.worker_extension_cls,
        "load_format": config.load.load_format,
        "attention_backend": config.attention_backend,
        "enforce_eager": config.enforce_eager,
        "additional_config": config.additional_config,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, dict) else value
