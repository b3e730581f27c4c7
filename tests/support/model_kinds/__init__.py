"""A plugin with one of each kind that a model is built with, and an observer of what a worker does.

For tests that load it in several processes, as ``PluginSettings(files=("model_kinds",))``. What it
saw stands in its cache folder, a file for each rank.
"""

from __future__ import annotations

import json
from typing import Any

from hookserve.hookspecs import Named, hookimpl


@hookimpl
def quantization() -> Named:
    return Named("int8_rows", "model_kinds.classes:Int8Rows")


@hookimpl
def attention_backend() -> Named:
    return Named("counting", "model_kinds.classes:CountingBackend")


@hookimpl
def model_loader() -> Named:
    return Named("NumPy", "model_kinds.classes:NumPyLoader")


@hookimpl
def hf_config() -> list[Named]:
    return [
        Named("my_llama", "model_kinds.classes:MyLlamaConfig"),
        Named("LlamaForCausalLM", "model_kinds.classes:without_bias"),
    ]


@hookimpl
def weights(iterator: Any, ctx: Any) -> Any:
    for name, tensor in iterator:
        ctx.stash["num_weights"] = ctx.stash.get("num_weights", 0) + 1
        yield name, tensor


@hookimpl
def model_loaded(model: Any, config: Any, ctx: Any) -> None:
    layer = model.model.layers[0]
    quantization = config.quant_config
    ctx.stash["saw"] = {
        "config": type(config.model_config.hf_config).__name__,
        "fused": quantization and quantization.packed_modules_mapping["gate_up_proj"],
        "weight": str(layer.self_attn.qkv_proj.weight.dtype),
        "backend": layer.self_attn.attn.attn_backend.get_name(),
        "num_weights": ctx.stash["num_weights"],
        "before": [],
        "after": [],
    }
    ctx.stash["rank"] = config.parallel_config.rank
    ctx.stash["layer"] = layer.self_attn.attn


@hookimpl
def before_step(batch: Any, ctx: Any) -> None:
    ctx.stash["saw"]["before"].append([batch.step, sum(batch.num_scheduled_tokens.values())])


@hookimpl
def after_step(batch: Any, output: Any, ctx: Any) -> None:
    saw = ctx.stash["saw"]
    saw["after"].append([token for tokens in output.sampled_token_ids for token in tokens])
    saw["num_calls"] = getattr(ctx.stash["layer"].impl, "num_calls", None)
    (ctx.cache_dir / f"rank-{ctx.stash['rank']}.json").write_text(json.dumps(saw))
