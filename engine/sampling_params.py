"""How one request is sampled: plain data, checked in front before the engine sees it.

Single values are checked by ``sampling_rules`` whenever a struct comes to be, decoding included,
and whenever one is set. What the context and the tokenizer say is filled in by whoever has those,
in a copy: what a caller sets later reaches no request that has begun.
"""

from __future__ import annotations

import copy
import enum
from typing import TYPE_CHECKING, Any, Self

import msgspec

from .sampling_rules import (
    RULE_OF,
    RULES,
    RequestOutputKind,
    SamplingParamsError,
    as_list,
    as_tuple,
)
from .structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from collections.abc import Sequence


class SamplingType(enum.IntEnum):
    """Numbers are the ecosystem's (vLLM's)."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Defaults and names are the ecosystem's (vLLM's).

    Sequences may be given as any collection, and one text alone for ``stop`` and ``bad_words``; for
    both ``None`` is the same as nothing. A field may be set later as it may be given; what two
    fields say together, and what a list was given in its place, is looked at when the parameters
    are used.

    Raises:
        SamplingParamsError: a ``ValueError`` that names the field, for a value that cannot be.
    """

    n: int = 1
    """Sequences for the prompt. Divided into requests of one each before the engine sees them."""
    best_of: int | None = None
    """Sequences to generate, of which the ``n`` likeliest are returned; ``None``: ``n``."""
    temperature: float = 1.0
    """0 is greedy. Any finite number from 0 on."""
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
    """Added to the logits of these token ids. Range [-100, 100]."""
    allowed_token_ids: list[int] | None = None
    """Only these may be sampled; ``None``: all."""
    bad_words: list[str] = msgspec.field(default_factory=list)
    """Texts that must not be generated."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Filled in front from ``bad_words`` and the tokenizer."""
    seed: int | None = None
    """A generator of its own for the request: the same text alone and among neighbours."""
    max_tokens: int | None = 16
    """At least 1; the front cuts it to what the context leaves. ``None``: all that is left."""
    min_tokens: int = 0
    """Until so many tokens are generated, no end token and no stop token id is sampled."""
    logprobs: int | None = None
    """Log-probabilities of the generated tokens and of so many best ones at each; -1: of all."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt."""
    stop: list[str] = msgspec.field(default_factory=list)
    """Found in text by the output processor in front, never by the engine."""
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    ignore_eos: bool = False
    eos_token_ids: tuple[int, ...] = ()
    """Filled in front from the model's generation config and tokenizer."""
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """Where they are shown: with the space that some vocabularies put between them."""
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    """The form that the text must have."""
    form_begins_behind: int | None = None
    """Filled in front where the model thinks first: the token behind which the form begins."""
    extra_args: dict[str, Any] | None = None
    """JSON for plugins, mostly for logits processors; nobody else looks at it."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """What ``AsyncLLM.generate`` and ``LLMEngine.step`` give back; nobody else looks at it."""

    def __post_init__(self) -> None:
        for name in _LISTS:
            value = getattr(self, name)
            if value is not None or name != "allowed_token_ids":
                msgspec.structs.force_setattr(self, name, as_list(name, value))
        for name in _FILLED:
            value = getattr(self, name)
            if type(value) is not tuple:
                msgspec.structs.force_setattr(self, name, as_tuple(name, value))
        for name, accepts, expected in RULES:
            value = getattr(self, name)
            if not accepts(value):
                raise SamplingParamsError(name, value, expected)
        _check_form(self.structured_outputs)
        self.check_together()

    def check_together(self) -> None:
        """Raises ``SamplingParamsError`` for two fields that contradict each other."""
        if self.best_of is not None and self.best_of < self.n:
            raise SamplingParamsError("best_of", self.best_of, f"at least n ({self.n})")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            expected = f"at most max_tokens ({self.max_tokens})"
            raise SamplingParamsError("min_tokens", self.min_tokens, expected)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _LISTS and (value is not None or name != "allowed_token_ids"):
            value = as_list(name, value)
        elif name in _FILLED:
            value = as_tuple(name, value)
        rule = RULE_OF.get(name)
        if rule is not None and not rule.accepts(value):
            raise SamplingParamsError(name, value, rule.expected)
        if name == "structured_outputs":
            _check_form(value)
        super().__setattr__(name, value)

    @property
    def all_stop_token_ids(self) -> frozenset[int]:
        """Every token id that may end the sequence, whether or not ``ignore_eos`` is set."""
        return frozenset((*self.stop_token_ids, *self.eos_token_ids))

    @property
    def sampling_type(self) -> SamplingType:
        if self.temperature == 0:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @classmethod
    def from_optional(cls, **given: Any) -> Self:
        """What is ``None`` counts as not given. Raises as the constructor."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    def check_vocabulary(self, vocab_size: int) -> None:
        """Look at every token id that the caller named.

        Raises:
            SamplingParamsError: for one that the model does not have.
        """
        named: list[tuple[str, Sequence[int]]] = [
            ("logit_bias", tuple(self.logit_bias or ())),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("stop_token_ids", self.stop_token_ids),
        ]
        named += [("bad_words", ids) for ids in self.bad_words_token_ids]
        for name, token_ids in named:
            if token_ids and max(token_ids) >= vocab_size:
                expected = f"a token id of the vocabulary (0 to {vocab_size - 1})"
                raise SamplingParamsError(name, max(token_ids), expected)

    def clone(self) -> SamplingParams:
        """A copy that shares nothing that can be changed."""
        bias = self.logit_bias
        return msgspec.structs.replace(
            self,
            logit_bias=None if bias is None else dict(bias),
            extra_args=copy.deepcopy(self.extra_args),
            structured_outputs=copy.deepcopy(self.structured_outputs),
        )


def _check_form(form: Any) -> None:
    if not isinstance(form, StructuredOutputsParams | None):
        raise SamplingParamsError("structured_outputs", form, "StructuredOutputsParams")


_LISTS = ("allowed_token_ids", "bad_words", "stop", "stop_token_ids")
_FILLED = ("bad_words_token_ids", "eos_token_ids")
