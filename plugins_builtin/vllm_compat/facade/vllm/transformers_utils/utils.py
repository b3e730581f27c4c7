"""What references of models look like."""

from __future__ import annotations

import os

__all__ = ["is_s3"]

__surface__ = {
    "is_s3": "live: whether a reference begins with s3://",
    "without_trust_remote_code": "refused: a checkpoint's code is never run; leave it out",
}


def is_s3(model_or_path: str | os.PathLike[str]) -> bool:
    return str(model_or_path).lower().startswith("s3://")
