"""``Setting``: what a configuration field says about itself to the people who set it.

A field of a settings struct is annotated with one; flags, environment variables, keys of the
configuration file and the help text are all made from it. Reading those is the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

KINDS: tuple[str, ...] = (
    "text",
    "whole",
    "number",
    "switch",
    "list",
    "json",
    "bytes",
    "tokens",
    "secret",
)


@dataclass(frozen=True)
class Setting:
    """Args:
    help: one sentence, without a final stop.
    group: heading in ``--help``.
    kind: how a text is read; empty: from the field's type. ``bytes`` takes ``512MiB``, ``tokens``
        takes ``8k``; both take plain numbers. ``secret`` is a key that is never shown.
    flag: without the dashes; empty: the field's name with hyphens.
    aliases: further option strings, with their dashes.
    env: empty: ``HOOKSERVE_`` and the field's name in capitals.
    other_envs: variables of the ecosystem that say the same; of two the former wins, and ``env``
        wins over all.
    choices: the only texts that are accepted, if there are any.
    synonyms: other spellings of a choice.
    minimum, maximum: inclusive, for numbers.
    bare: what the flag means without a value; empty: it must have one.
    unset: texts that mean "as if it were not given".
    """

    help: str
    group: str
    kind: str = ""
    flag: str = ""
    aliases: tuple[str, ...] = ()
    env: str = ""
    other_envs: tuple[str, ...] = ()
    metavar: str = ""
    choices: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    minimum: float | None = None
    maximum: float | None = None
    bare: str = ""
    unset: tuple[str, ...] = ()
