"""The forms in which a caller may give a prompt, read into ``Prompt``: a text or token ids.

Tokenizing and limits are ``input_processor``'s.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidRequestError, cut

PromptInput = str | Sequence[int] | Mapping[str, Any]
"""A text; token ids; ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``, each with
``"cache_salt"`` if wanted."""

_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True)
class Prompt:
    """``text`` is what was given; with ``token_ids`` it is only shown again."""

    text: str | None
    token_ids: list[int] | None
    cache_salt: str | None = None


def read_prompts(given: Any) -> list[Prompt]:
    """One prompt, or a list of them. A list of whole numbers is one prompt of token ids.

    Raises:
        InvalidRequestError: with the place of the one that is no prompt.
    """
    if isinstance(given, str | Mapping) or _is_token_ids(given):
        return [read_prompt(given)]
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        raise InvalidRequestError(
            f"prompts: expected a prompt or a list of prompts, got {type(given).__name__}",
            param="prompts",
        )
    return [read_prompt(each, f"prompts[{at}]") for at, each in enumerate(given)]


def read_prompt(given: Any, path: str = "prompt") -> Prompt:
    """
    Args:
        path: what messages call it.

    Raises:
        InvalidRequestError: it is none of the forms.
    """
    if isinstance(given, str):
        return Prompt(given, None)
    if isinstance(given, Mapping):
        return _read_mapping(given, path)
    if _is_token_ids(given):
        return Prompt(None, list(given))
    raise InvalidRequestError(
        f"{path}: expected a text, a list of token ids, or a dict with 'prompt' or "
        f"'prompt_token_ids', got {cut(given)}",
        param=path,
    )


def _read_mapping(given: Mapping[str, Any], path: str) -> Prompt:
    for key in given:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(_KEYS)}"
            raise InvalidRequestError(f"{path}: unknown key {cut(key)!r}{hint}", param=path)
    text, token_ids, salt = (given.get(key) for key in _KEYS)
    if text is None and token_ids is None:
        raise InvalidRequestError(
            f"{path}: a dict needs 'prompt' or 'prompt_token_ids'", param=path
        )
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"{path}.prompt: expected a text", param=f"{path}.prompt")
    if token_ids is not None and not _is_token_ids(token_ids):
        key = f"{path}.prompt_token_ids"
        raise InvalidRequestError(f"{key}: expected a list of token ids", param=key)
    if salt is not None and not (isinstance(salt, str) and salt):
        key = f"{path}.cache_salt"
        raise InvalidRequestError(f"{key}: expected a text that is not empty", param=key)
    return Prompt(text, None if token_ids is None else list(token_ids), salt)


def _is_token_ids(given: Any) -> bool:
    """Bytes are no ids, though each of them is a whole number: somebody forgot to decode a text."""
    if not isinstance(given, Sequence) or isinstance(given, bytes | bytearray):
        return False
    return bool(given) and set(map(type, given)) == {int}
