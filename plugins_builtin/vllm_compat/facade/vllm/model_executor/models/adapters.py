"""Models made into embedders or classifiers: none is served."""

from __future__ import annotations

__all__: list[str] = []

__surface__ = {
    "as_embedding_model": "refused: no route pools yet; serve the model as it is",
    "as_seq_cls_model": "refused: no route pools yet; serve the model as it is",
    "as_reward_model": "refused: no route pools yet; serve the model as it is",
}
