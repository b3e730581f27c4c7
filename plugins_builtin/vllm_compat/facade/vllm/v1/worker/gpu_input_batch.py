"""The rows of live requests in a worker."""

from __future__ import annotations

from hookserve.engine.input_batch import InputBatch

__all__ = ["InputBatch"]

__surface__ = {
    "CachedRequestState": "refused: what a worker knows of a request is laid out otherwise; "
    "ModelRunner.requests holds it",
    "InputBatch": "live: what the model runner keeps its rows in; what is patched here is on the "
    "path, and the constructor's arguments are its own",
}
