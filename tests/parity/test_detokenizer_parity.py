"""Text token by token with a real vocabulary: as the ``tokenizers`` library decodes each prefix
that has whole characters."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Reference

from hookserve.engine.text.detokenizer import REPLACEMENT, IncrementalDetokenizer
from hookserve.engine.text.tokenizer import Tokenizer, load_tokenizer

TEXTS = (
    "naïve 🙂👩‍👩‍👧 日本語 é",
    "e\u0301o\u0308\u0323 한국어 हिन्दी ไทย العربية",
    "🇯🇵🏳️‍🌈🤷🏽‍♀️ \U0001f9d1\u200d\U0001f4bb",
    "  two  spaces\n\n\ttab\r\n<|im_start|>user\n",
    "\N{ZERO WIDTH NO-BREAK SPACE}a\N{ZERO WIDTH SPACE}b\U0010ffff",
)
NUM_RANDOM = 300
LENGTH = 24


@pytest.fixture(scope="module")
def ours(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture(scope="module")
def theirs(smollm2_f32: Path) -> Reference:
    return Reference.from_file(str(smollm2_f32 / "tokenizer.json"))


def check_prefixes(ours: Tokenizer, theirs: Reference, ids: list[int], skip: bool) -> None:
    detokenizer, found = IncrementalDetokenizer(ours, (), skip), ""
    for end, token_id in enumerate(ids, start=1):
        found += detokenizer.push([token_id])
        whole = theirs.decode(ids[:end], skip_special_tokens=skip)
        if not whole.endswith(REPLACEMENT):
            assert found == whole
    assert found + detokenizer.flush() == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_token_by_token(ours: Tokenizer, theirs: Reference, text: str) -> None:
    ids = theirs.encode(text).ids
    assert ours.encode(text) == ids
    assert b"".join(ours.token_bytes(token_id) for token_id in ids) == text.encode()
    check_prefixes(ours, theirs, ids, skip=False)


@pytest.mark.parametrize("skip", [False, True])
def test_random_tokens_make_the_same_text(ours: Tokenizer, theirs: Reference, skip: bool) -> None:
    generator = random.Random(20)
    kinds = [range(ours.vocab_size), range(20), range(160, 280)]  # all, special ones, single bytes
    for _ in range(NUM_RANDOM):
        ids = [generator.choice(generator.choice(kinds)) for _ in range(LENGTH)]
        check_prefixes(ours, theirs, ids, skip)
