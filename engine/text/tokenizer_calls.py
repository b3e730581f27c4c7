"""``TokenizerCalls``: what the ecosystem's parsers and processors call of a tokenizer, beside what
the engine itself does; under the names that transformers gave them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


_NOT_THE_TEMPLATES = frozenset(
    {
        "chat_template",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenizer_kwargs",
        "truncation",
    }
)
"""What transformers takes beside a template's own variables."""


class Encoded(dict[str, list[Any]]):
    """``input_ids`` and ``attention_mask``, by key or as attributes: of one text a list of numbers,
    of several a list for each."""

    @property
    def input_ids(self) -> list[Any]:
        return self["input_ids"]

    @property
    def attention_mask(self) -> list[Any]:
        return self["attention_mask"]


class TokenizerCalls:
    """A base for a class with these attributes and methods."""

    backend: Backend
    origin: str
    special_tokens: dict[str, str]
    special_ids: frozenset[int]
    vocab_size: int
    is_fast = True

    if TYPE_CHECKING:

        def encode(
            self,
            text: str,
            add_special_tokens: bool = True,
            *,
            truncation: bool | None = None,
            max_length: int | None = None,
        ) -> list[int]: ...

        def token_to_id(self, text: str) -> int | None: ...

        def id_to_token(self, token_id: int) -> str | None: ...

    # -- special tokens -------------------------------------------------------------------------

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def unk_token(self) -> str | None:
        return self.special_tokens.get("unk_token")

    @property
    def unk_token_id(self) -> int | None:
        return None if self.unk_token is None else self.token_to_id(self.unk_token)

    @property
    def pad_token(self) -> str | None:
        return self.special_tokens.get("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        return None if self.pad_token is None else self.token_to_id(self.pad_token)

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self.special_ids)

    @property
    def all_special_tokens(self) -> list[str]:
        return self.convert_ids_to_tokens(self.all_special_ids)

    # -- the vocabulary -------------------------------------------------------------------------

    @property
    def name_or_path(self) -> str:
        return self.origin

    @property
    def max_token_id(self) -> int:
        return self.vocab_size - 1

    def __len__(self) -> int:
        return self.vocab_size

    def get_added_vocab(self) -> dict[str, int]:
        added = self.backend.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in added.items()}

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        found: int = self.backend.num_special_tokens_to_add(pair)
        return found

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...

    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int | None]: ...

    def convert_tokens_to_ids(self, tokens: str | list[str] | tuple[str, ...]) -> Any:
        """Of a token that there is none of the unknown token's id, or ``None`` without one."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(each) for each in tokens]
        found = self.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> str: ...

    @overload
    def convert_ids_to_tokens(
        self, ids: Sequence[int], skip_special_tokens: bool = False
    ) -> list[str]: ...

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False
    ) -> Any:
        """The vocabulary's own spellings; empty beyond its end."""
        if isinstance(ids, int):
            return self.id_to_token(ids) or ""
        hidden = self.special_ids if skip_special_tokens else frozenset[int]()
        return [self.id_to_token(each) or "" for each in ids if each not in hidden]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text that these spellings make."""
        decoder = self.backend.decoder
        return "".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    # -- texts ----------------------------------------------------------------------------------

    def __call__(
        self,
        text: str | Sequence[str],
        add_special_tokens: bool = True,
        truncation: bool = False,
        max_length: int | None = None,
    ) -> Encoded:
        """Encode one text, or several.

        Args:
            truncation: leave out what is behind ``max_length`` tokens.
        """
        if not isinstance(text, str):
            each = [self(one, add_special_tokens, truncation, max_length) for one in text]
            return Encoded(
                input_ids=[one.input_ids for one in each],
                attention_mask=[one.attention_mask for one in each],
            )
        ids = self.encode(text, add_special_tokens, truncation=truncation, max_length=max_length)
        return Encoded(input_ids=ids, attention_mask=[1] * len(ids))

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **options: Any,
    ) -> str | list[int]:
        """The text of a chat by the tokenizer's own template, or its tokens.

        Args:
            options: for the template.

        Raises:
            ValueError: an option of transformers' that is none of the template's.
            ChatTemplateError: a ``ValueError``: there is no template, or it complains.
        """
        from .chat_template import render_chat

        for name in _NOT_THE_TEMPLATES & options.keys():
            if options.pop(name):
                raise ValueError(
                    f"apply_chat_template: {name} is not served; the answer is the text, or all of "
                    "its tokens, by the tokenizer's own template"
                )
        text = render_chat(
            self,  # type: ignore[arg-type]
            [dict(message) for message in conversation],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            **options,
        )
        return self.encode(text, False) if tokenize else text
