"""Linear layers in the shapes of tensor parallelism, and the method that computes them plainly.

A layer owns its place in the model (what it shards, how its weights are loaded); its
``quant_method`` owns the weight's representation. ``forward`` returns ``(output, bias)``, where
the bias is ``None`` unless it was left to the caller (``skip_bias_add``); with
``return_bias=False`` the output alone.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from hookserve.hookspecs.as_written import AsWritten
from hookserve.hookspecs.current_host import describe_patch

from .context import get_kernels, get_tp_group
from .custom_op import PluggableLayer
from .op_function import OpFunction, take_op
from .packed_linear import can_pack, pack, packed_linear
from .packed_product import find_product
from .parameter import copy_weight, note_part, set_weight_attrs
from .typed_parameter import (
    BasevLLMParameter,
    OutputPart,
    narrow_part,
    split_outputs,
    take_inputs,
    take_outputs,
)

if TYPE_CHECKING:
    from .cpu_kernels import CpuKernels

logger = logging.getLogger(__name__)

LinearOutput = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]


class QuantizeMethodBase:
    """How a layer's weight is created, applied, and rearranged once it is loaded."""

    def create_weights(self, layer: nn.Module, *weight_args: Any, **extra: Any) -> None:
        raise TypeError(f"{type(self).__name__} does not create weights")

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        raise TypeError(f"{type(self).__name__} does not compute a layer")

    def embedding(self, layer: nn.Module, input_: torch.Tensor) -> torch.Tensor:
        raise TypeError(f"{type(self).__name__} does not look rows of an embedding up")

    def tie_weights(self, layer: nn.Module, embed_tokens: nn.Module) -> nn.Module:
        raise TypeError(f"{type(self).__name__} does not share an embedding's weight with a head")

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Called once, when the layer's weights are complete."""


class LinearMethodBase(QuantizeMethodBase):
    """Base of the methods for linear layers."""


class UnquantizedLinearMethod(LinearMethodBase):
    """Weights in the model's dtype, packed for the CPU where that works. They are multiplied by the
    op ``linear``, by whoever provides it."""

    as_written: ClassVar[AsWritten]
    """Of a class whose own ``apply`` reads packed weights."""
    op: OpFunction | None = None
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
        """Register ``weight: [sum(output_partition_sizes), input_size_per_partition]``."""
        self.op = take_op("linear")
        self.kernels = get_kernels()
        shape = (sum(output_partition_sizes), input_size_per_partition)
        weight = nn.Parameter(torch.empty(shape, dtype=params_dtype), requires_grad=False)
        set_weight_attrs(weight, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})
        layer.register_parameter("weight", weight)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Replace the weight by its packed form. ``layer.weight`` stays, opaque:
        ``layer.weight.to_dense()`` gives the plain weight, so that no second copy is kept."""
        weight = layer.weight
        assert isinstance(weight, nn.Parameter)
        if should_pack(self, weight, self.op):
            packed = add_packed(layer, weight, self.kernels)
            layer.weight = nn.Parameter(packed, requires_grad=False)

    def apply(
        self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x: [..., in]`` to ``[..., out]``."""
        return multiply(self.op, layer, x, bias)


UnquantizedLinearMethod.as_written = AsWritten(UnquantizedLinearMethod)


def multiply(
    op: OpFunction | None, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """``x`` by a layer's weight, as the op's provider or torch does it.

    Args:
        op: ``linear`` or ``logits``; ``None``: torch.
    """
    if op is not None:
        op.row.calls += 1
        if op.provided is not None:
            answer: torch.Tensor = op.provided(x, layer.weight, bias)
            if answer is not NotImplemented:
                return answer
    packed = layer.__dict__.get("packed_weight")
    if packed is None:
        return F.linear(x, layer.weight, bias)  # type: ignore[arg-type]
    product = layer.__dict__["packed_product"]
    if product is not None:
        answer = product(x, bias)
        if answer is not NotImplemented:
            return answer
    return packed_linear(x, packed, bias)


def add_packed(layer: nn.Module, weight: torch.Tensor, kernels: CpuKernels | None) -> torch.Tensor:
    """Give the layer a packed copy of its weight, and what multiplies by it; returns the copy."""
    packed = pack(weight)
    layer.packed_weight = packed
    layer.packed_product = find_product(kernels, packed, weight)  # type: ignore[assignment]
    return packed


def should_pack(method: object, weight: torch.Tensor, op: OpFunction | None = None) -> bool:
    """Whether to pack a layer's weight; the choice is logged once with its reason.

    A provider, a subclass or a patch that computes the layer itself reads ``layer.weight``, so the
    plain weight is then left in place.
    """
    if weight.device.type != "cpu" or weight.is_mkldnn:
        return False
    able, reason = can_pack(weight.dtype)
    reader = _plain_reader(type(method))
    if op is not None and op.provided is not None:
        reader = f"'{op.row.implementation}' of {op.row.owner} provides {op.row.op}"
    if reader is not None:
        able, reason = False, reader
    _log_once("packed" if able else "plain", reason)
    return able


def _plain_reader(method_cls: type) -> str | None:
    """What needs the plain weight, in words; ``None``: nothing does."""
    holder = next(each for each in method_cls.__mro__ if "apply" in vars(each))
    written: AsWritten | None = vars(holder).get("as_written")
    if written is None:
        return f"{holder.__module__}.{holder.__qualname__}.apply reads the plain ones"
    patched = written.replaced("apply")
    return None if patched is None else describe_patch(patched)


@functools.cache
def _log_once(choice: str, reason: str) -> None:
    logger.info("linear layers use %s weights: %s", choice, reason)


class LinearBase(PluggableLayer):
    """What all linear layers share: sizes, dtype, the method, the bias."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: Any = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
        disable_tp: bool = False,
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.output_size = output_size
        self.skip_bias_add = skip_bias_add
        self.params_dtype = params_dtype or torch.get_default_dtype()
        self.quant_config = quant_config
        self.prefix = prefix
        self.return_bias = return_bias
        self.tp_group = get_tp_group()
        self.tp_rank = 0 if disable_tp else self.tp_group.rank
        self.tp_size = 1 if disable_tp else self.tp_group.world_size
        self.quant_method: Any = UnquantizedLinearMethod()
        if quant_config is not None:
            self.quant_method = quant_config.get_quant_method(self, prefix=prefix)
        if self.quant_method is None:
            raise ValueError(
                f"{type(quant_config).__name__} gave no method for the linear layer {prefix!r}; "
                "return UnquantizedLinearMethod() to leave it alone"
            )

    def _create(self, in_per_rank: int, out_per_rank: list[int], *, bias: bool) -> None:
        self.input_size_per_partition = in_per_rank
        self.output_size_per_partition = sum(out_per_rank)
        self.output_partition_sizes = out_per_rank
        self.quant_method.create_weights(
            self,
            in_per_rank,
            out_per_rank,
            self.input_size,
            self.output_size,
            self.params_dtype,
            weight_loader=self.weight_loader,
        )
        for parameter in self.parameters():
            if isinstance(parameter, BasevLLMParameter):
                parameter.tp_rank, parameter.tp_size = self.tp_rank, self.tp_size
        self.bias: nn.Parameter | None
        if not bias:
            self.register_parameter("bias", None)
            return
        self.bias = nn.Parameter(
            torch.zeros(sum(out_per_rank), dtype=self.params_dtype), requires_grad=False
        )
        set_weight_attrs(self.bias, {"output_dim": 0, "weight_loader": self.weight_loader})

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        """Copy this rank's part of the weight into ``param``."""
        copy_weight(param.data, loaded_weight, self.prefix)

    def weight_loader_v2(
        self, param: nn.Parameter, loaded_weight: torch.Tensor, *loaded_shard_id: Any
    ) -> None:
        """``weight_loader``, by the name under which methods with typed parameters ask for it."""
        self.weight_loader(param, loaded_weight, *loaded_shard_id)

    def _result(self, output: torch.Tensor) -> LinearOutput:
        if not self.return_bias:
            return output
        return output, (self.bias if self.skip_bias_add else None)

    def extra_repr(self) -> str:
        return f"in={self.input_size}, out={self.output_size}, tp_size={self.tp_size}"


@PluggableLayer.register("replicated_linear")
class ReplicatedLinear(LinearBase):
    """The whole weight on every rank."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: Any = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
        disable_tp: bool = False,
    ) -> None:
        super().__init__(
            input_size,
            output_size,
            skip_bias_add=skip_bias_add,
            params_dtype=params_dtype,
            quant_config=quant_config,
            prefix=prefix,
            return_bias=return_bias,
            disable_tp=disable_tp,
        )
        self._create(input_size, [output_size], bias=bias)

    def forward(self, x: torch.Tensor) -> LinearOutput:
        """``x: [..., in]`` to ``[..., out]``."""
        bias = None if self.skip_bias_add else self.bias
        return self._result(self.quant_method.apply(self, x, bias))


@PluggableLayer.register("column_parallel_linear")
class ColumnParallelLinear(LinearBase):
    """Each rank computes a slice of the outputs."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        gather_output: bool = False,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: Any = None,
        output_sizes: Sequence[int] | None = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
        disable_tp: bool = False,
    ) -> None:
        super().__init__(
            input_size,
            output_size,
            skip_bias_add=skip_bias_add,
            params_dtype=params_dtype,
            quant_config=quant_config,
            prefix=prefix,
            return_bias=return_bias,
            disable_tp=disable_tp,
        )
        self.gather_output = gather_output
        sizes = [self._per_rank(size) for size in output_sizes or [output_size]]
        self._create(input_size, sizes, bias=bias)

    def _per_rank(self, size: int) -> int:
        if size % self.tp_size:
            raise ValueError(
                f"{self.prefix or 'a linear layer'}: {size} outputs cannot be split evenly over "
                f"{self.tp_size} ranks"
            )
        return size // self.tp_size

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        part = OutputPart(0, 0, self.output_size_per_partition, self.tp_rank, self.tp_size)
        take_outputs(param, loaded_weight, part, self.prefix, whole=True)

    def forward(self, x: torch.Tensor) -> LinearOutput:
        """``x: [..., in]`` to ``[..., out / tp_size]``, or the whole with ``gather_output``."""
        bias = None if self.skip_bias_add else self.bias
        output = self.quant_method.apply(self, x, bias)
        if self.gather_output and self.tp_size > 1:
            output = self.tp_group.all_gather(output)
        return self._result(output)


@PluggableLayer.register("merged_column_parallel_linear")
class MergedColumnParallelLinear(ColumnParallelLinear):
    """Several column-parallel layers over the same input, computed as one."""

    def __init__(
        self,
        input_size: int,
        output_sizes: Sequence[int],
        bias: bool = True,
        gather_output: bool = False,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: Any = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
        disable_tp: bool = False,
    ) -> None:
        self.output_sizes = list(output_sizes)
        super().__init__(
            input_size,
            sum(output_sizes),
            bias,
            gather_output,
            skip_bias_add,
            params_dtype,
            quant_config,
            output_sizes,
            prefix,
            return_bias=return_bias,
            disable_tp=disable_tp,
        )
        if gather_output and self.tp_size > 1:
            raise ValueError(f"{prefix}: merged outputs cannot be gathered in one piece")

    def weight_loader(
        self,
        param: nn.Parameter,
        loaded_weight: torch.Tensor,
        loaded_shard_id: int | Sequence[int] | None = None,
    ) -> None:
        """Load output ``loaded_shard_id``; with several, or ``None`` for all, from one weight in
        which they lie one after another."""
        if loaded_shard_id is None:
            loaded_shard_id = range(len(self.output_sizes))
        if not isinstance(loaded_shard_id, int):
            sizes = [self.output_sizes[shard_id] for shard_id in loaded_shard_id]
            parts = split_outputs(param, loaded_weight, sizes, self.prefix)
            for shard_id, each in zip(loaded_shard_id, parts, strict=True):
                self.weight_loader(param, each, shard_id)
            return
        start = sum(self.output_partition_sizes[:loaded_shard_id])
        size = self.output_partition_sizes[loaded_shard_id]
        part = OutputPart(
            loaded_shard_id, start, size, self.tp_rank, self.tp_size, shard_id=loaded_shard_id
        )
        take_outputs(param, loaded_weight, part, f"{self.prefix} (part {loaded_shard_id})")
        note_part(param, loaded_shard_id, range(len(self.output_sizes)))


@PluggableLayer.register("qkv_parallel_linear")
class QKVParallelLinear(ColumnParallelLinear):
    """Query, key and value projections as one; ranks share key heads that are too few."""

    def __init__(
        self,
        hidden_size: int,
        head_size: int,
        total_num_heads: int,
        total_num_kv_heads: int | None = None,
        bias: bool = True,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        quant_config: Any = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
        disable_tp: bool = False,
    ) -> None:
        tp_size = 1 if disable_tp else get_tp_group().world_size
        self.hidden_size = hidden_size
        self.head_size = head_size
        self.total_num_heads = total_num_heads
        self.total_num_kv_heads = total_num_kv_heads or total_num_heads
        self.num_heads = _divide(total_num_heads, tp_size, prefix, "attention heads")
        self.num_kv_head_replicas = max(1, tp_size // self.total_num_kv_heads)
        self.num_kv_heads = _divide(
            self.total_num_kv_heads * self.num_kv_head_replicas, tp_size, prefix, "key heads"
        )
        sizes = [
            self.num_heads * head_size * tp_size,
            self.num_kv_heads * head_size * tp_size,
            self.num_kv_heads * head_size * tp_size,
        ]
        super().__init__(
            hidden_size,
            sum(sizes),
            bias,
            False,
            skip_bias_add,
            params_dtype,
            quant_config,
            sizes,
            prefix,
            return_bias=return_bias,
            disable_tp=disable_tp,
        )

    def weight_loader(
        self,
        param: nn.Parameter,
        loaded_weight: torch.Tensor,
        loaded_shard_id: str | Sequence[str] | None = None,
    ) -> None:
        """Load ``"q"``, ``"k"`` or ``"v"``; with several, or ``None`` for all, from one weight in
        which they lie one after another."""
        if loaded_shard_id is None:
            loaded_shard_id = ("q", "k", "v")
        if not isinstance(loaded_shard_id, str):
            heads = {"q": self.total_num_heads}
            sizes = [
                heads.get(shard_id, self.total_num_kv_heads) * self.head_size
                for shard_id in loaded_shard_id
            ]
            parts = split_outputs(param, loaded_weight, sizes, self.prefix)
            for shard_id, each in zip(loaded_shard_id, parts, strict=True):
                self.weight_loader(param, each, shard_id)
            return
        index = "qkv".index(loaded_shard_id)
        sizes, replicas = self.output_partition_sizes, self.num_kv_head_replicas
        ranks, rank = self.tp_size, self.tp_rank
        if loaded_shard_id != "q":
            ranks //= replicas
            rank //= replicas
        part = OutputPart(
            index, sum(sizes[:index]), sizes[index], rank, ranks, loaded_shard_id, replicas
        )
        take_outputs(param, loaded_weight, part, f"{self.prefix} (part {loaded_shard_id!r})")
        note_part(param, loaded_shard_id, "qkv")


@PluggableLayer.register("row_parallel_linear")
class RowParallelLinear(LinearBase):
    """Each rank has a slice of the inputs; the outputs are summed over the ranks."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        bias: bool = True,
        input_is_parallel: bool = True,
        skip_bias_add: bool = False,
        params_dtype: torch.dtype | None = None,
        reduce_results: bool = True,
        quant_config: Any = None,
        prefix: str = "",
        *,
        return_bias: bool = True,
        disable_tp: bool = False,
    ) -> None:
        super().__init__(
            input_size,
            output_size,
            skip_bias_add=skip_bias_add,
            params_dtype=params_dtype,
            quant_config=quant_config,
            prefix=prefix,
            return_bias=return_bias,
            disable_tp=disable_tp,
        )
        if not reduce_results and bias and not skip_bias_add and self.tp_size > 1:
            raise ValueError(f"{prefix}: unreduced results would add the bias once for each rank")
        self.input_is_parallel = input_is_parallel
        self.reduce_results = reduce_results
        self._create(_divide(input_size, self.tp_size, prefix, "inputs"), [output_size], bias=bias)

    def weight_loader(self, param: nn.Parameter, loaded_weight: torch.Tensor) -> None:
        take_inputs(param, loaded_weight, self.tp_rank, self.tp_size, self.prefix)

    def forward(self, x: torch.Tensor) -> LinearOutput:
        """``x: [..., in / tp_size]`` (``[..., in]`` unless ``input_is_parallel``) to
        ``[..., out]``."""
        if not self.input_is_parallel and self.tp_size > 1:
            x = narrow_part(x, -1, self.tp_rank, self.tp_size)
        # One rank alone adds the bias, so that the sum over the ranks holds it once.
        bias = None if self.skip_bias_add or self.tp_rank > 0 else self.bias
        output = self.quant_method.apply(self, x, bias)
        if self.reduce_results and self.tp_size > 1:
            output = self.tp_group.all_reduce(output)
        return self._result(output)


def _divide(size: int, parts: int, prefix: str, what: str) -> int:
    if size % parts:
        raise ValueError(
            f"{prefix or 'a linear layer'}: {size} {what} cannot be split evenly over {parts} ranks"
        )
    return size // parts
