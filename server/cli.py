"""``server``: the program's entry. It finds the verb, and hands over to the file of that verb.

Only the parser of the verb that was asked for is built, and a verb's own modules are imported when
it runs: ``--help`` must stay quick and import neither torch nor a web framework nor a third party.
Plugins are loaded here only for a verb that is not the program's own, and for the options that they
add to ``server run``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import threading
from collections.abc import Sequence
from typing import Any

from hookserve.engine.errors import HookserveError, UsageError
from hookserve.hookspecs.errors import HostError

from .arguments import Parser, normalize, options_of, refuse_unknown, sift

VERBS: dict[str, str] = {
    "run": "serve a model over an OpenAI-compatible HTTP API",
    "chat": "talk to a running server, or to one of its own",
    "bench": "measure a running server with fixed workloads",
    "plugins": "list the plugins that are installed, show them, find the one at fault",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code. A thread that something left behind in it does
    not keep the process."""
    before = set(threading.enumerate())
    code = _run(list(sys.argv[1:] if argv is None else argv))
    if any(not thread.daemon and thread not in before for thread in threading.enumerate()):
        from .event_loop import leave_if_stuck

        leave_if_stuck(code, before)
    return code


def _run(words: list[str]) -> int:
    """Find the verb and run it; what is to be told of its failure is told."""
    verb = next((word for word in words if not word.startswith("-")), None)
    try:
        return _dispatch(words, verb)
    except UsageError as error:
        prog = f"server {verb}" if verb in VERBS else "server"
        print(f"{prog}: error: {error} (see {prog} --help)", file=sys.stderr)
        return error.exit_code
    except (HookserveError, HostError) as error:
        print(f"server {verb}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output went away; nothing is left to be told, not even at exit.
        sys.stderr.close()
        return 1
    except SystemExit as stop:  # argparse, after --help
        return stop.code if isinstance(stop.code, int) else 1


def _dispatch(words: list[str], verb: str | None) -> int:
    if verb is not None and verb not in VERBS and words[0] == verb:
        from .plugin_verbs import run_plugin_verb

        code = run_plugin_verb(words, VERBS)
        if code is not None:
            return code
    parser, verbs = _parser(verb, asks_for_help=not {"-h", "--help"}.isdisjoint(words))
    found = argparse.Namespace(notes=[], command=[])
    if verb == "plugins":
        words, found.command = _cut(words)
    if verb in VERBS:
        words = normalize(words)
    if verb == "run":
        from .plugin_options import add_plugin_options

        found.plugin_options = add_plugin_options(verbs.choices[verb], words)
    if verb in ("run", "chat"):
        words, found.notes = sift(words, own=options_of(verbs.choices[verb]))
    found, rest = parser.parse_known_args(words, found)
    takes_command = getattr(found, "plugins_verb", None) == "bisect"
    hint = "; a command is given behind '--'" if takes_command else ""
    refuse_unknown(rest, verbs.choices[found.verb], hint=hint)
    return int(_command(found.verb).run(found))


def _parser(verb: str | None, *, asks_for_help: bool) -> tuple[Parser, Any]:
    """The program's parser, and its list of verbs, of which only the one asked for is whole."""
    parser = Parser(prog="server", description="An inference server made of plugins.")
    parser.add_argument("--version", action=_VersionAction, help="print the version and leave")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name, text in VERBS.items():
        sub = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == verb:
            _command(name).add_arguments(sub)
    if verb is None and asks_for_help:
        from .plugin_verbs import add_stated_verbs

        add_stated_verbs(verbs, VERBS)
    return parser, verbs


def _cut(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before the first ``--``, and those behind it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


class _VersionAction(argparse.Action):
    def __init__(self, **kwargs: object) -> None:
        super().__init__(nargs=0, **kwargs)  # type: ignore[arg-type]

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> None:
        from importlib.metadata import version

        from hookserve.hookspecs.types import API_VERSION

        print(f"hookserve {version('hookserve')} (hook API {API_VERSION})")
        parser.exit()


def _command(verb: str) -> Any:
    """The verb's own module: ``add_arguments(parser)`` and ``run(namespace) -> exit code``."""
    return importlib.import_module(f".command_{verb}", "hookserve.server")


if __name__ == "__main__":
    sys.exit(main())
