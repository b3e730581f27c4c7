"""``Echo``: the prompts of a completion in front of its texts, for ``echo``.

Plugins do not see them in ``before_response``: nothing of them was generated. How a choice is
written is the route's business.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator

import msgspec

from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.text.output import TextDelta
from hookserve.engine.text.prompt_text import PromptText, decoded_text, given_text
from hookserve.engine.text.tokenizer import Tokenizer

from .errors import bad_request
from .generation import Generation
from .prompts import Prompts
from .wire_completions import CompletionRequest


class Echo:
    """
    Attributes:
        texts: of each prompt.
    """

    def __init__(self, texts: list[PromptText]) -> None:
        self.texts = texts

    @classmethod
    async def of(
        cls,
        tokenizer: Tokenizer,
        given: Prompts,
        token_lists: list[list[int]],
        params: SamplingParams,
    ) -> Echo:
        """In a thread, as all work on long texts is.

        Args:
            given: the prompts as the client gave them.
            token_lists: what the model is given.
            params: how tokens are written where there is no text of the client's: of a prompt that
                was shortened, what is left of it.
        """

        is_whole = bool(given.texts) and given.shortening is None
        if is_whole and params.logprobs is None:  # nobody asks where the tokens are
            return cls([PromptText(text, []) for text in given.texts.values()])

        def texts() -> list[PromptText]:
            if is_whole:
                every = given.texts.values()
                return [given_text(tokenizer, text, given.add_special_tokens) for text in every]
            return [decoded_text(tokenizer, token_ids, params) for token_ids in token_lists]

        return cls(await asyncio.to_thread(texts))


def with_prompt_logprobs(params: SamplingParams, num_top: int) -> SamplingParams:
    """So that the prompt's log-probabilities come, at least as many as of generated tokens."""
    num_asked = params.prompt_logprobs
    if num_asked != -1:
        params = msgspec.structs.replace(params, prompt_logprobs=max(num_top, num_asked or 0))
    return params


async def when_known(generation: Generation) -> AsyncIterator[tuple[int, TextDelta]]:
    """The deltas of a generation, each when the log-probabilities of its prompt are known: one of a
    prompt's sequences brings them, and that one need not be the first to speak."""
    waiting: dict[int, list[tuple[int, TextDelta]]] = defaultdict(list)
    async for index, delta in generation.deltas():
        prompt_index = index // generation.per_prompt
        waiting[prompt_index].append((index, delta))
        if generation.prompt_logprobs[prompt_index] is not None:
            for each in waiting.pop(prompt_index):
                yield each
    assert not waiting, "every prompt's log-probabilities come with its first sequence"


def is_prompt_only(wanted: CompletionRequest) -> bool:
    """Whether nothing is to be generated."""
    return wanted.max_tokens == 0


def check_echo(wanted: CompletionRequest) -> None:
    """Raise the 400 for a reply of nothing at all, and for more tokens than there may be."""
    if not is_prompt_only(wanted):
        return
    if not wanted.echo:
        raise bad_request(
            "max_tokens: expected at least 1; 0 needs echo: true",
            param="max_tokens",
            code="invalid_value",
        )
    if wanted.min_tokens:
        raise bad_request(
            f"min_tokens: {wanted.min_tokens} is more than max_tokens (0)",
            param="min_tokens",
            code="invalid_value",
        )
