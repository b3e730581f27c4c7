"""Token embeddings and the head over the vocabulary."""

from __future__ import annotations

from hookserve.ops.vocab_parallel_embedding import (
    DEFAULT_VOCAB_PADDING_SIZE,
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

__all__ = [
    "DEFAULT_VOCAB_PADDING_SIZE",
    "ParallelLMHead",
    "UnquantizedEmbeddingMethod",
    "VocabParallelEmbedding",
    "pad_vocab_size",
]

__surface__ = {
    "DEFAULT_VOCAB_PADDING_SIZE": "live: vocabularies are padded to a multiple of it",
    "ParallelLMHead": "live: models build it",
    "VocabParallelEmbedding": "live: models build it",
    "UnquantizedEmbeddingMethod": "live: looks rows up, and scores them, without a quantization",
    "pad_vocab_size": "live: the size of a padded vocabulary",
}


def pad_vocab_size(vocab_size: int, pad_to: int = DEFAULT_VOCAB_PADDING_SIZE) -> int:
    """The least multiple of ``pad_to`` that holds a vocabulary."""
    return -(-vocab_size // pad_to) * pad_to
