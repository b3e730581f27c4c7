"""Tokenizers for the tests of text: byte-level ones from files, and one of another kind."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from hookserve.engine.text.tokenizer import Tokenizer, load_tokenizer
from tiny_gguf import TinyGGUF, write_tiny_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> TinyGGUF:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny-gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def byte_level(tiny_gguf: TinyGGUF) -> Tokenizer:
    """420 tokens, three of them special (ids 0 to 2), single bytes among the rest."""
    return load_tokenizer(str(tiny_gguf.path))


@pytest.fixture(scope="session")
def word_pieces() -> Tokenizer:
    """A vocabulary in the manner of SentencePiece: words that begin with a mark for the space,
    single bytes as ``<0x..>``, and a decoder that drops the first space of a text."""
    words = ["<s>", "</s>", "▁the", "▁cat", "s", "▁", "▁日本", "é", "!"]
    vocab = {word: index for index, word in enumerate(words)}
    vocab.update({f"<0x{byte:02X}>": len(words) + byte for byte in range(256)})
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(backend, origin="test", special_tokens=tokens, chat_templates={})


@pytest.fixture(scope="session")
def spaced_words() -> Tokenizer:
    """A vocabulary without a decoder: a space stands between all of its tokens."""
    backend = Backend(models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken("<a>", special=True), AddedToken("<b>", special=True)])
    return Tokenizer(backend, origin="test", special_tokens={}, chat_templates={})
