"""SentencePiece vocabularies of GGUF files, against SentencePiece's rule and transformers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend
from transformers import GemmaTokenizer, LlamaTokenizer
from transformers.convert_slow_tokenizer import LlamaConverter, generate_merges

from hookserve.engine.errors import EX_IOERR, ModelFileError
from hookserve.engine.text.detokenizer import IncrementalDetokenizer
from hookserve.engine.text.tokenizer import Tokenizer, load_tokenizer
from tiny_sentencepiece import (
    BYTE,
    NORMAL,
    USER_DEFINED,
    pieces,
    write_sentencepiece_gguf,
)

Load = Callable[..., Tokenizer]
PARTS = [
    *("the", " the", "The", " quick", "fox", "over", "abcd", "bcd", "abc", "ing", "thing", "in"),
    *(
        " ",
        "  ",
        "     ",
        "\n",
        "\t",
        "é",
        "e\u0301",
        "日本",
        "日本語",
        "本",
        "ß",
        "🙂",
        "\U0010ffff",
    ),
    *("\x00", ".", "!", "123", "<0x41>", "▁", "▁the", "<unk", "s>", "Привет", "zq"),
]


def texts(count: int, seed: int, specials: tuple[str, ...] = ()) -> list[str]:
    rng = random.Random(seed)
    parts = [*PARTS, *specials]
    return ["", *parts] + [
        "".join(rng.choices(parts, k=rng.randrange(2, 25))) for _ in range(count)
    ]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(**changes: Any) -> Tokenizer:
        return load_tokenizer(write_sentencepiece_gguf(tmp_path / "tiny.gguf", **changes))

    return load


def by_score(text: str) -> list[int]:
    """SentencePiece's BPE as its source describes it: join the neighbours whose union has the best
    score, the leftmost of equals; then bytes for what is no piece."""
    tokens, scores, kinds = pieces()
    normal = {t: s for t, s, kind in zip(tokens, scores, kinds, strict=True) if kind == NORMAL}
    parts = list(("▁" + text).replace(" ", "▁")) if text else []
    while True:
        pairs = [(normal.get(a + b), -at) for at, (a, b) in enumerate(itertools.pairwise(parts))]
        best = max((pair for pair in pairs if pair[0] is not None), default=None)
        if best is None:
            break
        parts[-best[1] : 2 - best[1]] = ["".join(parts[-best[1] : 2 - best[1]])]
    ids = []
    for part in parts:
        spelled = [part] if part in normal else [f"<0x{byte:02X}>" for byte in part.encode()]
        ids += [tokens.index(token) for token in spelled]
    return ids


def test_a_calculation_by_hand(load: Load) -> None:
    """``▁xabcd``: of "ab" (rank 34), "bc" (35) and "cd" (37) the first is best; "abc" (36) then
    beats "cd"; "abcd" is made last. ``▁abcd``: "▁a" (3) is best of all, and leaves "bc".
    ``▁the``: "▁t" (0) is best, then "he" (1); "▁the" (4) is both."""
    tokens = load()
    spelled = [tokens.id_to_token(i) for i in tokens.encode("xabcd abcd the bcd", False)]
    assert spelled == ["▁", "x", "abcd", "▁a", "bcd", "▁the", "▁", "bcd"]
    assert [tokens.id_to_token(i) for i in tokens.encode("é日z", False)] == [
        *("▁", "é", "日", "<0x7A>")
    ]


def test_ids_follow_sentencepieces_rule(load: Load) -> None:
    tokenizer = load()
    for text in texts(400, seed=1):
        assert tokenizer.encode(text, False) == by_score(text), text


def merges_of(tokens: list[str], scores: list[float]) -> tuple[dict[str, int], list[Any]]:
    vocab = {token: at for at, token in enumerate(tokens)}
    return vocab, generate_merges(vocab, dict(zip(tokens, scores, strict=True)))


@pytest.mark.parametrize("adds_space", [True, False])
def test_ids_and_texts_equal_transformers_conversion(load: Load, adds_space: bool) -> None:
    """The parts that its converter of Llama's vocabulary makes, put together."""
    tokens, scores, _ = pieces()
    vocab, merges = merges_of(tokens, scores)
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    reference = Backend(model)
    converter: Any = object.__new__(LlamaConverter)
    converter.original_tokenizer = SimpleNamespace(legacy=True, add_prefix_space=adds_space)
    reference.normalizer = converter.normalizer(None)
    reference.decoder = converter.decoder("▁", adds_space)
    specials = ("<unk>", "<s>", "</s>")
    reference.add_special_tokens([AddedToken(t, normalized=False) for t in specials])
    tokenizer = load(add_space_prefix=adds_space)
    for text in texts(400, seed=2, specials=specials):
        ids = tokenizer.encode(text, False)
        assert ids == reference.encode(text, add_special_tokens=False).ids, text
        for hides in (True, False):
            assert tokenizer.decode(ids, hides) == reference.decode(ids, hides), text


def test_ids_equal_transformers_llama_tokenizer(load: Load) -> None:
    tokens, scores, _ = pieces()
    vocab, merges = merges_of(tokens, scores)
    reference = LlamaTokenizer(vocab=vocab, merges=merges)
    tokenizer = load()
    # The class leaves the prefix out before a space, which SentencePiece does not.
    for text in (text for text in texts(400, seed=3) if not text.startswith((" ", "▁"))):
        ids = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, False) == ids, text


def test_ids_equal_transformers_gemma_tokenizer(load: Load) -> None:
    """Gemma: no prefix; runs of spaces and tags are whole pieces that the user defined."""
    tokens, scores, kinds = pieces()
    whole = ["  ", "   ", "\n\n", "<b>"]
    tokens, scores, kinds = [*tokens, *whole], [*scores, *[-1000.0] * 4], [*kinds, *[4] * 4]
    for at in (tokens.index("▁▁"), tokens.index("▁▁▁▁")):
        tokens[at] = f"unused{at}"
    vocab, merges = merges_of(tokens, scores)
    reference = GemmaTokenizer(vocab=vocab, merges=merges, bos_token="<s>", eos_token="</s>")
    reference.add_tokens([AddedToken(token, normalized=False) for token in whole])
    tokenizer = load(tokens=tokens, scores=scores, token_type=kinds, add_space_prefix=False)
    for text in texts(400, seed=4, specials=("   ", "\n\n", "\n\n\n", "<b>")):
        ids = tokenizer.encode(text, False)
        assert ids == reference.encode(text, add_special_tokens=False), text
        assert tokenizer.decode(ids, False) == text.replace("▁", " ")


def test_a_whole_piece_spelled_with_marks_matches_spaces(load: Load) -> None:
    tokens, _, kinds = pieces()
    at = tokens.index("▁▁▁▁")
    kinds[at] = USER_DEFINED
    tokenizer = load(token_type=kinds, add_space_prefix=False)
    assert tokenizer.encode("the    the", False)[1:2] != [at]
    assert at in tokenizer.encode("the    the", False)
    assert at not in tokenizer.encode("the   the", False)
    assert at not in tokenizer.special_ids


def test_bos_and_eos_are_added_as_the_file_says(load: Load) -> None:
    plain = load().encode("the", False)
    assert load().encode("the") == [1, *plain]
    assert load(add_bos_token=False).encode("the") == plain
    assert load(add_bos_token=True, add_eos_token=True).encode("the") == [1, *plain, 2]
    no_keys = dict.fromkeys(("bos_token_id", "eos_token_id", "unknown_token_id"))
    assert load(**no_keys).encode("the") == [1, *plain]


def test_special_tokens_in_a_text_are_whole_and_hidden(load: Load) -> None:
    tokenizer = load()
    ids = tokenizer.encode("the</s>fox", False)
    assert ids == [*by_score("the"), 2, *by_score("fox")]
    assert tokenizer.decode(ids, True) == "the fox"
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }


def test_text_that_grows_is_the_decoded_whole(load: Load) -> None:
    tokenizer = load()
    for text in texts(60, seed=5):
        ids = tokenizer.encode(text, False)
        detokenizer = IncrementalDetokenizer(tokenizer)
        pieces_ = [detokenizer.push([i]) for i in ids]
        assert "".join(pieces_) + detokenizer.flush() == tokenizer.decode(ids, True), text


def test_without_byte_pieces_the_unknown_piece_stands_for_a_run(load: Load) -> None:
    tokens, scores, kinds = pieces()
    keep = [at for at, kind in enumerate(kinds) if kind != BYTE]
    tokenizer = load(
        tokens=[tokens[at] for at in keep],
        scores=[scores[at] for at in keep],
        token_type=[kinds[at] for at in keep],
    )
    spelled = [tokenizer.id_to_token(i) for i in tokenizer.encode("fox Привет fox", False)]
    assert spelled == ["▁fox", "▁", "<unk>", "▁fox"]
    unknown = "П" * 5000
    assert tokenizer.min_token_count(unknown) <= len(tokenizer.encode(unknown))


def test_a_chat_template_comes_from_the_file(load: Load) -> None:
    assert load().chat_template == "{% for m in messages %}{{ m.content }}{% endfor %}"


TOKENS, SCORES, KINDS = pieces()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"scores": None}, r"'tokenizer.ggml.scores' \(a list of float\) is missing"),
        ({"scores": [1, 2, 3]}, "'tokenizer.ggml.scores' is no list of float"),
        ({"scores": SCORES[:-1]}, r"scores' has (\d+) values for \d+ tokens"),
        ({"scores": [float("nan"), *SCORES[1:]]}, "a value that is no finite number"),
        ({"token_type": KINDS[:-1]}, r"\d+ token types for \d+ tokens"),
        ({"token_type": "normal"}, "'tokenizer.ggml.token_type' is no list of int"),
        ({"tokens": [*TOKENS[:-1], TOKENS[5]]}, "token '<0x02>' appears twice"),
        ({"tokens": [*TOKENS[:-1], "ab" * 200]}, "has 400 characters; at most 256"),
        ({"tokens": ["<unk>", "<s>", "</s>", "<0xZZ>", *TOKENS[4:]]}, "'<0xZZ>' is said to be"),
        ({"add_space_prefix": "yes"}, "'tokenizer.ggml.add_space_prefix' is 'yes'"),
    ],
)
def test_a_hostile_vocabulary_is_refused_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    path = write_sentencepiece_gguf(tmp_path / "tiny.gguf", **changes)
    with pytest.raises(ModelFileError, match=match) as raised:
        load_tokenizer(path)
    assert path in str(raised.value)
    assert raised.value.exit_code == EX_IOERR
    assert len(str(raised.value)) < 400 + len(path)
