"""A norm that is built in the place of every RMSNorm."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.layernorm import RMSNorm

from . import note

note("import", module=__name__)


@RMSNorm.register_oot
class ToyRMSNorm(RMSNorm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.toy = True

    def forward_cuda(self, x: Any, residual: Any = None) -> Any:
        return self.forward_native(x, residual)
