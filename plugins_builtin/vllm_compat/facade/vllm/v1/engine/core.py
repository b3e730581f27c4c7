"""Scheduler and executor joined into steps."""

from __future__ import annotations

from hookserve.engine.core import EngineCore

__all__ = ["EngineCore"]

__surface__ = {
    "EngineCore": "live: the engine's process steps it; it is built with (vllm_config, host), and "
    "step returns one report",
    "EngineCoreProc": "refused: the engine's process is driven by hookserve.engine.process; patch "
    "EngineCore",
    "DPEngineCoreProc": "refused: there is one engine",
}
