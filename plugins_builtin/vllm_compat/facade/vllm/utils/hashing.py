"""Digests of Python values."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from typing import Any

import msgspec

__all__ = ["get_hash_fn_by_name", "safe_hash", "sha256"]

__surface__ = {
    "get_hash_fn_by_name": "shape: the function of a name, for a plugin's own use; blocks of the "
    "KV cache are named by a hash of their own",
    "safe_hash": "live: hashlib.sha256, for what need not be secret",
    "sha256": "live: the digest of any value that can be pickled",
}

safe_hash = hashlib.sha256


def sha256(input: Any) -> bytes:
    """32 bytes."""
    return hashlib.sha256(pickle.dumps(input, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def _sha256_plain(input: Any) -> bytes:
    """The same in every process and version of Python, for plain data."""
    return hashlib.sha256(msgspec.msgpack.encode(input)).digest()


def get_hash_fn_by_name(hash_fn_name: str) -> Callable[[Any], bytes]:
    """
    Raises:
        ValueError: a name that there is none of.
    """
    known = {"sha256": sha256, "sha256_cbor": _sha256_plain}
    if hash_fn_name not in known:
        raise ValueError(f"hash function {hash_fn_name!r}: expected one of {', '.join(known)}")
    return known[hash_fn_name]
