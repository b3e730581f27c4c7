"""The text of a prompt and where its tokens begin in it, for who is shown the prompt again.

Of a prompt that came as a text it is that text; of token ids it is what generated ones would be
written as. Text that is generated behind it is ``output``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hookserve.engine.sampling_params import SamplingParams

from .detokenizer import IncrementalDetokenizer
from .tokenizer import Tokenizer


class PromptText(NamedTuple):
    text: str
    offsets: list[int]
    """Of each token the number of characters in front of it: of a part of a character, where that
    begins; of a token that is not in the text, such as a BOS, where it would be."""


def given_text(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> PromptText:
    """Of a prompt that was encoded whole.

    The library says where in the text each token is. Vocabularies that leave the spaces around a
    token out of that have them in the token all the same: it begins where the one before ends.
    """
    # As a list: for one text by itself it keeps the interpreter's lock all the while.
    (encoding,) = tokenizer.backend.encode_batch([text], add_special_tokens=add_special_tokens)
    offsets: list[int] = []
    end = 0
    for (start, next_end), is_added in zip(
        encoding.offsets, encoding.special_tokens_mask, strict=True
    ):
        offsets.append(end if is_added else min(start, end))
        end = end if is_added else max(end, next_end)
    return PromptText(text, offsets)


def decoded_text(
    tokenizer: Tokenizer, token_ids: Sequence[int], params: SamplingParams
) -> PromptText:
    """Of a prompt of which there are the tokens alone, by the rules for its output."""
    detokenizer = IncrementalDetokenizer(
        tokenizer, (), params.skip_special_tokens, params.spaces_between_special_tokens
    )
    pieces: list[str] = []
    offsets: list[int] = []
    num_chars = 0
    for token_id in token_ids:
        offsets.append(num_chars + detokenizer.num_ahead(token_id))
        pieces.append(detokenizer.push((token_id,)))
        num_chars += len(pieces[-1])
    return PromptText("".join([*pieces, detokenizer.flush()]), offsets)
