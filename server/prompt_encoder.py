"""``PromptEncoder``: from what a request says to the token ids of its prompts.

Rendering and tokenizing run in threads: a long prompt must not hold up the streams. What the fields
of a request say is checked before; how many tokens fit is ``engine.request_limits``'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from hookserve.engine.text.bad_words import bad_words_token_ids
from hookserve.engine.text.chat_template import ChatTemplate, ChatTemplateError
from hookserve.engine.text.tokenizer import Tokenizer

from .errors import bad_request, cut

T = TypeVar("T")
NUM_TEXT_THREADS = 2
MAX_TEXT_CHARS = 2**20
"""Of a text that may be longer than the context: one that is to be shortened, or only counted."""
MAX_LIST_TOKENS = 2**18
"""The same for a list of token ids."""


class Shortening(NamedTuple):
    """That of a longer prompt only so many tokens are kept, and which."""

    num_tokens: int
    keeps: Literal["start", "end"] = "end"

    def of(self, token_ids: list[int]) -> list[int]:
        if self.keeps == "start":
            return token_ids[: self.num_tokens]
        return token_ids[-self.num_tokens :]


@dataclass(frozen=True, slots=True)
class Chat:
    """What a prompt is rendered from."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    """Templates write special tokens themselves: others come on top of those."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the template is given besides."""
    tools: list[dict[str, Any]] | None = None
    shortening: Shortening | None = None


class PromptEncoder:
    """
    Args:
        template: the one that chats are rendered with; ``None``: there is none.
        tool_template: the same for chats that have tools.
        max_model_len: what is certain to be longer is refused before it is tokenized.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        tool_template: ChatTemplate | None,
        max_model_len: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._tool_template = tool_template
        self._max_model_len = max_model_len
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="text")

    async def encode(
        self,
        texts: Mapping[str, str],
        *,
        add_special_tokens: bool = True,
        shortening: Shortening | None = None,
    ) -> dict[str, list[int]]:
        """Tokenize prompts as they are.

        Args:
            texts: by their path in the request.
            add_special_tokens: what the tokenizer's own rule says, such as BOS.

        Raises:
            ApiError: 400 for a text that cannot fit, found before it is tokenized.
        """
        for path, text in texts.items():
            self._check_length(text, path, may_be_longer=shortening is not None)

        def encode() -> dict[str, list[int]]:
            return {
                path: self._encode(text, add_special_tokens, shortening)
                for path, text in texts.items()
            }

        return await self._in_thread(encode)

    async def count(self, text: str, add_special_tokens: bool) -> list[int]:
        """The tokens of a text that may be longer than the context.

        Raises:
            ApiError: 400 for one that would take too long.
        """
        self._check_length(text, "prompt", may_be_longer=True)
        return await self._in_thread(lambda: self._encode(text, add_special_tokens, None))

    async def encode_chat(self, chat: Chat, is_counted: bool = False) -> list[int]:
        """Render the messages with the model's template and tokenize the result.

        Args:
            is_counted: nothing is generated, so it may be longer than the context.

        Raises:
            ApiError: 400 with the template's own complaint, or for a chat that cannot fit.
        """
        text = await self._render(chat)
        may_be_longer = is_counted or chat.shortening is not None
        self._check_length(text, "messages", may_be_longer=may_be_longer)
        special = chat.add_special_tokens
        return await self._in_thread(lambda: self._encode(text, special, chat.shortening))

    def _encode(
        self, text: str, add_special_tokens: bool, shortening: Shortening | None
    ) -> list[int]:
        if shortening is None:
            return self._tokenizer.encode(text, add_special_tokens, aside=True)
        return self._tokenizer.encode_part(text, *shortening, add_special_tokens)

    async def _render(self, chat: Chat) -> str:
        template = self._template_of(chat)
        if template is None:
            raise bad_request(
                "this model has no usable chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        try:
            return await self._in_thread(
                lambda: template.render(
                    chat.messages,
                    add_generation_prompt=chat.add_generation_prompt,
                    continue_final_message=chat.continue_final_message,
                    tools=chat.tools,
                    **chat.options,
                )
            )
        except ChatTemplateError as error:
            raise bad_request(
                f"the chat template refuses these messages: {cut(str(error))}",
                param="messages",
                code="chat_template_error",
            ) from None

    def _template_of(self, chat: Chat) -> ChatTemplate | None:
        return self._tool_template if chat.tools else self._template

    def shows_tools(self, chat: Chat) -> bool:
        """Whether the template looks at the tools of a chat."""
        template = self._template_of(chat)
        return template is not None and "tools" in template.variables

    @property
    def reserved_options(self) -> frozenset[str]:
        """Names that options of the template may not have."""
        return self._template.reserved if self._template is not None else frozenset()

    def unread(self, chat: Chat) -> list[str]:
        """The names of those options of a chat that its template does not look at."""
        template = self._template_of(chat)
        if not chat.options or template is None:
            return list(chat.options)
        return [name for name in chat.options if name not in template.variables]

    async def spell_bad_words(self, words: Sequence[str] | None) -> tuple[tuple[int, ...], ...]:
        if not words:
            return ()
        return await self._in_thread(lambda: bad_words_token_ids(self._tokenizer, words))

    async def spell(self, token_ids: list[int]) -> list[str | None]:
        """How the vocabulary writes each token."""
        name = self._tokenizer.id_to_token
        return await self._in_thread(lambda: [name(token_id) for token_id in token_ids])

    async def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, special ones included."""
        return await self._in_thread(lambda: self._tokenizer.decode(token_ids, False))

    def _check_length(self, text: str, path: str, may_be_longer: bool) -> None:
        if may_be_longer:
            _check_num_chars(text, path)
            return
        at_least = self._tokenizer.min_token_count(text)
        if at_least > self._max_model_len:
            raise bad_request(
                f"{path}: {len(text)} characters are at least {at_least} tokens, more than the "
                f"model's context of {self._max_model_len} tokens",
                param=path,
                code="context_length_exceeded",
            )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _check_num_chars(text: str, path: str) -> None:
    """Raise the 400 for a text that would take too long to tokenize."""
    if len(text) > MAX_TEXT_CHARS:
        raise bad_request(
            f"{path}: it has {len(text)} characters; {MAX_TEXT_CHARS} are the limit",
            param=path,
            code="text_too_long",
        )
