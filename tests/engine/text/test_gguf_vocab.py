"""A GGUF vocabulary as tokenizer, against transformers and against ``tokenizers`` itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from hookserve.engine.errors import ModelFileError
from hookserve.engine.text.tokenizer import Tokenizer, load_tokenizer
from tiny_gguf import SPECIALS, train_vocab, write_tiny_gguf

PIECES = [
    *("the", "Quick", "def f(x):", "don't", "I'LL", "'s", "12", "3", "4567", "²", "٣", "½"),
    *(" ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u200b", "\ufeff"),
    *("é", "e\u0301", "日本", "русский", "🙂", "👩‍👩‍👧", "\U0010ffff", "\x00", "\x7f"),
    *(".", ",", "(", ")", "{}", "<|", "|>", "<|end|>", "<|start|>", "<|fim|>", "<|end"),
]


def random_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    texts = ["", *PIECES]
    for _ in range(count):
        if rng.random() < 0.7:
            texts.append("".join(rng.choices(PIECES, k=rng.randrange(1, 30))))
        else:
            codes = [rng.choice((32, rng.randrange(0xD800), 0x1F600)) for _ in range(20)]
            texts.append("".join(map(chr, codes)))
    return texts


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "deepseek-r1-qwen", "tekken"])
@pytest.mark.filterwarnings("default")
def test_ids_equal_transformers_conversion_of_the_file(tmp_path: Path, pre: str) -> None:
    from transformers import AutoTokenizer

    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", pre=pre)
    reference = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="tiny.gguf")
    ours = load_tokenizer(str(tiny.path))
    for text in random_texts(400, seed=1):
        # transformers leaves out what the rule of these two says about text as a whole (BOS in
        # front, normal form C): the splitting is what is compared.
        given = text if "qwen" not in pre else ours.backend.normalizer.normalize_str(text)
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == reference.encode(given, add_special_tokens=False), (pre, text)
        assert ours.decode(ids, False) == reference.decode(ids) == given


def test_smollm_splits_digits_off_one_by_one(tmp_path: Path) -> None:
    """Against the pre-tokenizer that SmolLM's published tokenizer.json describes: single digits,
    then byte-level. A run of spaces in front of a digit stays whole."""
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", pre="smollm")
    tokens, merges = train_vocab()
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in merges],
    )
    reference = Backend(model)
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    reference.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    ours = load_tokenizer(str(tiny.path))
    for text in random_texts(400, seed=2):
        assert ours.encode(text) == reference.encode(text).ids, text
    spellings = [ours.id_to_token(i) for i in ours.encode("x =    12")]
    assert spellings[-3:] == ["ĠĠĠĠ", "1", "2"]


def test_every_text_survives(byte_level: Tokenizer) -> None:
    for text in random_texts(500, seed=3):
        assert byte_level.decode(byte_level.encode(text), False) == text


def test_facts_of_the_vocabulary(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == 420
    assert byte_level.bos_token_id == 1
    assert byte_level.eos_token_id == 0
    assert byte_level.special_ids == {0, 1, 2}
    assert byte_level.chat_template == "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert byte_level.special_tokens["bos_token"] == "<|start|>"


def ids_with(tmp_path: Path, pre: str = "gpt-2", **metadata: Any) -> list[int]:
    keys = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    path = str(write_tiny_gguf(tmp_path / "tiny.gguf", pre=pre, metadata=keys).path)
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("a", add_special_tokens=False) == [tokenizer.backend.token_to_id("a")]
    return tokenizer.encode("a")


def test_bos_and_eos_are_added_as_the_file_says(tmp_path: Path) -> None:
    plain = ids_with(tmp_path)
    assert len(plain) == 1
    assert ids_with(tmp_path, add_bos_token=True) == [1, *plain]
    assert ids_with(tmp_path, add_bos_token=True, add_eos_token=True) == [1, *plain, 0]


def test_llama3s_rule_adds_bos_unless_the_file_says_no(tmp_path: Path) -> None:
    plain = ids_with(tmp_path, pre="llama-bpe", add_bos_token=False)
    assert ids_with(tmp_path, pre="llama-bpe") == [1, *plain]


def test_llama3s_rule_takes_a_whole_word_before_any_merge(tmp_path: Path) -> None:
    """The vocabulary has the word, no merges lead to it."""
    tokens, merges = train_vocab()
    metadata = {"tokenizer.ggml.tokens": [*tokens, "zzqzz"], "tokenizer.ggml.merges": merges}
    metadata["tokenizer.ggml.token_type"] = [1] * (len(tokens) + 1)
    metadata["llama.vocab_size"] = None
    ids = {}
    for pre in ("llama-bpe", "gpt-2"):
        path = tmp_path / f"{pre}.gguf"
        write_tiny_gguf(path, pre=pre, metadata=metadata)
        ids[pre] = load_tokenizer(str(path)).encode("zzqzz", add_special_tokens=False)
    assert ids["llama-bpe"] == [len(tokens)]
    assert len(ids["gpt-2"]) > 1


def test_user_defined_tokens_are_whole_but_not_hidden(tmp_path: Path) -> None:
    tokens, _ = train_vocab()
    types = [4 if token == "<|fim|>" else 3 if token in SPECIALS else 1 for token in tokens]
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={"tokenizer.ggml.token_type": types})
    tokenizer = load_tokenizer(str(tiny.path))
    assert tokenizer.encode("a<|fim|>")[1:] == [2]
    assert tokenizer.special_ids == {0, 1}
    assert tokenizer.decode([0, 2], True) == "<|fim|>"


def test_a_special_token_may_be_spelled_like_a_template(tmp_path: Path) -> None:
    tokens, _ = train_vocab()
    spelled = ["$B" if token == "<|start|>" else token for token in tokens]
    keys = {"tokenizer.ggml.tokens": spelled, "tokenizer.ggml.add_bos_token": True}
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", metadata=keys)
    assert load_tokenizer(str(tiny.path)).encode("")[:1] == [1]


def test_named_templates(tmp_path: Path) -> None:
    tiny = write_tiny_gguf(
        tmp_path / "tiny.gguf", metadata={"tokenizer.chat_template.tool_use": "tools"}
    )
    templates = load_tokenizer(str(tiny.path)).chat_templates
    assert templates.keys() == {"default", "tool_use"}


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"model": "t5"}, r"of the kind 't5'.*supported: 'gpt2' \(byte-level BPE\), 'llama'"),
        ({"model": None}, "of the kind None"),
        ({"pre": ["gpt-2"]}, r"pre-tokenizer \['gpt-2'\] is not supported"),
        ({"pre": "viking"}, "pre-tokenizer 'viking' is not supported; supported: default, gpt-2"),
        ({"merges": None}, r"'tokenizer.ggml.merges' \(a list of str\) is missing"),
        ({"merges": ["no such"]}, "merge 0 'no such' names a token"),
        ({"token_type": [1, 2]}, "2 token types for 420 tokens"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, "token 'a' appears twice"),
        ({"tokens": [1, 2]}, "'tokenizer.ggml.tokens' is no list of str"),
        ({"add_bos_token": 1}, "'tokenizer.ggml.add_bos_token' is 1; expected true or false"),
    ],
)
def test_what_cannot_be_built_is_refused(
    tmp_path: Path, metadata: dict[str, Any], match: str
) -> None:
    keys = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    tiny = write_tiny_gguf(tmp_path / "tiny.gguf", metadata=keys)
    with pytest.raises(ModelFileError, match=match) as raised:
        load_tokenizer(str(tiny.path))
    assert str(tiny.path) in str(raised.value)
