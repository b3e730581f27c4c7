"""``docs/cli.md``, made from the settings and the table of flags.

``python -m hookserve.server.cli_reference`` prints it; a test compares it with the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from hookserve.engine.vllm_flags import VLLM_FLAGS, Flag

from .cli import VERBS
from .setting_values import Spec
from .settings import EXTRA_ENVIRONMENT, GROUPS, all_specs

_HEAD = """# Command line

This page is made by `python -m hookserve.server.cli_reference`.

The program is called `server`; `hookserve` is the same program.
"""
_SETTINGS = """## Settings

`server run [MODEL] [flags]`. Each setting is a flag, an environment variable, and a key of the file
that `--config` names (the flag without its dashes). The flag wins over the environment, the
environment over the file, the file over what the model's own files say, and those over the
default. Hyphens and underscores are the same. Lists take commas, and a flag with a list may be
repeated. Where JSON is expected, `@FILE` reads it from a file, `--name.key value` sets one key, and
`--name.key+ value,value` makes a list longer.

An unknown flag, a refused flag or a wrong value of a flag ends the program with exit code 2; a
wrong value in the environment or the file, and an unknown key of the file, with 78. An unknown
`HOOKSERVE_*` variable is warned about.
"""
_TABLE = """## Flags of `vllm serve`

What becomes of each of them here. A switch that is refused may be given in its `--no-` form.
"""


def cli_reference() -> str:
    """The whole page."""
    parts = [_HEAD, *_verbs(), _SETTINGS]
    for group in GROUPS:
        rows = [_setting_row(spec) for spec in all_specs() if spec.setting.group == group]
        parts.append(
            f"### {group}\n\n" + markdown_table(("flag", "environment", "default", ""), rows)
        )
    extra = [(f"`{name}`", text) for name, text in EXTRA_ENVIRONMENT.items()]
    parts.append("### Other variables\n\n" + markdown_table(("variable", ""), extra))
    parts.append(_TABLE)
    for title, verdict in (
        ("Works", "works"),
        ("Accepted without effect", "no effect"),
        ("Refused", "refused"),
    ):
        rows = [_flag_row(flag) for flag in VLLM_FLAGS if flag.verdict == verdict]
        if verdict == "works":
            parts.append(f"### {title}\n\n" + ", ".join(row[0] for row in rows) + "\n")
        else:
            parts.append(
                f"### {title}\n\n" + markdown_table(("flag", "because", "accepted values"), rows)
            )
    return "\n".join(parts)


def _verbs() -> Iterator[str]:
    rows = [(f"`server {verb}`", text) for verb, text in VERBS.items()]
    rows.append(("`server --version`", "print the version and the hook API's version"))
    yield markdown_table(("verb", ""), rows)
    yield (
        "`server VERB --help` lists what each takes. `server chat` takes the flags of\n"
        "`server run` for the server that it starts when none is running. Plugins may add verbs\n"
        "([cli_command](hooks/cli_command.md)) and options of `server run`\n"
        "([cli_options](hooks/cli_options.md)); what `server plugins` tells is in\n"
        "[plugins.md](plugins.md). How long each flag stays: [stability.md](stability.md).\n"
    )


def _setting_row(spec: Spec) -> tuple[str, ...]:
    setting = spec.setting
    flags = ", ".join(f"`{option}`" for option in (spec.flag, *setting.aliases))
    if spec.default is True:
        flags += f", `--no-{spec.key}`"
    text = setting.help
    if setting.choices:
        text += "; one of " + ", ".join(f"`{choice}`" for choice in setting.choices)
    variables = ", ".join(f"`{name}`" for name in (spec.env, *setting.other_envs))
    return flags, variables, _default(spec.default), text


def _default(value: Any) -> str:
    if value is None or value is False or value in ((), "", {}):
        return ""
    if value is True:
        return "on"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _flag_row(flag: Flag) -> tuple[str, ...]:
    options = ", ".join(f"`{option}`" for option in flag.options)
    return options, flag.reason, ", ".join(f"`{value}`" for value in flag.neutral)


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table as Markdown has it: the head, a line under it, the rows."""
    """A table as Markdown writes it; one line."""
    lines = [head, tuple("---" for _ in head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells) + "\n"


if __name__ == "__main__":
    sys.stdout.write(cli_reference())
