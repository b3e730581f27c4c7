"""The kinds of tasks that a model may serve."""

from __future__ import annotations

from typing import Literal, get_args

__all__ = [
    "FRONTEND_TASKS",
    "GENERATION_TASKS",
    "POOLING_TASKS",
    "SUPPORTED_TASKS",
    "FrontendTask",
    "GenerationTask",
    "PoolingTask",
    "SupportedTask",
]

__surface__ = {
    "FRONTEND_TASKS": "shape: names alone; no model here serves one of them",
    "GENERATION_TASKS": "live: generate is what every model serves; transcription and realtime are "
    "names alone",
    "POOLING_TASKS": "shape: names alone; no pooling model is served yet",
    "SUPPORTED_TASKS": "shape: all names together",
    "FrontendTask": "shape: the type of these names",
    "GenerationTask": "shape: the type of these names",
    "PoolingTask": "shape: the type of these names",
    "SupportedTask": "shape: the type of these names; endpoints name them in required_tasks",
}

GenerationTask = Literal["generate", "transcription", "realtime"]
GENERATION_TASKS: tuple[GenerationTask, ...] = get_args(GenerationTask)

PoolingTask = Literal["embed", "classify", "score", "token_embed", "token_classify", "plugin"]
POOLING_TASKS: tuple[PoolingTask, ...] = get_args(PoolingTask)

FrontendTask = Literal["render"]
FRONTEND_TASKS: tuple[FrontendTask, ...] = get_args(FrontendTask)

SupportedTask = GenerationTask | PoolingTask | FrontendTask
SUPPORTED_TASKS: tuple[SupportedTask, ...] = GENERATION_TASKS + POOLING_TASKS + FRONTEND_TASKS
