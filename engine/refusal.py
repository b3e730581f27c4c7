"""How a setting of ``EngineArgs`` is refused in words: by flag, value and where it came from."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, cut
from .setting import Setting

if TYPE_CHECKING:
    from .engine_args import EngineArgs


def refuse(
    args: EngineArgs, name: str, value: Any, expected: str, known: tuple[str, ...] = ()
) -> ConfigError:
    """The key, the value, where it came from, what was expected, the nearest valid name."""
    setting = _setting(args, name)
    key = "--" + ((setting.flag if setting else "") or name.replace("_", "-"))
    origin = args.sources.get(name)
    where = f" (from {origin})" if origin else ""
    shown = "" if value is None else f" {cut(repr(value))}"
    text = f"{key}{shown}{where}: expected {expected}"
    if known:
        text += " " + ", ".join(known)
        near = difflib.get_close_matches(str(value), known, n=1)
        text += f"; did you mean {near[0]!r}?" if near else ""
    return ConfigError(text)


def _setting(args: EngineArgs, name: str) -> Setting | None:
    from typing import get_type_hints

    hint = get_type_hints(type(args), include_extras=True).get(name)
    found = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Setting)]
    return found[0] if found else None
