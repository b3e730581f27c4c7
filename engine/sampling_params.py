"""How one request is sampled: plain data, checked in front before the engine sees it."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Defaults and names are the ecosystem's (vLLM's)."""

    temperature: float = 1.0
    """0 is greedy. Range [0, 2]."""
    top_p: float = 1.0
    """Range (0, 1]."""
    top_k: int = 0
    """0 or -1: off."""
    seed: int | None = None
    """A generator of its own for the request: the same text alone and among neighbours."""
    max_tokens: int = 16
    """At least 1; the front has already cut it to what the context leaves."""
    stop: tuple[str, ...] = ()
    """Found in text by the output processor in front, never by the engine."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    eos_token_ids: tuple[int, ...] = ()
    """Filled in front from the model's generation config and tokenizer."""
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
