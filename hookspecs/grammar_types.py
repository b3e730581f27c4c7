"""What crosses the hook ``grammar_backend``: the form that a text must have, and what a backend
makes of it. What a request says is ``engine.structured_outputs``', masks are applied by the
sampler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


class GrammarSpec(msgspec.Struct, frozen=True):
    """Equal specs mean equal grammars: a cache may go by them."""

    kind: str
    """``"json"``, ``"json_object"``, ``"regex"``, ``"choice"`` or ``"grammar"``."""
    text: str
    """Of a JSON schema (for both forms of JSON), a regular expression for the whole text, a JSON
    list of texts, or a grammar in the backend's own language."""
    whitespace_pattern: str | None = None
    """For JSON: what may stand between its tokens; ``None``: the backend's own choice, which is
    bounded, so that a model cannot write white space for ever."""
    any_whitespace: bool = True
    """For JSON: false: nothing may stand there."""
    lenient: bool = False
    """For a schema: pass over keywords that cannot be held to."""


class GrammarVocabulary(msgspec.Struct, frozen=True):
    """What the model's tokens are."""

    tokens: list[bytes]
    """By token id, what each adds to a text: UTF-8, or a part of a character. Empty for special
    tokens and for ids without a token: no text has them."""
    encode: Callable[[str], list[int]]
    """Token ids as the model's own tokenizer divides a text, without special tokens. Where it puts
    something before a text, their bytes are not those of the text alone."""


class GrammarBackend(Protocol):
    """Makes grammars in the engine's process.

    Built once, at the first request that needs it, in a thread of its own; there ``compile`` runs
    too, one call at a time, while others' steps go on. Whoever computes for long releases the
    interpreter's lock, or they wait.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None: ...

    @staticmethod
    def validate(spec: GrammarSpec) -> None:
        """Say in the front, before the engine sees the request, that the spec can be no grammar.
        Called on the class.

        Raises:
            ValueError: one sentence for the client.
        """

    def compile(self, spec: GrammarSpec) -> Grammar:
        """
        Raises:
            ValueError: the spec can be no grammar, or one too large: one sentence for the client.
        """
        ...


class Grammar(Protocol):
    """What was compiled; a cache keeps it, and requests with equal specs share it."""

    num_bytes: int
    """About how much memory it holds."""

    def matcher(self) -> GrammarMatcher:
        """The place of one sequence in the grammar: at its start. Between two steps: takes less
        than a millisecond."""
        ...


class GrammarMatcher(Protocol):
    """Follows one sequence token by token, in the engine's process between its steps.

    End tokens are the host's: it allows them where ``can_end``, and ends the sequence where
    ``is_finished``. What it raises fails its request alone; the sentence of a ``ValueError`` is the
    client's.
    """

    def fill_mask(self, mask: np.ndarray[Any, Any]) -> None:
        """Write which tokens may come next.

        Args:
            mask: int32 [ceil(tokens / 32)] zeros; token ``i`` is bit ``i % 32``, counted from the
                lowest, of element ``i // 32``.
        """

    def accept(self, token_id: int) -> bool:
        """Go on by one token, no end token; false where it may not come next."""
        ...

    def can_end(self) -> bool:
        """Whether the text so far is whole."""
        ...

    def is_finished(self) -> bool:
        """Whether the text is whole and nothing may follow."""
        ...
