"""The Llama architecture: SmolLM2, Llama 2 and 3, and what others share with it.

The classes and attributes are those that models of other packages subclass; the contract is
described in ``docs/models.md``. Layers come from ``ops``; the step's batch reaches them through
the forward context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from hookserve.engine.model_interfaces import SupportsLoRA, SupportsPP
from hookserve.engine.vllm_config import VllmConfig
from hookserve.engine.weights import (
    AutoWeightsLoader,
    IntermediateTensors,
    WeightsMapper,
    make_empty_intermediate_tensors_factory,
    make_layers,
    maybe_prefix,
)
from hookserve.ops.activation import get_act_and_mul_fn
from hookserve.ops.attention import Attention
from hookserve.ops.context import get_tp_group
from hookserve.ops.layernorm import RMSNorm
from hookserve.ops.linear import (
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from hookserve.ops.vocab_parallel_embedding import VocabParallelEmbedding

from .causal_lm import CausalLM
from .config_fields import head_size, layer_window, num_key_heads, refuse_field, rope_of


class LlamaMLP(nn.Module):
    """Gated feed-forward layer: ``down(act(gate(x)) * up(x))``."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str,
        quant_config: Any = None,
        bias: bool = False,
        prefix: str = "",
        reduce_results: bool = True,
        disable_tp: bool = False,
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden_size,
            [intermediate_size] * 2,
            bias=bias,
            quant_config=quant_config,
            prefix=f"{prefix}.gate_up_proj",
            disable_tp=disable_tp,
        )
        self.down_proj = RowParallelLinear(
            intermediate_size,
            hidden_size,
            bias=bias,
            quant_config=quant_config,
            reduce_results=reduce_results,
            prefix=f"{prefix}.down_proj",
            disable_tp=disable_tp,
        )
        try:
            self.act_fn = get_act_and_mul_fn(hidden_act)
        except ValueError as error:
            raise refuse_field("hidden_act", hidden_act, str(error)) from error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x: [tokens, hidden]`` to the same shape."""
        gate_up, _ = self.gate_up_proj(x)
        output, _ = self.down_proj(self.act_fn(gate_up))
        return output  # type: ignore[no-any-return]


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions."""

    config_defaults: ClassVar[Mapping[str, Any]] = {}
    """What the architecture takes for keys of attention that a configuration does not state."""

    def __init__(
        self,
        config: Any,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        max_position_embeddings: int = 8192,
        quant_config: Any = None,
        bias: bool = False,
        bias_o_proj: bool = False,
        cache_config: Any = None,
        prefix: str = "",
        attn_type: str = "decoder",
    ) -> None:
        super().__init__()
        tp_size = get_tp_group().world_size
        self.hidden_size = hidden_size
        self.total_num_heads = num_heads
        self.total_num_kv_heads = num_kv_heads
        self.head_dim = head_size(config)
        self.num_heads = num_heads // tp_size
        self.num_kv_heads = max(1, num_kv_heads // tp_size)
        self.q_size = self.num_heads * self.head_dim
        self.kv_size = self.num_kv_heads * self.head_dim
        self.scaling = self.score_scale(config)
        self.max_position_embeddings = max_position_embeddings
        self.qkv_proj = QKVParallelLinear(
            hidden_size,
            self.head_dim,
            num_heads,
            num_kv_heads,
            bias=bias,
            quant_config=quant_config,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            num_heads * self.head_dim,
            hidden_size,
            bias=bias_o_proj,
            quant_config=quant_config,
            prefix=f"{prefix}.o_proj",
        )
        self._init_rotary_emb(config, quant_config=quant_config)
        self.attn = Attention(
            self.num_heads,
            self.head_dim,
            self.scaling,
            num_kv_heads=self.num_kv_heads,
            cache_config=cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
            attn_type=attn_type,
            **self.attention_options(config, prefix),
        )

    def _init_rotary_emb(self, config: Any, quant_config: Any) -> None:
        """Set ``self.rotary_emb``; a subclass may set another one."""
        del quant_config
        self.rotary_emb = rope_of(config, self.head_dim, self.max_position_embeddings)

    def score_scale(self, config: Any) -> float:
        """What a query's products with keys are multiplied by."""
        del config
        return float(self.head_dim**-0.5)

    def attention_options(self, config: Any, prefix: str) -> dict[str, Any]:
        """What ``Attention`` is told besides its sizes."""
        return {"per_layer_sliding_window": layer_window(config, prefix, self.config_defaults)}

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """``positions: [tokens]``, ``hidden_states: [tokens, hidden]`` to ``[tokens, hidden]``."""
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split_with_sizes((self.q_size, self.kv_size, self.kv_size), dim=-1)
        q, k = self.rotary_emb(positions, q, k)
        output, _ = self.o_proj(self.attn(q, k, v))
        return output  # type: ignore[no-any-return]


class LlamaDecoderLayer(nn.Module):
    """One layer: attention and feed-forward, each normalised before and added after."""

    attention_class: ClassVar[type[nn.Module]] = LlamaAttention
    mlp_class: ClassVar[type[nn.Module]] = LlamaMLP
    norm_class: ClassVar[type[nn.Module]] = RMSNorm

    def __init__(
        self,
        vllm_config: VllmConfig,
        prefix: str = "",
        config: Any = None,
        attn_layer_type: type[nn.Module] | None = None,
    ) -> None:
        super().__init__()
        attn_layer_type = attn_layer_type or self.attention_class
        config = config or vllm_config.model_config.hf_text_config
        quant_config = self.get_quant_config(vllm_config)
        bias, bias_o_proj = self.attention_biases(config)
        self.hidden_size = config.hidden_size
        self.self_attn = attn_layer_type(
            config=config,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=num_key_heads(config),
            max_position_embeddings=getattr(config, "max_position_embeddings", 8192),
            quant_config=quant_config,
            bias=bias,
            bias_o_proj=bias_o_proj,
            cache_config=vllm_config.cache_config,
            prefix=f"{prefix}.self_attn",
        )
        self.mlp = self.mlp_class(
            config.hidden_size,
            config.intermediate_size,
            self.activation(config),
            quant_config=quant_config,
            bias=getattr(config, "mlp_bias", False),
            prefix=f"{prefix}.mlp",
        )
        self.input_layernorm = self.norm_class(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = self.norm_class(config.hidden_size, eps=config.rms_norm_eps)

    def get_quant_config(self, vllm_config: VllmConfig) -> Any:
        """The quantization of this layer; a subclass may give its layers another one."""
        return vllm_config.quant_config

    def attention_biases(self, config: Any) -> tuple[bool, bool]:
        """Whether queries, keys and values have biases, and whether attention's output has."""
        stated = bool(getattr(config, "attention_bias", False))
        return stated, stated

    def activation(self, config: Any) -> str:
        """The name of the feed-forward layer's activation."""
        return str(config.hidden_act)

    def forward(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``(hidden_states, residual)``, both ``[tokens, hidden]``; their sum is the stream.

        ``residual`` is ``None`` in the first layer.
        """
        hidden_states, residual = self._attend(positions, hidden_states, residual)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual

    def _attend(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What attention adds to the stream, and the stream before it."""
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        return self.self_attn(positions=positions, hidden_states=hidden_states), residual


class LlamaModel(nn.Module):
    """Embedding, layers and the final norm: token ids to hidden states."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_stacked={
            ".q_proj": (".qkv_proj", "q"),
            ".k_proj": (".qkv_proj", "k"),
            ".v_proj": (".qkv_proj", "v"),
            ".gate_proj": (".gate_up_proj", 0),
            ".up_proj": (".gate_up_proj", 1),
        }
    )
    layer_class: ClassVar[type[nn.Module]] = LlamaDecoderLayer
    norm_class: ClassVar[type[nn.Module]] = RMSNorm

    def __init__(
        self,
        *,
        vllm_config: VllmConfig,
        prefix: str = "",
        layer_type: type[nn.Module] | None = None,
    ) -> None:
        super().__init__()
        layer_type = layer_type or self.layer_class
        config: Any = vllm_config.model_config.hf_text_config
        self.config = config
        self.quant_config = vllm_config.quant_config
        self.vocab_size = config.vocab_size
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size,
            config.hidden_size,
            quant_config=self.quant_config,
            prefix=maybe_prefix(prefix, "embed_tokens"),
        )
        self.start_layer, self.end_layer, self.layers = make_layers(
            config.num_hidden_layers,
            lambda prefix: layer_type(vllm_config=vllm_config, prefix=prefix),
            prefix=maybe_prefix(prefix, "layers"),
        )
        self.norm = self.norm_class(config.hidden_size, eps=config.rms_norm_eps)
        self.make_empty_intermediate_tensors = make_empty_intermediate_tensors_factory(
            ["hidden_states", "residual"], config.hidden_size
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """``[tokens]`` to ``[tokens, hidden]``."""
        return self.embed_tokens(input_ids)  # type: ignore[no-any-return]

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **extra_layer_kwargs: Any,
    ) -> torch.Tensor:
        """``[tokens]`` ids and positions to ``[tokens, hidden]``.

        Args:
            input_ids: may be ``None`` where ``inputs_embeds`` is given.
            intermediate_tensors: what a former pipeline stage computed, in place of both.
            extra_layer_kwargs: handed to every layer.
        """
        residual: torch.Tensor | None = None
        if intermediate_tensors is not None:
            hidden_states = intermediate_tensors["hidden_states"]
            residual = intermediate_tensors["residual"]
        elif inputs_embeds is not None:
            hidden_states = inputs_embeds
        else:
            assert input_ids is not None
            hidden_states = self.embed_input_ids(input_ids)
        for layer in self.layers[self.start_layer : self.end_layer]:
            hidden_states, residual = layer(
                positions, hidden_states, residual, **extra_layer_kwargs
            )
        normalised: torch.Tensor = self.norm(hidden_states, residual)[0]
        return normalised

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the checkpoint's tensors (names without the ``model.`` prefix)."""
        # Old checkpoints carry the rotation frequencies, which are computed here.
        loader = AutoWeightsLoader(self, ignore_unexpected_suffixes=[".rotary_emb.inv_freq"])
        return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)


class LlamaForCausalLM(CausalLM, SupportsLoRA, SupportsPP):
    """``LlamaModel`` and the head that scores the vocabulary."""

    packed_modules_mapping: dict[str, list[str]] = {  # noqa: RUF012 - read by name, as plain data
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    model_class: ClassVar[type[LlamaModel]] = LlamaModel

    def __init__(
        self,
        *,
        vllm_config: VllmConfig,
        prefix: str = "",
        layer_type: type[nn.Module] | None = None,
    ) -> None:
        super().__init__(vllm_config)
        self.model = self._init_model(
            vllm_config,
            prefix=maybe_prefix(prefix, "model"),
            layer_type=layer_type or self.model_class.layer_class,
        )
        self._init_head(self.model.embed_tokens, prefix)

    def _init_model(
        self,
        vllm_config: VllmConfig,
        prefix: str = "",
        layer_type: type[nn.Module] = LlamaDecoderLayer,
    ) -> Any:
        """The inner model; a subclass may build another one."""
        return self.model_class(vllm_config=vllm_config, prefix=prefix, layer_type=layer_type)
