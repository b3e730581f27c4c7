"""A transformers folder as tokenizer, against transformers' own loading of it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from hookserve.engine.errors import ModelFileError
from hookserve.engine.text.chat_template import render_chat
from hookserve.engine.text.prompt_text import given_text
from hookserve.engine.text.tokenizer import Tokenizer, load_tokenizer
from tiny_gguf import TinyGGUF

TEXTS = ["", "hello world", " naïve 🙂 日本", "a<|end|>b", "<|bos|>x", "x <extra> y", "\n\t 12 "]


@pytest.fixture
def folder(tmp_path: Path, tiny_llama: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_bos(folder: Path) -> None:
    """The tokenizer.json of a model that wants BOS in front of every text."""
    path = str(folder / "tokenizer.json")
    backend = Backend.from_file(path)
    backend.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", 256)]
    )
    backend.save(path)


def same_as_transformers(folder: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(str(folder))
    for text in TEXTS:
        ids = reference.encode(text)
        assert ours.encode(text) == ids, text
        plain = reference.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == plain, text
        for skip in (True, False):
            assert ours.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)
    assert ours.vocab_size == len(reference)
    assert ours.bos_token_id == reference.bos_token_id
    assert ours.eos_token_id == reference.eos_token_id
    return ours


def test_a_plain_folder(folder: Path) -> None:
    ours = same_as_transformers(folder)
    assert ours.special_ids == {256, 257, 258, 259}


def test_the_bos_of_tokenizer_json_counts_and_not_the_old_flag(folder: Path) -> None:
    with_bos(folder)
    edit(folder, add_bos_token=False)
    assert same_as_transformers(folder).encode("a")[0] == 256


def test_a_flag_alone_adds_no_bos(folder: Path) -> None:
    edit(folder, add_bos_token=True)
    assert same_as_transformers(folder).encode("a")[0] != 256


def test_special_tokens_as_objects_and_in_the_older_file(folder: Path) -> None:
    start = {"__type": "AddedToken", "content": "<|start|>", "normalized": False}
    edit(folder, bos_token=start, eos_token="<|pad|>")
    ours = same_as_transformers(folder)
    assert (ours.bos_token_id, ours.eos_token_id) == (258, 259)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<|end|>"}, "bos_token": "<|pad|>"})
    )
    ours = load_tokenizer(str(folder))
    assert (ours.bos_token_id, ours.eos_token_id) == (258, 257)


def test_tokens_that_only_the_configuration_declares(folder: Path) -> None:
    flags = {"lstrip": False, "rstrip": True, "single_word": False, "normalized": False}
    edit(folder, added_tokens_decoder={"260": {"content": "<extra>", "special": False, **flags}})
    ours = same_as_transformers(folder)
    assert ours.encode("x <extra> y") == [*ours.encode("x "), 260, *ours.encode("y")]
    assert 260 not in ours.special_ids


def test_cutting_and_filling_up_from_training_are_off(folder: Path) -> None:
    path = str(folder / "tokenizer.json")
    backend = Backend.from_file(path)
    backend.enable_truncation(3)
    backend.enable_padding(length=10)
    backend.save(path)
    ours = load_tokenizer(str(folder))
    assert len(ours.encode("a")) == 1
    assert len(ours.encode("abcdefgh")) == 8


def test_one_bos_in_a_chat(folder: Path) -> None:
    """Template and tokenizer both know BOS; the chat has it once, as with transformers."""
    from transformers import AutoTokenizer

    with_bos(folder)
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    edit(folder, chat_template=template)
    messages = [{"role": "user", "content": "hi"}]
    ours = load_tokenizer(str(folder))
    ids = ours.encode(render_chat(ours, messages), add_special_tokens=False)
    reference = AutoTokenizer.from_pretrained(folder)
    encoded = reference.apply_chat_template(messages, add_generation_prompt=True)
    assert ids == encoded["input_ids"]
    assert ids.count(256) == 1


def test_where_chat_templates_come_from(folder: Path) -> None:
    edit(
        folder,
        chat_template=[
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "with tools"},
        ],
    )
    ours = load_tokenizer(str(folder))
    assert ours.chat_template == "plain"
    assert render_chat(ours, []) == "plain"
    assert render_chat(ours, [], tools=[{"type": "function"}]) == "with tools"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert load_tokenizer(str(folder)).chat_template == "json"
    (folder / "chat_template.jinja").write_text("jinja")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("rag")
    ours = load_tokenizer(str(folder))
    assert ours.chat_templates == {"default": "jinja", "tool_use": "with tools", "rag": "rag"}


def test_no_template_is_none(folder: Path) -> None:
    edit(folder, chat_template=None)
    assert load_tokenizer(str(folder)).chat_template is None


def test_fewest_tokens_is_a_true_bound(byte_level: Tokenizer) -> None:
    longest = max(byte_level.backend.get_vocab(), key=len)
    for text in ("", "a", longest * 10, "🙂" * 50, " " * 99):
        assert 0 <= byte_level.min_token_count(text) <= len(byte_level.encode(text))
    assert byte_level.min_token_count("x" * 10_000) > 100


def test_a_lone_surrogate_is_a_value_error(byte_level: Tokenizer) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        byte_level.encode("\ud83d")


@pytest.mark.parametrize(
    "work",
    [
        lambda tokenizer, text: tokenizer.encode(text, aside=True),
        lambda tokenizer, text: given_text(tokenizer, text, True).offsets,
    ],
    ids=["tokens", "places"],
)
def test_a_long_text_leaves_room_for_other_threads(byte_level: Tokenizer, work: Any) -> None:
    text = "a b " * 2**15
    begun = threading.Event()
    results: list[list[int]] = []

    def encode() -> None:
        begun.set()
        results.append(work(byte_level, text))

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    num_turns = 0
    while thread.is_alive():
        num_turns += 1
        time.sleep(0.001)
    assert [len(each) for each in results] == [len(byte_level.encode(text))]
    assert num_turns > 5


@pytest.mark.parametrize("special", [True, False])
def test_a_long_text_has_the_same_tokens_aside(tiny_gguf: TinyGGUF, special: bool) -> None:
    tokenizer = load_tokenizer(str(tiny_gguf.path))
    tokenizer.backend.post_processor = processors.TemplateProcessing(
        single="a $A", special_tokens=[("a", 7)]
    )
    for text in ("a" * 16_384, "a" * 16_385):
        assert tokenizer.encode(text, special, aside=True) == tokenizer.encode(text, special)
    with pytest.raises(ValueError, match="surrogates"):
        tokenizer.encode("a" * 16_384 + "\ud800", aside=True)


def test_ids_beyond_the_vocabulary_have_no_text(byte_level: Tokenizer) -> None:
    assert byte_level.token_bytes(10**6) == b""
    assert byte_level.decode([10**6]) == ""


def test_the_bytes_of_word_pieces_are_those_within_a_text(word_pieces: Tokenizer) -> None:
    wanted = {
        "▁the": b" the",
        "s": b"s",
        "▁": b" ",
        "▁日本": " 日本".encode(),
        "é": "é".encode(),
        "</s>": b"</s>",
        "<0xE2>": b"\xe2",
        "<0x0A>": b"\n",
    }
    found = {
        name: word_pieces.token_bytes(word_pieces.backend.token_to_id(name)) for name in wanted
    }
    assert found == wanted
    assert word_pieces.token_bytes(10**6) == b""


def test_a_token_is_found_as_the_vocabulary_lists_it(word_pieces: Tokenizer) -> None:
    listed = word_pieces.get_vocab()
    assert {name: word_pieces.token_to_id(name) for name in listed} == listed
    assert {"</s>", "<0x0A>"} <= listed.keys()
    assert word_pieces.token_to_id("the and the") is None


def test_the_bytes_of_tokens_spell_the_text(word_pieces: Tokenizer, byte_level: Tokenizer) -> None:
    for tokenizer, start in ((word_pieces, " "), (byte_level, "")):
        text = "the cats 日本 €!"
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == start + text


def test_an_added_token_may_hold_any_character() -> None:
    from tokenizers import decoders, models

    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("é b"), AddedToken("Ġ")])
    ours = Tokenizer(backend, origin="test", special_tokens={}, chat_templates={})
    assert [ours.token_bytes(i) for i in range(3)] == [b"a", "é b".encode(), b" "]
    assert ours.decode([0, 1, 2]) == "aé b "


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "cannot be read as a tokenizer"),
        ("tokenizer_config.json", "[]", "holds no JSON object"),
        ("tokenizer_config.json", "{", "is no valid JSON"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {}}}', "no token id"),
    ],
)
def test_a_damaged_folder(folder: Path, name: str, content: str | None, match: str) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(ModelFileError, match=match) as raised:
        load_tokenizer(str(folder))
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "gone"}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "gone", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        },
    ],
)
def test_a_vocabulary_whose_parts_do_not_fit_together(folder: Path, changes: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ModelFileError, match="the tokenizer cannot encode a text"):
        load_tokenizer(str(folder))


def test_a_path_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="expected a folder"):
        load_tokenizer(str(tmp_path / "tokenizer.model"))
