"""``set_current_vllm_config`` as packages for vLLM enter it: around layers that they build by hand,
as their tests do."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookserve.engine import vllm_config as own
from hookserve.engine.errors import ConfigError
from hookserve.hookspecs import HostError, current

if TYPE_CHECKING:
    import torch

    from hookserve.engine.vllm_config import VllmConfig
    from hookserve.ops.context import ModelContext
    from hookserve.ops.dispatch import OpSet

_by_hand: contextvars.ContextVar[ModelContext | None] = contextvars.ContextVar(
    "hookserve_context_by_hand", default=None
)
"""The last one that was entered here; the loader's stays in force while it builds a model."""


@contextlib.contextmanager
def set_current_vllm_config(
    vllm_config: VllmConfig, check_compile: bool = False, prefix: str | None = None
) -> Iterator[None]:
    """Within the block this is the configuration that is current, and ops and layers are built as
    for a model with it: where a plugin replaces a class, its own.

    Args:
        check_compile, prefix: for hosts that compile, and for models of several parts; they change
            nothing here.

    Raises:
        ValueError: ``custom_ops`` cannot mean anything.
    """
    del check_compile, prefix
    from hookserve.ops.context import get_model_context

    with contextlib.ExitStack() as entered:
        entered.enter_context(own.set_current_vllm_config(vllm_config))
        if get_model_context() is _by_hand.get():
            context = entered.enter_context(_building(vllm_config))
            entered.callback(_by_hand.reset, _by_hand.set(context))
        yield


def _building(vllm_config: VllmConfig) -> contextlib.AbstractContextManager[ModelContext]:
    """What the loader enters around a model, of a configuration that may have none."""
    from hookserve.ops.context import set_model_context

    model, compilation = vllm_config.model_config, vllm_config.compilation_config
    return set_model_context(
        static_forward_context=compilation.static_forward_context,
        dtype=_dtype(vllm_config),
        block_size=vllm_config.cache_config.block_size,
        max_model_len=None if model is None else model.max_model_len,
        attention_backends=vllm_config.attention_config.backend_classes,
        kernels=compilation.kernels,
        ops=compilation.ops or _ops(vllm_config),
    )


def _dtype(vllm_config: VllmConfig) -> torch.dtype:
    import torch

    model = vllm_config.model_config
    return torch.get_default_dtype() if model is None else model.dtype


def _ops(vllm_config: VllmConfig) -> OpSet | None:
    """``None``: no plugins have been loaded in this process, and classes are what they are."""
    from hookserve.engine.op_choices import choose_ops

    try:
        host = current()
    except HostError:
        return None
    try:
        return choose_ops(vllm_config, host)
    except ConfigError as error:
        raise ValueError(str(error)) from error
