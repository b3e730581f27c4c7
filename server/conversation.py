"""``Conversation``: what was said so far, and how the next answer is asked for and shown.

What a person types, and what the words with a slash mean, is ``chat_terminal``'s.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from .http_lines import Address, request

PATH = "/v1/chat/completions"
DIM, PLAIN = "\x1b[2m", "\x1b[0m"

Message = dict[str, str]


class Conversation:
    """
    Attributes:
        system: the message in front of all others; empty: there is none.
        said: the turns, a question and its answer each.
        fields: of each request, beside its messages.

    Args:
        out: where answers are shown; a terminal is shown the model's reasoning too, if the server
            tells it from the answer.
    """

    def __init__(
        self,
        address: Address,
        fields: Mapping[str, Any],
        *,
        system: str = "",
        api_key: str | None = None,
        out: TextIO | None = None,
    ) -> None:
        self.address = address
        self.system = system
        self.said: list[Message] = []
        self.fields = dict(fields)
        self._api_key = api_key
        self._out = out or sys.stdout
        self._is_dim = False

    @property
    def messages(self) -> list[Message]:
        first: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return first + self.said

    def ask(self, text: str) -> bool:
        """Ask and show the answer as it comes; ``False``: it was interrupted.

        What was said stays in the conversation, an interrupted answer too; a turn that failed
        leaves it as it was.

        Raises:
            ReplyError, ServerUnreachableError: as ``http_lines.request``.
        """
        question: Message = {"role": "user", "content": text}
        answer: list[str] = []
        finished = True
        try:
            asyncio.run(self._stream([*self.messages, question], answer))
        except KeyboardInterrupt:
            finished = False
        finally:
            self._dim(False)
            print(file=self._out, flush=True)
        self.said += [question, {"role": "assistant", "content": "".join(answer)}]
        return finished

    def take_back(self) -> str | None:
        """Forget the last turn. Returns its question, if there is one."""
        if not self.said:
            return None
        question = self.said[-2]["content"]
        del self.said[-2:]
        return question

    async def _stream(self, messages: list[Message], answer: list[str]) -> None:
        body = {**self.fields, "stream": True, "messages": messages}
        async with request(self.address, "POST", PATH, body, api_key=self._api_key) as reply:
            async for event in reply.events():
                for choice in event.get("choices", ()):
                    self._show(choice.get("delta") or {}, answer)
                    if choice.get("finish_reason") == "length":
                        self._note("the answer has its most tokens, and is cut there")

    def _show(self, delta: Mapping[str, Any], answer: list[str]) -> None:
        thought, piece = delta.get("reasoning_content"), delta.get("content")
        if thought and self._out.isatty():
            self._dim(True)
            print(thought, end="", file=self._out, flush=True)
        if piece:
            self._dim(False)
            answer.append(piece)
            print(piece, end="", file=self._out, flush=True)

    def _dim(self, is_dim: bool) -> None:
        if is_dim != self._is_dim:
            self._is_dim = is_dim
            print(DIM if is_dim else f"{PLAIN}\n", end="", file=self._out)

    def _note(self, text: str) -> None:
        """For a person alone: a pipe gets the answer and nothing else."""
        if self._out.isatty():
            self._dim(False)
            print(f"\n({text})", end="", file=self._out)
