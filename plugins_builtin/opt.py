"""The OPT architecture: learned positions, layer norms, biases, and a plain feed-forward layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hookserve.engine.model_interfaces import SupportsLoRA, SupportsPP
from hookserve.engine.vllm_config import VllmConfig
from hookserve.engine.weights import (
    IntermediateTensors,
    WeightsMapper,
    make_empty_intermediate_tensors_factory,
    make_layers,
    maybe_prefix,
)
from hookserve.ops.activation import get_act_fn
from hookserve.ops.attention import Attention
from hookserve.ops.linear import (
    ColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from hookserve.ops.vocab_parallel_embedding import VocabParallelEmbedding

from .causal_lm import CausalLM, Wrapper
from .config_fields import refuse_field


class OPTLearnedPositionalEmbedding(nn.Embedding):
    """Rows of positions; the checkpoint's first two belong to no position."""

    OFFSET = 2

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__(num_embeddings + self.OFFSET, embedding_dim)

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` to ``[tokens, embedding_dim]``."""
        return super().forward(positions + self.OFFSET)


class OPTAttention(nn.Module):
    """Attention with one key head for each head, and no rotation."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        cache_config: Any = None,
        quant_config: Any = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.qkv_proj = QKVParallelLinear(
            embed_dim,
            self.head_dim,
            num_heads,
            bias=bias,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        self.num_heads = self.qkv_proj.num_heads
        self.out_proj = RowParallelLinear(
            embed_dim, embed_dim, bias=bias, quant_config=quant_config, prefix=f"{prefix}.out_proj"
        )
        self.attn = Attention(
            self.num_heads,
            self.head_dim,
            self.scaling,
            cache_config=cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """``[tokens, hidden]`` to the same shape."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.chunk(3, dim=-1)
        output, _ = self.out_proj(self.attn(q, k, v))
        return output  # type: ignore[no-any-return]


class OPTDecoderLayer(nn.Module):
    """Attention and feed-forward, each added to what it was given, and normalised before it
    (``do_layer_norm_before``) or after the sum."""

    def __init__(
        self, config: Any, cache_config: Any = None, quant_config: Any = None, prefix: str = ""
    ) -> None:
        super().__init__()
        self.config = config
        self.embed_dim = size = config.hidden_size
        if size % config.num_attention_heads:
            heads = config.num_attention_heads
            raise refuse_field("hidden_size", size, f"a multiple of the {heads} heads")
        bias = getattr(config, "enable_bias", True)
        self.do_layer_norm_before = getattr(config, "do_layer_norm_before", True)
        self.self_attn = OPTAttention(
            size,
            config.num_attention_heads,
            bias=bias,
            cache_config=cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.self_attn",
        )
        self.self_attn_layer_norm = _layer_norm(config)
        self.fc1 = ColumnParallelLinear(
            size, config.ffn_dim, bias=bias, quant_config=quant_config, prefix=f"{prefix}.fc1"
        )
        self.activation_fn = _activation(config)
        self.fc2 = RowParallelLinear(
            config.ffn_dim, size, bias=bias, quant_config=quant_config, prefix=f"{prefix}.fc2"
        )
        self.final_layer_norm = _layer_norm(config)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """``[tokens, hidden]`` to the same shape."""
        hidden_states = self._add(hidden_states, self.self_attn, self.self_attn_layer_norm)
        return self._add(hidden_states, self._feed_forward, self.final_layer_norm)

    def _add(self, x: torch.Tensor, part: Any, norm: nn.LayerNorm) -> torch.Tensor:
        if self.do_layer_norm_before:
            added: torch.Tensor = x + part(norm(x))
            return added
        normalised: torch.Tensor = norm(x + part(x))
        return normalised

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        inner, _ = self.fc1(x)
        output, _ = self.fc2(self.activation_fn(inner))
        return output  # type: ignore[no-any-return]


class OPTDecoder(nn.Module):
    """Embeddings, layers and the final norm; ``project_in`` and ``project_out`` where token
    embeddings have another size than the layers (``word_embed_proj_dim``)."""

    def __init__(
        self, config: Any, cache_config: Any = None, quant_config: Any = None, prefix: str = ""
    ) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab_size
        inner, outer = config.hidden_size, word_size(config)
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size,
            outer,
            quant_config=quant_config,
            prefix=maybe_prefix(prefix, "embed_tokens"),
        )
        self.embed_positions = OPTLearnedPositionalEmbedding(config.max_position_embeddings, inner)
        self.project_in = self.project_out = None
        if outer != inner:
            self.project_in = _projection(outer, inner, quant_config, f"{prefix}.project_in")
            self.project_out = _projection(inner, outer, quant_config, f"{prefix}.project_out")
        self.final_layer_norm = None
        # Checkpoints tuned with an old version of the architecture say that they have none.
        is_removed = getattr(config, "_remove_final_layer_norm", False)
        if getattr(config, "do_layer_norm_before", True) and not is_removed:
            self.final_layer_norm = _layer_norm(config)
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers,
            lambda prefix: OPTDecoderLayer(config, cache_config, quant_config, prefix=prefix),
            prefix=f"{prefix}.layers",
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` to ``[tokens, word size]``."""
        return self.embed_tokens(input_ids)  # type: ignore[no-any-return]

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[tokens]`` ids (or embeddings) and positions to ``[tokens, word size]``."""
        if intermediate_tensors is not None:
            hidden_states = intermediate_tensors["hidden_states"]
        else:
            if inputs_embeds is None:
                assert input_ids is not None
                inputs_embeds = self.embed_input_ids(input_ids)
            if self.project_in is not None:
                inputs_embeds = self.project_in(inputs_embeds)
            hidden_states = inputs_embeds + self.embed_positions(positions)
        for layer in self.layers[self.start_layer : self.end_layer]:
            hidden_states = layer(hidden_states)
        if self.final_layer_norm is not None:
            hidden_states = self.final_layer_norm(hidden_states)
        if self.project_out is not None:
            hidden_states = self.project_out(hidden_states)
        return hidden_states


class OPTModel(Wrapper):
    """The decoder under the name that checkpoints give it."""

    inner = "decoder"

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config: Any = vllm_config.model_config.hf_text_config
        self.decoder = OPTDecoder(
            config,
            vllm_config.cache_config,
            vllm_config.quant_config,
            prefix=maybe_prefix(prefix, "decoder"),
        )
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states"], config.hidden_size
        )


class OPTForCausalLM(CausalLM, SupportsPP, SupportsLoRA):
    """``OPTModel`` and its head, tied unless the configuration says otherwise."""

    packed_modules_mapping: dict[str, list[str]] = {  # noqa: RUF012 - read by name, as plain data
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    }
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_stacked={
            ".q_proj": (".qkv_proj", "q"),
            ".k_proj": (".qkv_proj", "k"),
            ".v_proj": (".qkv_proj", "v"),
        },
        orig_to_new_prefix={"decoder.": "model.decoder."},
    )
    is_tied_by_default = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config)
        self.model = OPTModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"))
        self._init_head(self.model.decoder.embed_tokens, prefix)


def word_size(config: Any) -> int:
    return int(getattr(config, "word_embed_proj_dim", None) or config.hidden_size)


def _layer_norm(config: Any) -> nn.LayerNorm:
    has_weights = getattr(config, "layer_norm_elementwise_affine", True)
    return nn.LayerNorm(config.hidden_size, elementwise_affine=has_weights)


def _activation(config: Any) -> nn.Module:
    name = config.activation_function
    try:
        return get_act_fn(name)
    except ValueError as error:
        raise refuse_field("activation_function", name, str(error)) from error


def _projection(inputs: int, outputs: int, quant_config: Any, prefix: str) -> ReplicatedLinear:
    return ReplicatedLinear(
        inputs, outputs, bias=False, quant_config=quant_config, prefix=prefix, return_bias=False
    )
