"""The terminal of ``server chat``: what a person types, and what the words with a slash do."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from hookserve.engine.errors import UsageError
from hookserve.hookspecs.errors import did_you_mean

from .conversation import Conversation
from .http_lines import ReplyError, ServerUnreachableError

PROMPT, MORE = "> ", "... "
BLOCK = '"""'
"""Opens and closes a message of several lines."""
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?\Z", re.DOTALL)
_OURS = ("messages", "stream")
"""Fields of a request that the conversation itself sets."""


class ChatTerminal:
    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._is_open = True

    def run(self) -> None:
        """Turns until the end of the input; Ctrl-C stops an answer, not the conversation."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing for input())
        conversation = self._conversation
        model = conversation.fields["model"]
        print(f"{model} at {conversation.address}; /help tells more, Ctrl-D leaves")
        while self._is_open:
            try:
                self._take(_read())
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print("\n(Ctrl-D leaves)")
            except (ReplyError, ServerUnreachableError, UsageError) as error:
                print(f"error: {error}", file=sys.stderr)

    def _take(self, text: str) -> None:
        if not text.strip():
            return
        found = _COMMAND.match(text.strip())
        if found is None:
            self._conversation.ask(text.removeprefix("/") if text.startswith("//") else text)
            return
        name, argument = found[1], (found[2] or "").strip()
        if name not in COMMANDS:
            raise UsageError(f"no command is called /{name}{did_you_mean(name, list(COMMANDS))}")
        COMMANDS[name].run(self, argument)

    # -- the commands -------------------------------------------------------------------------

    def _help(self, argument: str) -> None:
        del argument
        width = max(len(command.usage) for command in COMMANDS.values())
        for command in COMMANDS.values():
            print(f"{command.usage:{width}}  {command.help}")
        print(f"{BLOCK:{width}}  begins, and ends, a message of several lines")
        print(f"{'//...':{width}}  a message that begins with a slash")
        print(f"{'Ctrl-C':{width}}  stops an answer; Ctrl-D leaves")

    def _clear(self, argument: str) -> None:
        del argument
        self._conversation.said.clear()

    def _system(self, argument: str) -> None:
        if argument:
            self._conversation.system = "" if argument == "none" else argument
        print(self._conversation.system or "there is no system message")

    def _history(self, argument: str) -> None:
        del argument
        for message in self._conversation.messages:
            print(f"{message['role']}: {message['content']}")

    def _undo(self, argument: str) -> None:
        del argument
        if self._conversation.take_back() is None:
            raise UsageError("nothing was said yet")

    def _retry(self, argument: str) -> None:
        del argument
        before = list(self._conversation.said)
        question = self._conversation.take_back()
        if question is None:
            raise UsageError("nothing was said yet")
        try:
            self._conversation.ask(question)
        except BaseException:
            self._conversation.said = before
            raise

    def _set(self, argument: str) -> None:
        fields = self._conversation.fields
        name, _, text = argument.partition(" ")
        if name in _OURS or (name == "model" and not text.strip()):
            raise UsageError(f"{name}: a conversation needs it as it is")
        if text.strip():
            fields[name] = _value(text.strip())
        elif name in fields:
            del fields[name]
        elif name:
            raise UsageError(f"{name} is not set; expected NAME VALUE, or a name that is")
        for name, value in fields.items():
            print(f"{name} = {json.dumps(value, ensure_ascii=False)}")

    def _exit(self, argument: str) -> None:
        del argument
        self._is_open = False


class Command(NamedTuple):
    usage: str
    help: str
    run: Callable[[ChatTerminal, str], None]


COMMANDS: dict[str, Command] = {
    "help": Command("/help", "this list", ChatTerminal._help),
    "clear": Command("/clear", "forget what was said", ChatTerminal._clear),
    "system": Command(
        "/system [TEXT|none]", "show, set or take away the system message", ChatTerminal._system
    ),
    "history": Command("/history", "show what was said", ChatTerminal._history),
    "retry": Command("/retry", "ask the last question again", ChatTerminal._retry),
    "undo": Command("/undo", "take the last turn back", ChatTerminal._undo),
    "set": Command(
        "/set [NAME [VALUE]]",
        "show the fields of a request, set one (/set temperature 0.2), or take it away",
        ChatTerminal._set,
    ),
    "exit": Command("/exit", "leave", ChatTerminal._exit),
}


def _read() -> str:
    """
    Raises:
        EOFError, KeyboardInterrupt: the person wants no more, or not this.
    """
    text = input(PROMPT)
    if not text.lstrip().startswith(BLOCK):
        return text
    text = text.lstrip().removeprefix(BLOCK)
    lines = [text] if text else []
    while not (lines and lines[-1].rstrip().endswith(BLOCK)):
        lines.append(input(MORE))
    return "\n".join(lines).rstrip().removesuffix(BLOCK)


def _value(text: str) -> Any:
    """JSON, or a text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
