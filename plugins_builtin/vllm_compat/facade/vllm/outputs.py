"""What a caller gets back: of generation, and the shapes of pooling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hookserve.engine.outputs import CompletionOutput, RequestOutput

__all__ = [
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
]

_SHAPE = "shape: importable, to be built and read; no pooling model is served, so nothing gives it"
__surface__ = {
    "ClassificationOutput": _SHAPE,
    "ClassificationRequestOutput": _SHAPE,
    "CompletionOutput": "live: one sequence of a RequestOutput",
    "EmbeddingOutput": _SHAPE,
    "EmbeddingRequestOutput": _SHAPE,
    "PoolingOutput": _SHAPE,
    "PoolingRequestOutput": _SHAPE,
    "RequestOutput": "live: what LLM.generate and AsyncLLM.generate give back",
    "ScoringOutput": _SHAPE,
    "ScoringRequestOutput": _SHAPE,
}

T = TypeVar("T")


@dataclass
class PoolingOutput:
    """``data``: the tensor that a pooler made of one prompt."""

    data: Any


@dataclass
class PoolingRequestOutput(Generic[T]):
    request_id: str
    outputs: T
    prompt_token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass
class EmbeddingOutput:
    embedding: list[float]

    @classmethod
    def from_base(cls, pooling_output: PoolingOutput) -> EmbeddingOutput:
        """
        Raises:
            ValueError: it is no vector.
        """
        return cls(_vector(pooling_output.data))

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    """``probs``: one for each class."""

    probs: list[float]

    @classmethod
    def from_base(cls, pooling_output: PoolingOutput) -> ClassificationOutput:
        """
        Raises:
            ValueError: it is no vector.
        """
        return cls(_vector(pooling_output.data))

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass
class ScoringOutput:
    score: float

    @classmethod
    def from_base(cls, pooling_output: PoolingOutput) -> ScoringOutput:
        """
        Raises:
            ValueError: it is more than one number.
        """
        return cls(float(pooling_output.data.item()))


def _vector(data: Any) -> list[float]:
    if data.ndim != 1:
        raise ValueError(f"pooled data of shape {tuple(data.shape)}: expected one vector")
    return [float(each) for each in data.tolist()]


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """Of one prompt."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """Of one prompt."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """Of one pair of texts."""
