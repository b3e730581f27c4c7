"""``Attention``: the layer that models build, with its place in the cache and in the step.

How it is computed is a backend's (``attention_backend``), by default the built-in one's
(``paged_attention``). Which blocks belong to whom is the engine's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .attention_backend import AttentionBackend, AttentionImpl, AttentionLayerBase
from .attention_builder import BackendSteps
from .context import ModelContext, get_forward_context, get_model_context
from .custom_op import PluggableLayer
from .kv_cache_spec import FullAttentionSpec
from .paged_attention import PagedAttentionBackend
from .provided_attention import impl_class, take_attention_ops


@PluggableLayer.register("attention")
class Attention(PluggableLayer, AttentionLayerBase):
    """Causal self-attention of one layer, with grouped key heads.

    Args:
        scale: scores are multiplied by it.
        logits_soft_cap: scores are kept within it, as ``cap * tanh(score / cap)``.
        per_layer_sliding_window: a token sees so many tokens at most, itself the last of them.
        cache_config: states the window in ``sliding_window`` where the argument leaves it open.
        attn_backend: in place of those that the model is built with.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        cache_config: Any = None,
        quant_config: Any = None,
        logits_soft_cap: float | None = None,
        per_layer_sliding_window: int | None = None,
        prefix: str = "",
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        attn_backend: type[AttentionBackend] | None = None,
    ) -> None:
        super().__init__()
        _refuse(
            prefix,
            alibi_slopes=alibi_slopes,
            kv_sharing_target_layer_name=kv_sharing_target_layer_name,
            attn_type=None if attn_type == "decoder" else attn_type,
        )
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        if num_heads % self.num_kv_heads:
            raise ValueError(
                f"{prefix}: {num_heads} heads are not a multiple of {self.num_kv_heads} key heads"
            )
        self.layer_name = prefix
        self.attn_type = attn_type
        context = get_model_context()
        self.dtype = context.dtype if context else torch.get_default_dtype()
        self.soft_cap = _above_zero(prefix, "logits_soft_cap", logits_soft_cap)
        self.window = self._choose_window(per_layer_sliding_window, cache_config, context)
        offered = (attn_backend,) if attn_backend else context.attention_backends if context else ()
        self.attn_backend = self._choose_backend(
            offered or (PagedAttentionBackend,), context.block_size if context else None
        )
        self._ops = take_attention_ops(self.attn_backend)
        self.impl = self._make_impl()
        self.kv_cache = torch.empty(0)
        self._steps: BackendSteps | None = None
        if context is not None:
            if prefix in context.static_forward_context:
                raise ValueError(f"two attention layers have the prefix {prefix!r}")
            context.static_forward_context[prefix] = self

    def _choose_backend(
        self, offered: Sequence[type[AttentionBackend]], block_size: int | None
    ) -> type[AttentionBackend]:
        faults = []
        for backend in offered:
            lacking = backend.validate_configuration(
                self.head_size, self.dtype, block_size, self.window, self.soft_cap
            )
            if not lacking:
                return backend
            faults.append(f"{backend.get_name()!r} does not support {', '.join(lacking)}")
        raise ValueError(
            f"attention layer {self.layer_name!r}: the attention backend {'; '.join(faults)}; "
            "leave --attention-backend at auto or name another one"
        )

    def change_backend(self, backend: type[AttentionBackend]) -> None:
        """Compute by another one, which is known to take the layer. To be called in a context like
        the one in which the layer was built, and before it has a cache."""
        self.attn_backend = backend
        if self._ops is not None:
            self._ops.give_up()
        self._ops = take_attention_ops(backend)
        self.impl = self._make_impl()
        self.impl.process_weights_after_loading(self.dtype)

    @property
    def sliding_window(self) -> int | None:
        """``window``, by the name under which models written for other hosts ask for it."""
        return self.window

    def use_steps(self, steps: BackendSteps, scale: torch.Tensor) -> None:
        """Do this before the backend computes.

        Args:
            scale: one; of queries, keys, values and weights, for backends that read them.
        """
        self._steps = steps
        self._q_scale = self._k_scale = self._v_scale = self._prob_scale = scale
        self._q_scale_float = self._k_scale_float = self._v_scale_float = 1.0

    def _make_impl(self) -> AttentionImpl:
        return impl_class(self.attn_backend, self._ops)(
            self.num_heads,
            self.head_size,
            self.scale,
            self.num_kv_heads,
            None,
            self.window,
            "auto",
            self.soft_cap,
            self.attn_type,
            None,
        )

    def _choose_window(
        self, stated: int | None, cache_config: Any, context: ModelContext | None
    ) -> int | None:
        """The window, or ``None`` where no sequence outgrows it."""
        if stated is None:
            stated = getattr(cache_config, "sliding_window", None)
        window = _above_zero(self.layer_name, "per_layer_sliding_window", stated)
        longest = context.max_model_len if context else None
        return None if window and longest and longest <= window else window

    def get_attn_backend(self) -> type[AttentionBackend]:
        return self.attn_backend

    def get_kv_cache_spec(self, vllm_config: Any) -> FullAttentionSpec:
        """The cache that this layer needs, from ``vllm_config.cache_config.block_size``. A
        layer with a window keeps what has left it too: blocks belong to all layers alike."""
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            dtype=self.dtype,
        )

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """Use ``kv_cache`` from now on. It must start out finite (zeros): positions that are
        masked out are multiplied by zero."""
        if not kv_cache.is_contiguous():
            raise ValueError(f"{self.layer_name}: a contiguous KV cache is needed")
        try:
            self.impl.bind_kv_cache(kv_cache)
        except ValueError as error:
            raise ValueError(f"{self.layer_name}: {error}") from error
        self.kv_cache = kv_cache

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        self.impl.process_weights_after_loading(act_dtype)

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend, and append the step's keys and values to the cache.

        Args:
            query: ``[tokens, num_heads * head_size]``; rows may be strided.
            key: ``[tokens, num_kv_heads * head_size]``, as ``value``.

        Returns:
            ``[tokens, num_heads * head_size]``; zeros while profiling.
        """
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            return torch.zeros_like(query, memory_format=torch.contiguous_format)
        if self._ops is not None:
            self._ops.note_call(metadata)
        impl = self.impl
        query = query.view(-1, self.num_heads, self.head_size)
        key = key.view(-1, self.num_kv_heads, self.head_size)
        value = value.view(-1, self.num_kv_heads, self.head_size)
        if self._steps is not None:
            metadata = self._steps.before(self, key, value, metadata)
        output = query.new_empty(query.shape) if impl.writes_output else None
        attended = impl.forward(self, query, key, value, self.kv_cache, metadata, output)
        return attended.view(query.shape[0], -1)


def _above_zero(prefix: str, name: str, value: Any) -> Any:
    if value is not None and not value > 0:
        raise ValueError(f"attention layer {prefix!r}: {name} is {value!r}; expected more than 0")
    return value


def _refuse(prefix: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"attention layer {prefix!r}: {name}={value!r} is not supported; causal decoder "
                "attention is, with or without a window and capped scores"
            )
