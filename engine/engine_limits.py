"""Which sizes of the engine go together: of one step, of the cache, and of ranks with a model.

Numbers that cannot be are refused by the flag that they came from. What memory allows is
``kv_cache_size``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .config import SCHEDULING_POLICIES
from .rank_choice import SharedSizes
from .refusal import refuse

if TYPE_CHECKING:
    from .engine_args import EngineArgs

MAY_BE_OPEN = ("max_model_len", "kv_cache_memory_bytes", "num_gpu_blocks_override")
LEAST = dict.fromkeys(
    ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "block_size"), 1
) | {"max_model_len": 1, "kv_cache_memory_bytes": 0, "num_gpu_blocks_override": 0}
"""Of whole numbers; what there is too little of is said where it is shared out."""
OBJECTS = (
    "additional_config",
    "compilation_config",
    "hf_overrides",
    "ir_op_priority",
    "model_loader_extra_config",
    "override_generation_config",
    "structured_outputs_config",
)


def check_ranks(args: EngineArgs, text_config: Mapping[str, Any]) -> None:
    ranks, executor = args.tensor_parallel_size, args.distributed_executor_backend
    sizes = SharedSizes.of(text_config)
    fits = sizes.rank_counts()
    if ranks not in fits:
        raise refuse(
            args,
            "tensor_parallel_size",
            ranks,
            f"a number by which the model's {sizes} can be shared out: "
            + ", ".join(map(str, fits)),
        )
    if executor == "uni" and ranks > 1:
        raise refuse(
            args,
            "distributed_executor_backend",
            executor,
            f"mp for --tensor-parallel-size {ranks}: one process is one rank",
        )


def check_objects(args: EngineArgs) -> None:
    for name in OBJECTS:
        value = getattr(args, name)
        if not isinstance(value, dict):
            raise refuse(args, name, value, "a dict, and no function or text")


def check_limits(args: EngineArgs) -> None:
    check_objects(args)
    for name, least in LEAST.items():
        value = getattr(args, name)
        is_open = value is None and name in MAY_BE_OPEN
        if not is_open and (type(value) is not int or not least <= value < 2**63):
            raise refuse(args, name, value, f"a whole number of 64 bits, at least {least}")
    if args.scheduling_policy not in SCHEDULING_POLICIES:
        raise refuse(
            args, "scheduling_policy", args.scheduling_policy, "one of", SCHEDULING_POLICIES
        )
    if args.max_num_batched_tokens < args.max_num_seqs:
        raise refuse(
            args,
            "max_num_batched_tokens",
            args.max_num_batched_tokens,
            f"at least --max-num-seqs ({args.max_num_seqs}), one token for each request",
        )
    if args.num_gpu_blocks_override is not None and args.kv_cache_memory_bytes is not None:
        raise refuse(
            args,
            "num_gpu_blocks_override",
            args.num_gpu_blocks_override,
            "to be given without --kv-cache-memory-bytes: both size the KV cache",
        )


def check_blocks(args: EngineArgs, max_model_len: int) -> None:
    num_blocks = args.num_gpu_blocks_override
    needed = -(-max_model_len // args.block_size)
    if num_blocks is not None and num_blocks < needed:
        raise refuse(
            args,
            "num_gpu_blocks_override",
            num_blocks,
            f"at least {needed}, so that one request of {max_model_len} tokens fits; "
            "or a lower --max-model-len",
        )
