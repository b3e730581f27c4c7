"""``server chat``: talk to a model at the terminal.

It speaks to the server at ``--url``, or to one that answers at the default address, or else to a
server of its own, which takes the flags of ``server run`` and ends with the chat.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from hookserve.engine.errors import UsageError

from .arguments import add_settings
from .chat_terminal import ChatTerminal
from .command_run import EXIT_INTERRUPTED, given_flags
from .conversation import Conversation
from .http_lines import Address, ReplyError, ServerUnreachableError, model_names
from .own_server import OwnServer, OwnServerError
from .settings import resolve_settings

DEFAULT_URL = "http://127.0.0.1:8000"
PROBE_S = 2.0
"""How long a server at the default address may take to say which models it has."""
_NOT_FOR_CHAT = (
    "host",
    "port",
    "uds",
    "root_path",
    "api_key",
    "admin_key",
    "authenticator",
    "dry_run",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "message",
        nargs="?",
        help="ask this and leave; without it the standard input is asked, turn by turn at a "
        "terminal, as one message from a pipe",
    )
    own = parser.add_argument_group("Chat")
    own.add_argument(
        "--url",
        help=f"a server to talk to; without it one at {DEFAULT_URL} if it answers and no other "
        "flag says what to run, else a server of its own",
    )
    own.add_argument("--system", metavar="TEXT", help="system message before the first turn")
    own.add_argument("--temperature", type=float, metavar="X", help="0 is greedy")
    own.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer")
    own.add_argument("--api-key", dest="key", metavar="KEY", help="sent as a bearer token")
    add_settings(parser, skip=_NOT_FOR_CHAT)
    parser.usage = "server chat [flags] [MESSAGE]"


def run(found: argparse.Namespace) -> int:
    flags = given_flags(found)
    resolve_settings(flags)  # a wrong value is told before a server is started
    try:
        if found.url is not None:
            _check_only_model(flags)
            return _talk(found, Address.parse(found.url), flags.get("model"))
        running = Address.parse(DEFAULT_URL)
        model = flags.get("model")
        if not set(flags) - {"model"} and asyncio.run(_serves(running, model, found.key)):
            return _talk(found, running, model)
        # Nobody else is to use it, and a key of the environment's could not be sent.
        found.key = found.key or secrets.token_urlsafe()
        with OwnServer({**flags, "api_key": [found.key]}) as server:
            server.wait_ready()
            return _talk(found, server.address, None)
    except OwnServerError as error:
        return error.exit_code  # the server itself has said why
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _check_only_model(flags: Mapping[str, Any]) -> None:
    for name in sorted(set(flags) - {"model"}):
        option = "--" + name.replace("_", "-")
        raise UsageError(f"{option} shapes a server, and --url names one that runs already")


async def _serves(address: Address, model: str | None, api_key: str | None) -> bool:
    """Whether a server answers there, with this model if one is asked for."""
    try:
        async with asyncio.timeout(PROBE_S):
            names = await model_names(address, api_key)
    except (ServerUnreachableError, ReplyError, TimeoutError):
        return False
    return model is None or model in names


def _talk(found: argparse.Namespace, address: Address, model: str | None) -> int:
    fields: dict[str, Any] = {"model": model or asyncio.run(model_names(address, found.key))[0]}
    for name in ("temperature", "max_tokens"):
        value = getattr(found, name)
        if value is not None:
            fields[name] = value
    conversation = Conversation(address, fields, system=found.system or "", api_key=found.key)
    if found.message is None and sys.stdin.isatty():
        ChatTerminal(conversation).run()
        return 0
    text = sys.stdin.read() if found.message is None else found.message
    if not text.strip():
        raise UsageError("expected a message, and the standard input is empty")
    return 0 if conversation.ask(text) else EXIT_INTERRUPTED
