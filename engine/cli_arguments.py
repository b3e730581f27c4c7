"""``EngineArgs`` on the command line of somebody else's program: options for every argument, read
as the server's own flags are. The server's command line is its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from .errors import HookserveError
from .setting import Setting
from .setting_values import Origin, Spec, derive_kind, read_text

if TYPE_CHECKING:
    from .engine_args import EngineArgs


class FlexibleArgumentParser(argparse.ArgumentParser):
    """Takes ``--max_model_len`` for ``--max-model-len``."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        import sys

        given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args([_hyphened(each) for each in given], namespace)


def _hyphened(text: str) -> str:
    if not text.startswith("--"):
        return text
    name, equals, value = text.partition("=")
    return name.replace("_", "-") + equals + value


def add_arguments(kind: type[EngineArgs], parser: Any) -> None:
    """An option for each argument that an operator can give, with its default."""
    defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(kind)
    }
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for setting in getattr(hint, "__metadata__", ()):
            if isinstance(setting, Setting):
                read_as = setting.kind or derive_kind(hint.__origin__)
                _add(parser, Spec(name, "engine", setting, read_as, defaults[name]))


def _add(parser: Any, spec: Spec) -> None:
    common: dict[str, Any] = {
        "dest": spec.name,
        "default": spec.default,
        "help": spec.setting.help.replace("%", "%%"),
    }
    options = [spec.flag, *spec.setting.aliases]
    if spec.kind == "switch":
        parser.add_argument(*options, action=argparse.BooleanOptionalAction, **common)
    else:
        parser.add_argument(*options, type=_reader(spec), **common)


def _reader(spec: Spec) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return read_text(spec, text, Origin("flag", spec.flag))
        except HookserveError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read
