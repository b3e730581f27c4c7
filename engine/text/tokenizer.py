"""``Tokenizer``: text to token ids and back, with what a chat template needs to know.

One class over the ``tokenizers`` library, loaded from a transformers folder or from a GGUF file.
Text that grows token by token is ``detokenizer``'s; rendering messages is ``chat_template``'s.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from hookserve.engine.errors import ModelFileError
from hookserve.engine.gguf import GGUFFile
from hookserve.engine.regular_file import read_json_object, read_text
from hookserve.hookspecs.notify_loop import caught

from .gguf_vocab import build_tokenizer
from .tokenizer_calls import TokenizerCalls

_SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_BYTE_TOKEN = re.compile("<0x([0-9A-F]{2})>")
DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"
_LONG_TEXT = 2**14
"""Characters: a few milliseconds."""


class Tokenizer(TokenizerCalls):
    """A vocabulary with its rules. Safe to use from several threads.

    Attributes:
        special_tokens: text by name (``"bos_token"``, ...), as chat templates see it.
        special_ids: ids that ``skip_special_tokens`` hides.
        chat_templates: sources by name; ``chat_template`` is the one named ``"default"``.
        vocab_size: number of ids, added tokens included; the model may have more rows.
        compiled_templates: filled by ``chat_template`` at the first use of each.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        origin: str,
        special_tokens: Mapping[str, str],
        chat_templates: Mapping[str, str],
    ) -> None:
        # A tokenizer.json may carry settings from training; here nothing is cut or filled up.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.origin = origin
        self.special_tokens = dict(special_tokens)
        self.chat_templates = dict(chat_templates)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.bos_token_id = self._special_id("bos_token")
        self.eos_token_id = self._special_id("eos_token")
        self.is_byte_level = _is_byte_level(backend)
        self.compiled_templates: dict[str, Any] = {}
        self._token_bytes: dict[int, bytes] = {}
        self._vocab: dict[str, int] | None = None

    def _special_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.token_to_id(token)

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get(DEFAULT_TEMPLATE)

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        truncation: bool | None = None,
        max_length: int | None = None,
        aside: bool = False,
    ) -> list[int]:
        """Token ids of a text; special tokens written out in it are recognized.

        ``add_special_tokens`` puts in front (or behind) what the vocabulary's own rule says, such
        as BOS. A rendered chat has them already: encode it with ``False``, or BOS is doubled.

        Args:
            truncation: leave out what is behind ``max_length`` tokens.
            aside: this is not the only thread that has something to do, so a long text must not
                keep the interpreter to itself.

        Raises:
            ValueError: the text holds a lone surrogate, which no encoding has.
        """
        ids: list[int] = self._encode(text, add_special_tokens, aside).ids
        return ids[:max_length] if truncation else ids

    def _encode(self, text: str, add_special_tokens: bool, aside: bool) -> Encoding:
        try:
            if aside and len(text) > _LONG_TEXT:
                # For a list of texts the library lets go of the interpreter's lock, and uses
                # threads of its own, which is why it does not for those that may fork.
                return self.backend.encode_batch_fast(
                    [text], add_special_tokens=add_special_tokens
                )[0]
            return self.backend.encode(text, add_special_tokens=add_special_tokens)
        except TypeError:
            text.encode()  # the library says "must be str"; this says what is wrong, and where
            raise

    def encode_part(
        self,
        text: str,
        num_tokens: int,
        keeps: Literal["start", "end"],
        add_special_tokens: bool = True,
    ) -> list[int]:
        """As ``encode`` aside, of a longer text so many tokens at its start or its end alone,
        special ones included: those are kept where there is room for them."""
        encoding = self._encode(text, add_special_tokens, aside=True)
        ids: list[int] = encoding.ids
        # The library's own truncation also makes encodings of all that is cut off, which is slow.
        is_added: list[int] = encoding.special_tokens_mask if add_special_tokens else []
        first = next((at for at, added in enumerate(is_added) if not added), 0)
        behind = next((at for at, added in enumerate(reversed(is_added)) if not added), 0)
        end = len(ids) - behind
        room = max(0, num_tokens - first - behind)
        kept = ids[first:end][:room] if keeps == "start" else ids[max(first, end - room) : end]
        return [*ids[:first], *kept, *ids[end:]][:num_tokens]

    def decode(self, ids: Sequence[int] | int, skip_special_tokens: bool = False) -> str:
        """The text of a whole sequence, or of one token; ids beyond the vocabulary have no text.
        Special tokens are seen unless it is said otherwise, as transformers has it."""
        given = [ids] if isinstance(ids, int) else ids
        text: str = self.backend.decode(given, skip_special_tokens=skip_special_tokens)
        return text

    def get_vocab(self) -> dict[str, int]:
        """Token to id, added tokens included; one dict for all callers, to be read only."""
        if self._vocab is None:
            self._vocab = self.backend.get_vocab(with_added_tokens=True)
        return self._vocab

    def is_special(self, text: str) -> bool:
        """Whether the text is a token that ``skip_special_tokens`` hides."""
        return self.token_to_id(text) in self.special_ids

    def token_to_id(self, text: str) -> int | None:
        """The token that the text is by itself; ``None``: it is none."""
        token_id: int | None = self.backend.token_to_id(text)
        return token_id

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's own spelling, ``None`` beyond its end."""
        token: str | None = self.backend.id_to_token(token_id)
        return token

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for within a text; empty beyond the vocabulary's end."""
        value = self._token_bytes.get(token_id)
        if value is None:
            if self.is_byte_level:
                value = _spelling_to_bytes(self.id_to_token(token_id) or "")
            else:
                value = self._decode_one(token_id)
            self._token_bytes[token_id] = value
        return value

    def _decode_one(self, token_id: int) -> bytes:
        """Decoded behind itself: the first token of a text may lose its space."""
        alone = self.decode([token_id], False)
        spelling = self.id_to_token(token_id) or ""
        byte = _BYTE_TOKEN.fullmatch(spelling)
        if byte is not None and alone != spelling:
            return bytes([int(byte[1], 16)])
        return self.decode([token_id, token_id], False)[len(alone) :].encode()

    @functools.cached_property
    def max_token_bytes(self) -> int:
        """Bytes of the longest token's spelling: no token stands for more of a text."""
        vocab: dict[str, int] = self.backend.get_vocab(with_added_tokens=True)
        return max((len(token.encode()) for token in vocab), default=1)

    def min_token_count(self, text: str) -> int:
        """A number of tokens that the text has at least, without tokenizing it."""
        model = self.backend.model
        if getattr(model, "fuse_unk", False) and not getattr(model, "byte_fallback", False):
            return 0  # one unknown token may stand for the whole text
        return -(-len(text) // self.max_token_bytes)


def load_tokenizer(path: str) -> Tokenizer:
    """Load from a folder with ``tokenizer.json``, or from a ``.gguf`` file.

    Raises:
        ModelFileError: what is missing, damaged or not supported.
    """
    if os.path.isdir(path):
        tokenizer = _load_folder(path)
    elif path.endswith(".gguf"):
        file = GGUFFile.open(path)
        backend, special_tokens = build_tokenizer(file)
        tokenizer = Tokenizer(
            backend,
            origin=path,
            special_tokens=special_tokens,
            chat_templates=_gguf_templates(file),
        )
    else:
        raise ModelFileError(f"{path}: expected a folder with tokenizer.json, or a .gguf file")
    try:
        tokenizer.encode("a b")
    except caught() as error:  # its parts do not fit together; the library finds that in use only
        raise ModelFileError(f"{path}: the tokenizer cannot encode a text: {error}") from error
    return tokenizer


def _gguf_templates(file: GGUFFile) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates: dict[str, str] = {}
    for key, value in file.metadata.items():
        if isinstance(value, str) and key == prefix:
            templates[DEFAULT_TEMPLATE] = value
        elif isinstance(value, str) and key.startswith(prefix + "."):
            templates[key[len(prefix) + 1 :]] = value
    return templates


def _load_folder(folder: str) -> Tokenizer:
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.exists(path):
        raise ModelFileError(
            f"{folder}: there is no tokenizer.json in this folder; vocabularies in other forms "
            "(tokenizer.model, vocab.json) are not supported"
        )
    described = read_text(path)
    try:
        backend = Backend.from_str(described)
    except Exception as error:  # the library raises bare Exception for whatever is wrong inside
        raise ModelFileError(f"{path}: cannot be read as a tokenizer: {error}") from error
    config = _read_json(os.path.join(folder, "tokenizer_config.json"))
    special_tokens = _special_tokens(folder, config)
    try:
        _add_missing_tokens(backend, config, special_tokens)
    except ValueError as error:
        raise ModelFileError(
            f"{folder}: tokenizer_config.json has a key in added_tokens_decoder that is no token "
            f"id: {error}"
        ) from error
    return Tokenizer(
        backend,
        origin=folder,
        special_tokens=special_tokens,
        chat_templates=_folder_templates(folder, config),
    )


def _read_json(path: str) -> dict[str, Any]:
    """An optional JSON object; absent is empty."""
    return read_json_object(path) if os.path.exists(path) else {}


def _content(value: Any) -> str | None:
    """A special token is stored as its text, or as an object with it."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _special_tokens(folder: str, config: dict[str, Any]) -> dict[str, str]:
    """Names to text; ``tokenizer_config.json`` wins over the older ``special_tokens_map.json``."""
    older = _read_json(os.path.join(folder, "special_tokens_map.json"))
    tokens: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        text = _content(config[name] if name in config else older.get(name))
        if text is not None:
            tokens[name] = text
    return tokens


def _add_missing_tokens(
    backend: Backend, config: dict[str, Any], special_tokens: dict[str, str]
) -> None:
    """Tokens that only ``tokenizer_config.json`` declares; the order gives them their ids."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder")
    entries = declared.items() if isinstance(declared, dict) else ()
    for _, entry in sorted(entries, key=lambda item: int(item[0])):
        text = _content(entry)
        if text is None or text in known:
            continue
        flags = {
            key: bool(entry[key])
            for key in ("single_word", "lstrip", "rstrip", "normalized", "special")
            if isinstance(entry, dict) and key in entry
        }
        backend.add_tokens([AddedToken(text, **flags)])
        known.add(text)
    for text in special_tokens.values():
        if text not in known:
            backend.add_special_tokens([AddedToken(text, normalized=False, special=True)])
            known.add(text)


def _folder_templates(folder: str, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; a file of its own wins over ``tokenizer_config.json``."""
    templates = _named_templates(config.get("chat_template"))
    in_json = _read_json(os.path.join(folder, "chat_template.json")).get("chat_template")
    templates.update(_named_templates(in_json))
    path = os.path.join(folder, "chat_template.jinja")
    if os.path.exists(path):
        templates[DEFAULT_TEMPLATE] = read_text(path)
    extra = os.path.join(folder, "additional_chat_templates")
    for name in sorted(os.listdir(extra)) if os.path.isdir(extra) else []:
        if name.endswith(".jinja"):
            templates[name.removesuffix(".jinja")] = read_text(os.path.join(extra, name))
    return templates


def _named_templates(value: Any) -> dict[str, str]:
    """One source, or a list of ``{"name": …, "template": …}``."""
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    templates: dict[str, str] = {}
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            templates[str(entry.get("name", DEFAULT_TEMPLATE))] = entry["template"]
    return templates


def _is_byte_level(backend: Backend) -> bool:
    """Whether the decoder is the byte-level one and nothing else."""
    if backend.decoder is None:
        return False
    state = json.loads(backend.decoder.__getstate__())
    parts = state["decoders"] if state["type"] == "Sequence" else [state]
    return [part["type"] for part in parts] == ["ByteLevel"]


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE spells bytes that print as themselves; the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def _spelling_to_bytes(token: str) -> bytes:
    """A token with any character outside the alphabet (an added one) stands for itself."""
    alphabet = _byte_alphabet()
    try:
        return bytes([alphabet[char] for char in token])
    except KeyError:
        return token.encode()
