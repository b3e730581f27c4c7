"""``TokenizerLike``: what a tokenizer can be asked."""

from __future__ import annotations

from hookserve.engine.text.tokenizer import Tokenizer as TokenizerLike

__all__ = ["TokenizerLike"]

__surface__ = {
    "TokenizerLike": "live: the class of the tokenizer that front, parsers and processors have; "
    "for annotations, isinstance and subclasses",
}
