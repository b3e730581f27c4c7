"""The calls that the ecosystem's code makes of a tokenizer, against transformers' answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from hookserve.engine.text.tokenizer import load_tokenizer

TEXT = " naïve <|end|> x"
CHAT = [{"role": "user", "content": "hello"}]


def test_its_calls_answer_as_those_of_transformers(tiny_llama: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(tiny_llama), load_tokenizer(str(tiny_llama))
    ids = theirs.encode(TEXT)
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "pad_token_id"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs) == ours.max_token_id + 1
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert set(ours.all_special_ids) >= set(theirs.all_special_ids)
    assert ours.all_special_tokens == theirs.convert_ids_to_tokens(ours.all_special_ids)
    tokens = ours.convert_ids_to_tokens(ids)
    assert tokens == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(ids[0]) == tokens[0]
    hidden = ours.convert_ids_to_tokens(ids, skip_special_tokens=True)
    assert hidden == theirs.convert_ids_to_tokens(ids, skip_special_tokens=True) != tokens
    assert ours.convert_tokens_to_ids(tokens) == ids
    assert ours.convert_tokens_to_ids("<|end|>") == theirs.convert_tokens_to_ids("<|end|>")
    assert ours.convert_tokens_to_ids("no such token") is None
    assert ours.convert_tokens_to_string(tokens) == theirs.convert_tokens_to_string(tokens)
    assert ours.num_special_tokens_to_add() == theirs.num_special_tokens_to_add()
    assert ours.decode(ids[1]) == theirs.decode(ids[1])
    assert ours.decode(ids) == theirs.decode(ids) != ours.decode(ids, True)


def test_texts_are_encoded_one_by_one_or_together_and_cut(tiny_llama: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(tiny_llama), load_tokenizer(str(tiny_llama))
    one = ours(TEXT)
    assert one.input_ids == one["input_ids"] == ours.encode(TEXT)
    assert one.attention_mask == [1] * len(one.input_ids)
    cut = ours.encode(TEXT, truncation=True, max_length=3)
    assert cut == theirs.encode(TEXT, truncation=True, max_length=3)
    assert ours.encode(TEXT, truncation=False, max_length=3) == one.input_ids
    two = ours(["ab", "cde"], truncation=True, max_length=2)
    assert two.input_ids == two["input_ids"] == [ours.encode("ab"), ours.encode("cd")]
    expected = theirs(["ab", "cde"], truncation=True, max_length=2)
    for name in ("input_ids", "attention_mask"):
        assert two[name] == expected[name]


def test_a_chat_is_rendered_by_its_own_template(tiny_llama: Path) -> None:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(tiny_llama), load_tokenizer(str(tiny_llama))
    text = ours.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert text == theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(CHAT) == ours.encode(
        str(ours.apply_chat_template(CHAT, tokenize=False)), False
    )
    plain = ours.apply_chat_template(CHAT, tokenize=False, return_dict=False, padding=False)
    assert plain == ours.apply_chat_template(CHAT, tokenize=False)
    with pytest.raises(ValueError, match="return_tensors is not served"):
        ours.apply_chat_template(CHAT, return_tensors="pt")
