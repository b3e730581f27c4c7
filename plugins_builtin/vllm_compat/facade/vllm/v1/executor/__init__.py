"""How the engine's calls reach its workers."""

from __future__ import annotations

from .abstract import Executor
from .uniproc_executor import UniProcExecutor

__all__ = ["Executor", "UniProcExecutor"]

__surface__ = {
    "Executor": "live: base of every executor",
    "UniProcExecutor": "live: one worker in the engine's process",
}
