"""Dtypes, seeds, threads and operators of torch."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.library import Library, infer_schema

__all__ = [
    "STR_DTYPE_TO_TORCH_DTYPE",
    "current_stream",
    "direct_register_custom_op",
    "get_dtype_size",
    "get_kv_cache_torch_dtype",
    "is_quantized_kv_cache",
    "is_torch_equal",
    "is_torch_equal_or_newer",
    "kv_cache_dtype_str_to_dtype",
    "make_tensor_with_pad",
    "set_default_torch_dtype",
    "set_default_torch_num_threads",
    "set_random_seed",
    "vllm_lib",
]

__surface__ = {
    "STR_DTYPE_TO_TORCH_DTYPE": "live: torch's dtype for a name",
    "async_tensor_h2d": "refused: copies are the model runner's; use tensor.to(device)",
    "current_stream": "live: of CUDA; None without a GPU",
    "direct_register_custom_op": "live: makes torch.ops.vllm.NAME, for every device",
    "get_dtype_size": "live: bytes of one number",
    "get_kv_cache_torch_dtype": "live: of the KV cache, which is always the model's own",
    "is_quantized_kv_cache": "live: whether a name means a cache of other numbers than the model's",
    "is_torch_equal": "live: compares torch's version",
    "is_torch_equal_or_newer": "live: compares torch's version",
    "kv_cache_dtype_str_to_dtype": "live: of the KV cache, which is always the model's own",
    "make_tensor_with_pad": "live: rows of unequal length as one tensor",
    "set_default_torch_dtype": "live: within a block",
    "set_default_torch_num_threads": "live: within a block",
    "set_random_seed": "live: of Python, numpy and torch; requests have generators of their own",
    "vllm_lib": "live: the library in which direct_register_custom_op defines",
}

STR_DTYPE_TO_TORCH_DTYPE: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float": torch.float32,
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.uint8,
    "fp8_e4m3": torch.uint8,
    "fp8_e5m2": torch.uint8,
    "int8": torch.int8,
}

vllm_lib: Any = Library("vllm", "FRAGMENT")  # type: ignore[no-untyped-call]


def direct_register_custom_op(
    op_name: str,
    op_func: Callable[..., Any],
    mutates_args: list[str] | None = None,
    fake_impl: Callable[..., Any] | None = None,
    target_lib: Library | None = None,
    dispatch_key: str | None = None,
    tags: tuple[torch.Tag, ...] = (),
) -> None:
    """Define ``torch.ops.vllm.<op_name>`` with the schema that the function's annotations say.

    Args:
        mutates_args: names of arguments that are changed in place.
        fake_impl: what works out the result's shape where nothing is computed.
        target_lib: another library than ``vllm``'s.
        dispatch_key: of one kind of device; without it of every one.

    Raises:
        RuntimeError: the operator is defined already.
    """
    lib: Any = target_lib or vllm_lib
    schema = infer_schema(op_func, mutates_args=mutates_args or [])
    lib.define(op_name + schema, tags=tags)
    lib.impl(op_name, op_func, dispatch_key=dispatch_key or "CompositeExplicitAutograd")
    if fake_impl is not None:
        lib._register_fake(op_name, fake_impl)


@contextlib.contextmanager
def set_default_torch_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def set_default_torch_num_threads(num_threads: int | None = None) -> Iterator[None]:
    """``None``: as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if num_threads is None else num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_random_seed(seed: int | None) -> None:
    """``None``: nothing is set."""
    if seed is None:
        return
    import numpy

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.partition("+")[0].split(".")[:3] if part)


def _numbers(target: str) -> tuple[int, ...]:
    return tuple(int(part) for part in target.partition("+")[0].split(".") if part.isdigit())


def is_torch_equal_or_newer(target: str) -> bool:
    return _version() >= _numbers(target)


def is_torch_equal(target: str) -> bool:
    wanted = _numbers(target)
    return _version()[: len(wanted)] == wanted


def get_dtype_size(dtype: torch.dtype) -> int:
    return dtype.itemsize


def is_quantized_kv_cache(kv_cache_dtype: str) -> bool:
    return kv_cache_dtype not in ("auto", "float32", "float16", "bfloat16")


def kv_cache_dtype_str_to_dtype(kv_cache_dtype: str, model_config: Any) -> torch.dtype:
    """``auto`` is the model's own."""
    if kv_cache_dtype == "auto":
        dtype: torch.dtype = model_config.dtype
        return dtype
    return STR_DTYPE_TO_TORCH_DTYPE[kv_cache_dtype]


def get_kv_cache_torch_dtype(
    cache_dtype: str | torch.dtype, model_dtype: str | torch.dtype | None = None
) -> torch.dtype:
    """
    Raises:
        ValueError: a name that there is none of.
    """
    given = model_dtype if cache_dtype == "auto" else cache_dtype
    if isinstance(given, torch.dtype):
        return given
    if given not in STR_DTYPE_TO_TORCH_DTYPE:
        known = ", ".join(STR_DTYPE_TO_TORCH_DTYPE)
        raise ValueError(f"dtype of the KV cache {given!r}: expected one of {known}")
    return STR_DTYPE_TO_TORCH_DTYPE[given]


def make_tensor_with_pad(
    x: list[list[Any]],
    pad: Any,
    dtype: torch.dtype,
    *,
    max_len: int | None = None,
    device: str | torch.device | None = None,
    pin_memory: bool = False,
) -> torch.Tensor:
    """``(len(x), max_len)``; without ``max_len`` the longest row's."""
    width = max(map(len, x), default=0) if max_len is None else max_len
    rows = [[*row, *[pad] * (width - len(row))] for row in x]
    made = torch.tensor(rows, dtype=dtype, device=device)
    return made.pin_memory() if pin_memory else made


def current_stream() -> Any:
    return torch.cuda.current_stream() if torch.cuda.is_available() else None
