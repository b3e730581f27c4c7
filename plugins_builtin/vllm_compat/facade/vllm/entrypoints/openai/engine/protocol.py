"""The older path of ``vllm.entrypoints.generate.base.protocol`` and of
``vllm.entrypoints.serve.engine.protocol``.
"""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

from ...generate.base.protocol import __surface__ as _GENERATE
from ...serve.engine.protocol import __surface__ as _SERVE

_HOMES = {
    **dict.fromkeys(_GENERATE, "...generate.base.protocol"),
    **dict.fromkeys(_SERVE, "...serve.engine.protocol"),
}

__older_path_of__ = (
    "vllm.entrypoints.generate.base.protocol and vllm.entrypoints.serve.engine.protocol"
)

__all__ = [*_HOMES]

__surface__ = {**_GENERATE, **_SERVE}

__getattr__ = names_from(__name__, _HOMES)
