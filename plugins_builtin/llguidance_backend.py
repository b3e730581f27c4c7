"""Built-in grammars: JSON schemas, regular expressions, choices and grammars by llguidance.

The library follows a grammar in microseconds a token, and has limits of its own for what a grammar
may cost. What it lacks is added here: a bound on white space, its own thread's stack, on which
rules that follow one another in their thousands find room, and the look at the first tokens, which
shows grammars that no text matches. The library is imported at the first use.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hookserve.hookspecs.grammar_types import GrammarSpec, GrammarVocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITESPACE = r"[ \t\n\r]{1,32}"
"""Between two tokens of JSON: enough for a new line and its indentation, and never without end."""
MAX_GRAMMAR_BYTES = 32 * 2**10
MAX_GBNF_BYTES = 16 * 2**10
"""GBNF is translated by Python code, whose time grows with the square."""
MAX_RULES = 400
"""Of a grammar: what is wrong behind a long chain of rules is told with each of them around it, in
seconds that grow with the square."""
MAX_STATES = 50_000
"""Of the machine that reads texts token by token; a state takes up to 2 kB."""
MAX_MASK_S = 0.1
"""Processor time for one token's choices; the engine's step waits for them."""
STACK_BYTES = 256 * 2**20
"""Address space; what is not used takes no memory."""

_stack_lock = threading.Lock()
T = TypeVar("T")


class LLGuidanceBackend:
    """The backend ``llguidance``, also called ``guidance``."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._tokenizer = _make_tokenizer(vocabulary)
        self._num_tokens = len(vocabulary.tokens)

    @staticmethod
    def validate(spec: GrammarSpec) -> None:
        """As the interface says; against a vocabulary of single bytes."""
        _on_deep_stack(lambda: _compile(spec, _byte_tokenizer()))

    def compile(self, spec: GrammarSpec) -> LLGuidanceGrammar:
        matcher = _on_deep_stack(lambda: _compile(spec, self._tokenizer))
        # As measured over schemas of 60 B to 300 kB.
        return LLGuidanceGrammar(matcher, self._num_tokens, 2**17 + 64 * len(spec.text))


class LLGuidanceGrammar:
    def __init__(self, matcher: LLMatcher, num_tokens: int, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._matcher = matcher
        self._num_tokens = num_tokens

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._matcher.deep_copy(), self._num_tokens)


class LLGuidanceMatcher:
    """Args:
    num_tokens: of the model; the id behind the last one is the library's end token.
    """

    def __init__(self, matcher: LLMatcher, num_tokens: int) -> None:
        self._matcher = matcher
        self._num_tokens = num_tokens
        self._mask: np.ndarray[Any, np.dtype[np.int32]] | None = None
        """Of the next token, where it is known."""

    def fill_mask(self, mask: np.ndarray[Any, Any]) -> None:
        known = self._mask
        if known is None:
            known = _next_tokens(self._matcher, self._num_tokens)
        mask[:] = known[: len(mask)]

    def accept(self, token_id: int) -> bool:
        self._mask = None
        taken = self._matcher.try_consume_tokens([token_id])
        _raise_if_broken(self._matcher)
        return bool(taken == 1)

    def can_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def is_finished(self) -> bool:
        if self._matcher.is_stopped():
            return True
        if not self._matcher.is_accepting():
            return False
        self._mask = _next_tokens(self._matcher, self._num_tokens)
        return not self._mask.any()


def _next_tokens(matcher: LLMatcher, num_tokens: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The mask of the next token, without the library's end token.

    Raises:
        ValueError: the grammar is beyond the limits here.
    """
    mask = np.zeros(num_tokens // 32 + 1, dtype=np.int32)
    started = time.thread_time()
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    _raise_if_broken(matcher)
    _check_time(time.thread_time() - started)
    mask.view(np.uint32)[num_tokens // 32] &= np.uint32((1 << num_tokens % 32) - 1)
    return mask


def _check_time(took_s: float) -> None:
    if took_s > MAX_MASK_S:
        raise ValueError(
            f"the choices for one token take {1000 * took_s:.0f} ms to find; "
            f"{1000 * MAX_MASK_S:.0f} ms are the limit"
        )


def _raise_if_broken(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(_first_line(matcher.get_error()))


def _first_line(said: str) -> str:
    return " ".join(said.partition("\n<")[0].split())


def _compile(spec: GrammarSpec, tokenizer: LLTokenizer) -> LLMatcher:
    """
    Raises:
        ValueError: there is no such grammar, no text matches it, or it is beyond the limits.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False, max_lexer_states=MAX_STATES)
    matcher = LLMatcher(tokenizer, _source(spec), log_level=0, limits=limits)
    _raise_if_broken(matcher)
    _try_first_tokens(matcher.deep_copy(), tokenizer.vocab_size - 1)
    return matcher


def _source(spec: GrammarSpec) -> str:
    """The grammar in the library's own form."""
    from llguidance import LLMatcher, grammar_from

    if spec.kind in ("json", "json_object"):
        options: Any = {"lenient": spec.lenient}  # its type wants every key
        if spec.any_whitespace:
            options["whitespace_pattern"] = spec.whitespace_pattern or WHITESPACE
        else:
            options["whitespace_flexible"] = False
        return str(LLMatcher.grammar_from_json_schema(spec.text, overrides=options))
    if spec.kind == "regex":
        return str(LLMatcher.grammar_from_regex(spec.text))
    if spec.kind == "choice":
        return str(grammar_from("choice", spec.text))
    _check_size(spec.text)
    return str(grammar_from("grammar", spec.text))


def _check_size(grammar: str) -> None:
    num_bytes = len(grammar.encode())
    limit = MAX_GBNF_BYTES if "::=" in grammar else MAX_GRAMMAR_BYTES
    if num_bytes > limit:
        raise ValueError(f"the grammar has {num_bytes} bytes; {limit} are the limit")
    # Lark has one rule a line; GBNF may have several.
    num_rules = max(sum(":" in line for line in grammar.split("\n")), grammar.count("::="))
    if num_rules > MAX_RULES:
        raise ValueError(f"the grammar has {num_rules} rules; {MAX_RULES} are the limit")


def _try_first_tokens(matcher: LLMatcher, num_tokens: int) -> None:
    """Look at what may come first, and behind what must come first.

    Raises:
        ValueError: nothing may, or finding that takes too long.
    """
    for _ in range(2):
        try:
            mask = _next_tokens(matcher, num_tokens)
        except ValueError as error:
            if "NoExtension" in str(error):
                raise ValueError("no text can match it") from None
            raise
        if not mask.any() and not matcher.is_accepting():
            raise ValueError("no text can match it")
        forced = matcher.compute_ff_tokens()
        if not forced or matcher.is_stopped():
            return
        matcher.try_consume_tokens(forced)
        _raise_if_broken(matcher)


def _make_tokenizer(vocabulary: GrammarVocabulary) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapped = TokenizerWrapper(_Vocabulary(vocabulary))
    # Its type says that the library wants a subclass; it asks for the attributes alone.
    return LLTokenizer(wrapped, n_vocab=len(vocabulary.tokens) + 1)


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    """A vocabulary in which each byte is a token: what a grammar allows needs no other."""
    return _make_tokenizer(
        GrammarVocabulary([bytes([byte]) for byte in range(256)], lambda text: [*text.encode()])
    )


class _Vocabulary:
    """The vocabulary with the names that the library asks for, and an end token of its own behind
    the model's tokens: which ones end a sequence is the host's to know."""

    bos_token_id = None

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        tokens = vocabulary.tokens
        self.eos_token_id = len(tokens)
        self.tokens = [*tokens, b"<end>"]
        self.special_token_ids = [i for i, token in enumerate(self.tokens) if not token]
        self.special_token_ids.append(self.eos_token_id)
        self._encode = vocabulary.encode
        self._longest = max(map(len, tokens), default=1)
        self._by_bytes = {token: i for i, token in enumerate(tokens) if token}

    def __call__(self, text: str) -> list[int]:
        """How the model would most likely divide what a grammar forces."""
        if not isinstance(text, str):
            raise TypeError(f"expected a text, got {type(text).__name__}")
        token_ids = self._encode(text)
        spelled = text.encode()
        if b"".join([self.tokens[i] for i in token_ids]) == spelled:
            return token_ids
        return self._divide(spelled)

    def _divide(self, spelled: bytes) -> list[int]:
        """Longest token first; up to where there is none."""
        token_ids: list[int] = []
        at = 0
        while at < len(spelled):
            ends = range(min(len(spelled), at + self._longest), at, -1)
            end = next((e for e in ends if spelled[at:e] in self._by_bytes), None)
            if end is None:
                return token_ids
            token_ids.append(self._by_bytes[spelled[at:end]])
            at = end
        return token_ids


def _on_deep_stack(work: Callable[[], T]) -> T:
    """What ``work`` returns or raises, in a thread with a large stack. The library goes down into
    rules by recursion, and the end of a usual stack, some thousands of rules deep, would be the
    end of the process."""
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # handed on, whatever it is
            errors.append(error)

    thread = threading.Thread(target=run, name="grammar", daemon=True)
    with _stack_lock:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if errors:
        raise errors[0]
    return result[0]
