"""What the model's files and the cache say about every request: the defaults of sampling, the end
tokens, and how many tokens fit. Fields of one request are ``sampling_rules``' to check."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from .config import EngineConfig
from .errors import InvalidRequestError, cut
from .model_choices import GENERATION_KEYS
from .sampling_rules import RULE_OF

logger = logging.getLogger(__name__)

MAX_STEP_LOGPROBS = 2**22
"""With their token ids they are at most 14 bytes each, so that one message holds them."""

_WITHOUT_EFFECT = {"typical_p": 1.0, "num_beams": 1}


@dataclass(frozen=True)
class SamplingDefaults:
    """What applies where a request says nothing: from ``generation_config.json``."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_model(cls, config: EngineConfig, tokenizer_eos: int | None) -> SamplingDefaults:
        """Values outside the accepted ranges, and settings that are not built, are named in the
        log and left out."""
        generation = config.model.generation_config
        kept: dict[str, Any] = {}
        for name in GENERATION_KEYS:
            value = generation.get(name)
            if value is None:
                continue
            rule = RULE_OF[name]
            if rule.accepts(value):
                kept[name] = value
            else:
                logger.warning(
                    "generation_config: %s=%s is not %s; left out", name, cut(value), rule.expected
                )
        for name, neutral in _WITHOUT_EFFECT.items():
            if generation.get(name, neutral) not in (None, neutral):
                logger.warning(
                    "generation_config: %s=%s is not supported yet and has no effect",
                    name,
                    cut(generation[name]),
                )
        if kept:
            logger.info("defaults from the model's generation_config: %s", kept)
        return cls(**kept, eos_token_ids=_eos_token_ids(config, tokenizer_eos))


def _eos_token_ids(config: EngineConfig, tokenizer_eos: int | None) -> tuple[int, ...]:
    """Every end token that the model's files name, without repeats."""
    stated: list[Any] = []
    for source in (config.model.generation_config, config.model.hf_config):
        value = source.get("eos_token_id")
        stated.extend(value if isinstance(value, list) else [] if value is None else [value])
    if tokenizer_eos is not None:
        stated.append(tokenizer_eos)
    found: dict[int, None] = {}
    for value in stated:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
            found[value] = None
        else:
            logger.warning("the model's files: eos_token_id %s is no id; left out", cut(value))
    return tuple(found)


@dataclass(frozen=True)
class ContextLimits:
    """How many tokens a request may have, prompt and output together, and which ones."""

    max_model_len: int
    kv_capacity: int
    vocab_size: int
    max_logprobs: int
    """-1: as many as the vocabulary has."""
    max_num_seqs: int
    max_num_batched_tokens: int

    @classmethod
    def of(cls, config: EngineConfig, kv_capacity: int) -> ContextLimits:
        """
        Args:
            kv_capacity: tokens that the whole KV cache holds.
        """
        return cls(
            max_model_len=config.model.max_model_len,
            kv_capacity=kv_capacity,
            vocab_size=config.model.vocab_size,
            max_logprobs=config.model.max_logprobs,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        )

    @property
    def most_logprobs(self) -> int:
        """Likeliest tokens that a position may show."""
        return self.vocab_size if self.max_logprobs == -1 else self.max_logprobs

    @property
    def capacity(self) -> int:
        """Tokens of one request, prompt and output together."""
        return min(self.max_model_len, self.kv_capacity)

    def max_tokens(
        self,
        num_prompt: int,
        asked: int | None,
        default: int | None,
        *,
        path: str = "max_tokens",
        prompt_path: str = "prompt",
    ) -> int:
        """Tokens that the request may generate.

        Args:
            asked: the caller's own number; it must fit.
            default: where the caller says nothing; cut to what is left. ``None``: all that is left.
            path, prompt_path: what messages call that number, and the prompt.

        Raises:
            InvalidRequestError: ``context_length_exceeded``, with the numbers.
        """
        of = (
            f"the model's context of {self.max_model_len} tokens"
            if self.max_model_len <= self.kv_capacity
            else f"the KV cache, which holds {self.kv_capacity} tokens"
        )
        left = self.capacity - num_prompt
        if left < 1:
            raise _too_long(
                f"{prompt_path}: it has {num_prompt} tokens, which leaves none of {of}", prompt_path
            )
        if asked is not None and asked > left:
            raise _too_long(
                f"{num_prompt} prompt tokens and {path} {asked} are {num_prompt + asked} "
                f"tokens together, more than {of}",
                path,
            )
        if asked is not None:
            return asked
        return left if default is None else min(default, left)

    def check_token_ids(self, token_ids: list[int], path: str) -> None:
        """Look for a token id that the model does not have.

        Args:
            path: what messages call the list.

        Raises:
            InvalidRequestError: ``invalid_token_id``, with the place of the first one.
        """
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            at = next(i for i, t in enumerate(token_ids) if not 0 <= t < self.vocab_size)
            raise InvalidRequestError(
                f"{path}[{at}]: token id {cut(token_ids[at])} is not in the vocabulary "
                f"(0 to {self.vocab_size - 1})",
                param=f"{path}[{at}]",
                code="invalid_token_id",
            )

    def num_logprobs(self, asked: int | None, path: str) -> int | None:
        """How many of the likeliest tokens each position shows; -1 asks for all of them, ``None``
        for no log-probabilities.

        Args:
            path: what messages call the number.

        Raises:
            InvalidRequestError: more than the server gives, or than one step can tell of.
        """
        if asked is None:
            return None
        wanted = self.vocab_size if asked == -1 else asked
        limit = self.most_logprobs
        if wanted > limit:
            raise InvalidRequestError(
                f"{path}: {asked} asks for {wanted} log-probabilities a token; {limit} are the "
                "limit (--max-logprobs)",
                param=path,
                code="invalid_value",
            )
        self._check_step(path, asked, self.max_num_seqs * (1 + wanted))
        return wanted

    def check_prompt_logprobs(
        self, asked: int | None, num_prompt_tokens: int, path: str = "prompt_logprobs"
    ) -> None:
        """As ``num_logprobs``, for prompts of so many tokens together.

        One step can end a prompt of several steps and, besides, as many shorter ones as its
        tokens suffice for.

        Raises:
            InvalidRequestError: as ``num_logprobs``.
        """
        num_shown = self.num_logprobs(asked, path)
        if num_shown is not None:
            own = num_prompt_tokens * (1 + num_shown)
            others = self.max_num_batched_tokens * (1 + num_shown)
            count = own + min(others, (self.max_num_seqs - 1) * own)
            self._check_step(path, asked, count)

    @staticmethod
    def _check_step(path: str, asked: int | None, count: int) -> None:
        if count > MAX_STEP_LOGPROBS:
            raise InvalidRequestError(
                f"{path}: {asked} could make {count} log-probabilities in one step, with all that "
                f"may run together; {MAX_STEP_LOGPROBS} are the limit",
                param=path,
                code="invalid_value",
            )


def _too_long(message: str, path: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=path, code="context_length_exceeded")
