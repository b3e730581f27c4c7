"""Token embeddings and the language-model head, split over ranks by vocabulary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from hookserve.hookspecs.as_written import AsWritten

from .context import get_kernels, get_tp_group
from .custom_op import PluggableLayer
from .linear import QuantizeMethodBase, add_packed, multiply, should_pack
from .op_function import OpFunction, take_op
from .parameter import copy_weight, set_weight_attrs
from .typed_parameter import output_dim, pack_factor

if TYPE_CHECKING:
    from .cpu_kernels import CpuKernels

DEFAULT_VOCAB_PADDING_SIZE = 64


class UnquantizedEmbeddingMethod(QuantizeMethodBase):
    """Plain rows to look up; a head's weight is packed beside them where that works. Rows are
    looked up by the op ``embedding`` and scored by the op ``logits``, by whoever provides them."""

    as_written: ClassVar[AsWritten]
    embedding_op: OpFunction | None = None
    logits_op: OpFunction | None = None
    kernels: CpuKernels | None = None

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register ``weight: [vocabulary of this rank, hidden]``."""
        if isinstance(layer, ParallelLMHead):
            self.logits_op = take_op("logits")
            self.kernels = get_kernels()
        else:
            self.embedding_op = take_op("embedding")
        shape = (sum(output_partition_sizes), input_size_per_partition)
        weight = nn.Parameter(torch.empty(shape, dtype=params_dtype), requires_grad=False)
        set_weight_attrs(weight, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})
        layer.register_parameter("weight", weight)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Pack a head. A tied head keeps the plain weight too: its rows are looked up."""
        weight = layer.weight
        assert isinstance(weight, nn.Parameter)
        if not isinstance(layer, ParallelLMHead) or not should_pack(self, weight, self.logits_op):
            return
        packed = add_packed(layer, weight, self.kernels)
        if not layer.is_tied:
            layer.weight = nn.Parameter(packed, requires_grad=False)

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores ``x: [rows, hidden]`` against the rows: ``[rows, vocabulary of this rank]``."""
        return multiply(self.logits_op, layer, x, bias)

    def embedding(self, layer: nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """Rows for ``input_: [tokens]``: ``[tokens, hidden]``."""
        op = self.embedding_op
        if op is not None:
            op.row.calls += 1
            if op.provided is not None:
                answer: torch.Tensor = op.provided(input_, layer.weight)
                if answer is not NotImplemented:
                    return answer
        return F.embedding(input_, layer.weight)  # type: ignore[arg-type]

    def tie_weights(self, layer: nn.Module, embed_tokens: nn.Module) -> nn.Module:
        """Let ``layer`` use the embedding's weight; returns the module to use as the head."""
        layer.weight = embed_tokens.weight
        layer.is_tied = True  # type: ignore[assignment]
        return layer


UnquantizedEmbeddingMethod.as_written = AsWritten(UnquantizedEmbeddingMethod)


@PluggableLayer.register("vocab_parallel_embedding")
class VocabParallelEmbedding(PluggableLayer):
    """``[tokens]`` to ``[tokens, embedding_dim]``; the rows are split over the ranks.

    The vocabulary is padded to a multiple of ``padding_size`` that the ranks share evenly; the rows
    added are zero.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        params_dtype: torch.dtype | None = None,
        org_num_embeddings: int | None = None,
        padding_size: int = DEFAULT_VOCAB_PADDING_SIZE,
        quant_config: Any = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        self.tp_group = get_tp_group()
        self.tp_rank, self.tp_size = self.tp_group.rank, self.tp_group.world_size
        self.num_embeddings = num_embeddings
        self.org_vocab_size = org_num_embeddings or num_embeddings
        self.embedding_dim = embedding_dim
        self.prefix = prefix
        unit = math.lcm(padding_size, self.tp_size)
        self.num_embeddings_padded = -(-num_embeddings // unit) * unit
        self.num_embeddings_per_partition = self.num_embeddings_padded // self.tp_size
        self.quant_config = quant_config
        self.quant_method: Any = None
        if quant_config is not None:
            self.quant_method = quant_config.get_quant_method(self, prefix=prefix)
        self.quant_method = self.quant_method or UnquantizedEmbeddingMethod()
        self._check_method()
        self.quant_method.create_weights(
            self,
            embedding_dim,
            [self.num_embeddings_per_partition],
            embedding_dim,
            self.num_embeddings_padded,
            params_dtype or torch.get_default_dtype(),
            weight_loader=self.weight_loader,
        )

    def _check_method(self) -> None:
        """
        Raises:
            ValueError: the method does not look rows up.
        """
        method = type(self.quant_method)
        if getattr(method, "embedding", None) in (None, QuantizeMethodBase.embedding):
            raise ValueError(
                f"{type(self.quant_config).__name__} gave {method.__name__} for the embedding "
                f"{self.prefix!r}, and it does not define embedding; return None to leave it alone"
            )

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        """Copy this rank's rows; rows beyond the checkpoint's vocabulary become zero."""
        dim = output_dim(param)
        if dim is None:
            copy_weight(param.data, loaded_weight, self.prefix)
            return
        factor = pack_factor(param, dim)
        if loaded_weight.shape[dim] * factor != self.org_vocab_size:
            raise ValueError(
                f"{self.prefix} has {loaded_weight.shape[dim] * factor} rows in the checkpoint, "
                f"but the vocabulary has {self.org_vocab_size}"
            )
        rows, size = loaded_weight.shape[dim], self.num_embeddings_per_partition // factor
        start = min(self.tp_rank * size, rows)
        count = min(size, rows - start)
        target = param.data.narrow(dim, 0, count)
        copy_weight(target, loaded_weight.narrow(dim, start, count), self.prefix)
        param.data.narrow(dim, count, size - count).zero_()

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        """``input_: [tokens]`` int to ``[tokens, embedding_dim]``."""
        if self.tp_size == 1:
            rows: torch.Tensor = self.quant_method.embedding(self, input_)
            return rows
        local = input_ - self.tp_rank * self.num_embeddings_per_partition
        outside = (local < 0) | (local >= self.num_embeddings_per_partition)
        rows = self.quant_method.embedding(self, local.masked_fill(outside, 0))
        return self.tp_group.all_reduce(rows.masked_fill(outside[:, None], 0))


@PluggableLayer.register("parallel_lm_head")
class ParallelLMHead(VocabParallelEmbedding):
    """The output projection: the rows of an embedding, scored instead of looked up."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = False,
        params_dtype: torch.dtype | None = None,
        org_num_embeddings: int | None = None,
        padding_size: int = DEFAULT_VOCAB_PADDING_SIZE,
        quant_config: Any = None,
        prefix: str = "",
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            params_dtype,
            org_num_embeddings,
            padding_size,
            quant_config,
            prefix,
        )
        self.is_tied = False
        self.bias: nn.Parameter | None
        if bias:
            self.bias = nn.Parameter(
                torch.zeros(
                    self.num_embeddings_per_partition,
                    dtype=params_dtype or torch.get_default_dtype(),
                ),
                requires_grad=False,
            )
            set_weight_attrs(self.bias, {"output_dim": 0, "weight_loader": self.weight_loader})
        else:
            self.register_parameter("bias", None)

    def _check_method(self) -> None:
        """Rows are scored here, never looked up."""

    def tie_weights(self, embed_tokens: VocabParallelEmbedding) -> nn.Module:
        """Share the embedding's weight. Returns the module to assign as the head."""
        head: nn.Module = self.quant_method.tie_weights(self, embed_tokens)
        return head

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a language-model head is applied by LogitsProcessor, not called")
