"""The table of ``vllm serve``'s flags as the command line uses it; it stands in
``engine.vllm_flags``, as arguments in Python are told by it too.
"""

from __future__ import annotations

from hookserve.engine.vllm_flags import VLLM_FLAGS, Flag, find_flag

__all__ = ["VLLM_FLAGS", "Flag", "find_flag"]
