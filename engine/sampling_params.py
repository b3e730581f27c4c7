"""How one request is sampled: plain data, checked in front before the engine sees it."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Defaults and names are the ecosystem's (vLLM's)."""

    n: int = 1
    """Sequences for the prompt. Divided into requests of one each before the engine sees them."""
    best_of: int | None = None
    """Sequences to generate, of which the ``n`` likeliest are returned; ``None``: ``n``."""
    temperature: float = 1.0
    """0 is greedy. Range [0, 2]."""
    top_p: float = 1.0
    """Range (0, 1]."""
    top_k: int = 0
    """0 or -1: off."""
    min_p: float = 0.0
    """Range [0, 1]: tokens less likely than this part of the likeliest one are left out."""
    repetition_penalty: float = 1.0
    """Above 0; 1 is off. Over the tokens of prompt and output."""
    presence_penalty: float = 0.0
    """Range [-2, 2]. Over the tokens of the output."""
    frequency_penalty: float = 0.0
    """Range [-2, 2]. Over the tokens of the output."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these token ids."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these may be sampled; ``None``: all."""
    bad_words: tuple[str, ...] = ()
    """Texts that must not be generated."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Filled in front from ``bad_words`` and the tokenizer."""
    seed: int | None = None
    """A generator of its own for the request: the same text alone and among neighbours."""
    max_tokens: int = 16
    """At least 1; the front has already cut it to what the context leaves."""
    min_tokens: int = 0
    """Until so many tokens are generated, no end token and no stop token id is sampled."""
    logprobs: int | None = None
    """Log-probabilities of the generated tokens and of so many best ones at each; -1: of all."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    stop: tuple[str, ...] = ()
    """Found in text by the output processor in front, never by the engine."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    eos_token_ids: tuple[int, ...] = ()
    """Filled in front from the model's generation config and tokenizer."""
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
