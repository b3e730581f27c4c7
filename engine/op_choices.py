"""The ``OpSet`` of a worker's model, made of what plugins have registered and the operator said,
and what of it is told: lines in the log, and the table in the process's report.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from hookserve.hookspecs.op_names import FUNCTION_OPS
from hookserve.hookspecs.report import OpReport

# Every built-in op is registered by the import of its module.
from hookserve.ops import activation, attention, layernorm, logits_processor, rotary_embedding
from hookserve.ops.custom_op import find_op
from hookserve.ops.dispatch import OpSet
from hookserve.ops.op_rule import CALLED, check_list

from .errors import ConfigError
from .platform import Platform
from .platform_calls import import_platform
from .vllm_config import VllmConfig

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

logger = logging.getLogger(__name__)

BUILT_IN = (activation, attention, layernorm, logits_processor, rotary_embedding)


def choose_ops(vllm_config: VllmConfig, host: Host) -> OpSet:
    """What the model's layers will ask while it is built.

    Raises:
        ConfigError: ``custom_ops`` or ``ir_op_priority`` cannot mean anything.
    """
    config, model = vllm_config.compilation_config, vllm_config.model_config
    preferred = config.ir_op_priority
    try:
        check_list(config.custom_ops)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for op in preferred:
        if find_op(op) is None and op not in FUNCTION_OPS:
            logger.warning("--ir-op-priority names '%s', which is no op of the server's", op)
    platform = import_platform(host.platform(), host)
    return OpSet(
        host.registry("oot_op"),
        host.registry("op_provider"),
        custom_ops=config.custom_ops,
        compiles=config.mode != 0,
        platform=platform_key(platform),
        preferred=preferred,
        device=vllm_config.device_config.device,
        dtype=torch.get_default_dtype() if model is None else model.dtype,
        config=vllm_config,
    )


def platform_key(platform: Platform) -> str:
    """Which methods of ops the platform calls: several of its predicates may hold at once, and the
    order of the questions is the ecosystem's."""
    for key in ("rocm", "cpu", "tpu", "xpu"):
        if getattr(platform, f"is_{key}")():
            return key
    if platform.is_out_of_tree():
        return "oot"
    if platform.is_cuda():
        return "cuda"
    return platform.device_type if platform.device_type in CALLED else "oot"


def warn_of_loose_ends(ops: OpSet) -> None:
    for line in ops.loose_ends():
        logger.warning("%s", line)


def op_reports(ops: OpSet) -> list[OpReport]:
    """The table as it is now."""
    return [
        OpReport(
            op=row.op,
            class_name=row.class_name,
            implementation=row.implementation,
            owner=row.owner,
            reason=row.reason,
            built=row.built,
            calls=row.calls,
        )
        for row in ops.rows()
    ]
