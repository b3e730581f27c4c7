"""The command line as argparse sees it: options made from the settings, and the words around them.

Before argparse, ``sift`` takes out what the table in ``flags`` says of flags that do nothing or
are refused, so that a refusal can give its reason. What a value means is ``settings``'.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any, NoReturn

from hookserve.engine.errors import UsageError
from hookserve.engine.vllm_flags import VLLM_FLAGS, Flag, find_flag

from .setting_values import Spec
from .settings import GROUPS, MORE, all_specs, suggest

_OPTION = re.compile(r"--?[A-Za-z][^=\s]*(=.*)?", re.DOTALL)
_LEVEL = re.compile(r"-O\d")


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are ``UsageError``s, told in one sentence by ``main``."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", _HelpFormatter)
        super().__init__(**kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _HelpFormatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)


def add_settings(parser: argparse.ArgumentParser, *, skip: Iterable[str] = ()) -> None:
    """Add an option for every setting, under its group's heading.

    A parsed option is the raw text (a list of texts if it may be repeated) under its field's name;
    one that was not given is absent.
    """
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    for spec in all_specs():
        if spec.name not in skip:
            _add_setting(groups[spec.setting.group], spec)


def _add_setting(group: Any, spec: Spec) -> None:
    setting = spec.setting
    options = [spec.flag, *setting.aliases]
    common: dict[str, Any] = {
        "dest": spec.name,
        "default": argparse.SUPPRESS,
        "help": _help_text(spec),
    }
    if spec.kind == "switch":
        _add_switch(group, spec, options, common)
        return
    common["metavar"] = setting.metavar or _metavar(spec)
    if spec.name == "served_model_name":
        group.add_argument(*options, action="extend", nargs="+", **common)
    elif spec.kind in ("list", "json", "secret"):
        group.add_argument(*options, action="append", **common)
    elif setting.bare:
        group.add_argument(*options, nargs="?", const=setting.bare, **common)
    else:
        group.add_argument(*options, **common)


def _add_switch(group: Any, spec: Spec, options: list[str], common: dict[str, Any]) -> None:
    """Only the twin that changes something is shown; both are understood."""
    off = f"--no-{spec.key}"
    hidden = {**common, "help": argparse.SUPPRESS}
    shown_off = {**common, "help": f"do not {common['help']}"}
    if spec.default:
        group.add_argument(*options, action="store_true", **hidden)
        group.add_argument(off, action="store_false", **shown_off)
        return
    group.add_argument(*options, action="store_true", **common)
    if not spec.key.startswith("no-"):
        group.add_argument(off, action="store_false", **hidden)


def _metavar(spec: Spec) -> str:
    if spec.setting.choices:
        return "{" + ",".join(spec.setting.choices) + "}"
    return {
        "whole": "N",
        "tokens": "N",
        "number": "X",
        "bytes": "BYTES",
        "list": "NAME,...",
        "json": "JSON",
    }.get(spec.kind, "TEXT")


def _help_text(spec: Spec) -> str:
    text = spec.setting.help.replace("%", "%%")
    default = spec.default
    if default is None or default is True or default is False or default in ((), "", {}):
        return text
    shown = f"{default:g}" if isinstance(default, float) else default
    return f"{text} (default: {shown})"


def normalize(argv: Sequence[str]) -> list[str]:
    """Hyphens for underscores in option names; ``--name.key value`` as a JSON option, and
    ``--name.key+ value,value`` as one that makes a list longer."""
    json_options = {
        option: spec.key
        for spec in all_specs()
        if spec.kind == "json"
        for option in (spec.flag, *spec.setting.aliases)
    }
    result: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            return [*result, word, *words]
        name, equals, value = word.partition("=")
        head, dot, path = name.partition(".")
        if head.startswith("--"):
            head = "--" + head[2:].replace("_", "-")
        elif not dot or head not in json_options:
            result.append(word)
            continue
        if dot and head in json_options:
            text = value if equals else next(words, None)
            if text is None:
                raise UsageError(f"{head}.{path}: expected a value")
            nested = json.dumps(_nested(path.split("."), text))
            result.append(f"--{json_options[head]}={nested}")
        else:
            result.append(head + dot + path + equals + value)
    return result


def _nested(path: Sequence[str], text: str) -> dict[str, Any]:
    value = _value(text)
    if path[-1].endswith(MORE) and not isinstance(value, list):
        value = [_value(each) for each in text.split(",")]
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def sift(argv: Sequence[str], own: Container[str] = ()) -> tuple[list[str], list[str]]:
    """Take the flags without effect out of a normalized command line.

    Args:
        own: options that the verb has itself, whatever the table says of them.

    Returns: the words that are left, and a line to log for each flag taken out.

    Raises:
        UsageError: a flag that the table refuses, with its reason.
    """
    kept: list[str] = []
    notes: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            return [*kept, word, *words], notes
        if _LEVEL.fullmatch(word):
            word = f"-O={word[2:]}"
        option, equals, value = word.partition("=")
        flag = find_flag(option) if word.startswith("-") and option not in own else None
        if flag is None or flag.verdict == "works":
            kept.append(word)
            continue
        values = [value] if equals else _take_values(flag, words)
        if flag.verdict == "no effect":
            notes.append(f"{option} has no effect, because {flag.reason}")
        elif not _changes_nothing(flag, option, values):
            raise UsageError(f"{option} is refused, because {flag.reason}{_allowed(flag)}")
    return kept, notes


def _take_values(flag: Flag, words: list[str]) -> list[str]:
    values: list[str] = []
    most = {"none": 0, "one": 1, "many": len(words)}[flag.arity]
    while words and len(values) < most and not _OPTION.fullmatch(words[0]):
        values.append(words.pop(0))
    return values


def _changes_nothing(flag: Flag, option: str, values: Sequence[str]) -> bool:
    if flag.arity == "none":
        return option.startswith("--no-") and not values
    return bool(values) and all(value in flag.neutral for value in values)


def _allowed(flag: Flag) -> str:
    return f" (accepted: {', '.join(flag.neutral)})" if flag.neutral else ""


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    return [text for action in parser._actions for text in action.option_strings]


def refuse_unknown(rest: Sequence[str], parser: argparse.ArgumentParser, *, hint: str = "") -> None:
    """Raise ``UsageError`` for the first word that the parser did not know, with the nearest.

    Args:
        hint: what is said where a word was not expected that is no flag.
    """
    if not rest:
        return
    option = rest[0].partition("=")[0]
    if not option.startswith("-"):
        raise UsageError(f"unexpected argument {rest[0]!r}{hint}")
    known = options_of(parser)
    known += [text for flag in VLLM_FLAGS if flag.verdict != "works" for text in flag.options]
    raise UsageError(f"unknown flag {option}{suggest(option, known)}")
