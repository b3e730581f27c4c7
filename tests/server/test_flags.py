"""The table of ``vllm serve``'s flags: each row is tried on the real command line."""

from __future__ import annotations

import argparse

import pytest

from hookserve.engine.errors import UsageError
from hookserve.engine.vllm_flags import VLLM_FLAGS, Flag
from hookserve.server.arguments import Parser, normalize, refuse_unknown, sift
from hookserve.server.command_run import add_arguments, given_flags
from hookserve.server.settings import all_specs, resolve_settings

BY_VERDICT = {
    verdict: [flag for flag in VLLM_FLAGS if flag.verdict == verdict]
    for verdict in ("works", "no effect", "refused")
}
VALID = {
    "text": "x",
    "whole": "1",
    "tokens": "2048",
    "number": "1",
    "bytes": "1MiB",
    "list": "x",
    "json": "{}",
    "secret": "k",
}


def parse(*words: str) -> tuple[argparse.Namespace, list[str]]:
    parser = Parser(prog="server run")
    add_arguments(parser)
    kept, notes = sift(normalize(words))
    found, rest = parser.parse_known_args(kept)
    refuse_unknown(rest, parser)
    return found, notes


def words_of(flag: Flag, option: str) -> list[str]:
    return [option] if flag.arity == "none" else [option, "7"]


def ids(flag: Flag) -> str:
    return flag.name


@pytest.mark.parametrize("flag", BY_VERDICT["works"], ids=ids)
def test_a_flag_that_works_sets_its_value(flag: Flag) -> None:
    spec = next(spec for spec in all_specs() if spec.key == flag.name)
    choices = spec.setting.choices
    text = choices[-1] if choices else VALID.get(spec.kind, "")
    words = [f"--{flag.name}"] if spec.kind == "switch" else [f"--{flag.name}", text]
    given = given_flags(parse(*words)[0])
    assert list(given) == [spec.name]
    if spec.name != "config":
        settings = resolve_settings(given, {})
        assert settings.origins[spec.name].kind == "flag"


@pytest.mark.parametrize("flag", BY_VERDICT["no effect"], ids=ids)
def test_a_flag_without_effect_is_taken_with_its_value_and_noted(flag: Flag) -> None:
    for option in flag.options:
        found, notes = parse("MODEL", *words_of(flag, option), "--port", "1")
        assert given_flags(found) == {"model": "MODEL", "port": "1"}
        (note,) = notes
        assert option in note and flag.reason in note


@pytest.mark.parametrize("flag", BY_VERDICT["refused"], ids=ids)
def test_a_refused_flag_is_refused_by_name_and_reason(flag: Flag) -> None:
    for option in flag.options:
        with pytest.raises(UsageError) as caught:
            parse(*words_of(flag, option))
        assert caught.value.exit_code == 2
        assert option in str(caught.value) and flag.reason in str(caught.value)


@pytest.mark.parametrize("flag", BY_VERDICT["refused"], ids=ids)
def test_a_refused_flag_may_say_what_is_so_anyway(flag: Flag) -> None:
    neutral = [[f"--no-{flag.name}"]] if flag.arity == "none" else []
    neutral += [[f"--{flag.name}", value] for value in flag.neutral]
    neutral += [[f"--{flag.name}={value}"] for value in flag.neutral]
    for words in neutral:
        found, notes = parse("MODEL", *words)
        assert given_flags(found) == {"model": "MODEL"}
        assert notes == []


def test_every_row_stands_once_and_has_a_reason_unless_it_works() -> None:
    options = [option for flag in VLLM_FLAGS for option in flag.options]
    assert len(options) == len(set(options))
    for flag in VLLM_FLAGS:
        assert bool(flag.reason) == (flag.verdict != "works"), flag.name
        assert not flag.reason.endswith("."), flag.name


def test_the_working_rows_are_settings_and_no_setting_is_refused() -> None:
    keys = {spec.key for spec in all_specs()}
    assert {flag.name for flag in BY_VERDICT["works"]} <= keys
    others = [flag.name for flag in VLLM_FLAGS if flag.verdict != "works"]
    assert keys.isdisjoint(others)


@pytest.mark.parametrize("word", ["-O3", "-O=3"])
def test_the_short_optimization_level(word: str) -> None:
    assert parse(word)[1]
    assert parse("-O", "3")[1]
