"""Byte-level BPE vocabularies of GGUF files (``tokenizer.ggml.model`` is ``gpt2``).

The file names the rule by which text is split before merging (``tokenizer.ggml.pre``). A rule that
is not known here is refused: splitting by another one gives a model tokens that it has never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from hookserve.engine.errors import ModelFileError
from hookserve.engine.gguf import GGUFFile
from hookserve.engine.gguf_metadata import Metadata

from .gguf_tokens import TokenList

PreTokenizer = Callable[[], pre_tokenizers.PreTokenizer]

_WORDS_AND_DIGITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The published tokenizers of Llama 3 and Qwen2, which differ in how many digits stay together."""

_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The published tokenizer of Mistral Nemo."""


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _byte_level()])


def _split(pattern: str) -> PreTokenizer:
    def build() -> pre_tokenizers.PreTokenizer:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, plain])

    return build


@dataclass(frozen=True, slots=True)
class Rule:
    """What one value of ``tokenizer.ggml.pre`` stands for."""

    pre_tokenizer: PreTokenizer
    ignores_merges: bool = False
    """A word that is a token is not merged from its parts."""
    adds_bos: bool = False
    """Where no key says otherwise."""
    composes: bool = False
    """Text is brought into normal form C first."""


_GPT2 = Rule(_byte_level)
_LLAMA3 = Rule(_split(_WORDS_AND_DIGITS % r"\p{N}{1,3}"), ignores_merges=True, adds_bos=True)
_QWEN2 = Rule(_split(_WORDS_AND_DIGITS % r"\p{N}"), composes=True)

RULES: Mapping[str, Rule] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "smollm": Rule(_single_digits),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": Rule(_split(_CASED_WORDS), ignores_merges=True, adds_bos=True),
}


def rule_of(file: GGUFFile) -> Rule:
    """The file's rule.

    Raises:
        ModelFileError: one that is not known.
    """
    pre = file.metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(pre, str) or pre not in RULES:
        raise ModelFileError(
            f"{file.path}: its pre-tokenizer {pre!r} is not supported; supported: "
            f"{', '.join(RULES)}"
        )
    return RULES[pre]


def build_byte_level(file: GGUFFile, tokens: TokenList) -> Tokenizer:
    """The splitting, merging and joining; whole tokens and BOS are the caller's.

    Raises:
        ModelFileError: an unknown rule, or merges that name no tokens.
    """
    rule = rule_of(file)
    model = models.BPE(
        vocab=tokens.ids, merges=_merges(file, tokens), ignore_merges=rule.ignores_merges
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _merges(file: GGUFFile, tokens: TokenList) -> list[tuple[str, str]]:
    ids = tokens.ids
    merges: list[tuple[str, str]] = []
    for index, merge in enumerate(Metadata(file).values("tokenizer.ggml.merges", str)):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelFileError(
                f"{file.path}: merge {index} {merge[:80]!r} names a token that is not in the "
                "vocabulary"
            )
        merges.append((left, right))
    return merges
