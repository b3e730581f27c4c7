"""The configuration file as a plain mapping: TOML, or YAML where PyYAML is installed.

What the keys mean is ``settings``'.
"""

from __future__ import annotations

import os
from typing import Any

from hookserve.engine.errors import ConfigError


def read_config_file(path: str) -> dict[str, Any]:
    """Read the file that ``--config`` names; its suffix says which format it has.

    Raises:
        ConfigError: it cannot be read, is not well formed, or is no table at its top.
    """
    suffix = os.path.splitext(path)[1].lower()
    try:
        if suffix == ".toml":
            return _read_toml(path)
        if suffix in (".yaml", ".yml"):
            return _read_yaml(path)
    except OSError as error:
        raise ConfigError(f"--config {path!r}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {path!r}: expected UTF-8 text") from error
    raise ConfigError(f"--config {path!r}: expected a file ending in .toml, .yaml or .yml")


def _read_toml(path: str) -> dict[str, Any]:
    import tomllib

    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"--config {path!r}: no valid TOML: {error}") from error


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            f"--config {path!r}: YAML needs the package PyYAML, which is not installed; "
            "install it, or write the file as TOML"
        ) from error
    with open(path, encoding="utf-8") as file:
        text = file.read()
        try:
            _refuse_repeated_keys(path, yaml.compose(text, Loader=yaml.SafeLoader))
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            text = " ".join(str(error).split())
            raise ConfigError(f"--config {path!r}: no valid YAML: {text}") from error
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"--config {path!r}: expected a table of keys at the top")
    return value


def _refuse_repeated_keys(path: str, root: Any) -> None:
    """YAML's reader would silently take the last of them. ``root`` is PyYAML's node."""
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in seen or isinstance(node.value, str):
            continue
        seen.add(id(node))  # an alias may lead back
        if node.id == "sequence":
            nodes += node.value
            continue
        keys = set()
        for key, value in node.value:
            if isinstance(key.value, str) and key.value in keys:
                line = key.start_mark.line + 1
                raise ConfigError(
                    f"--config {path!r}: {key.value!r} stands there twice (line {line})"
                )
            keys.add(key.value if isinstance(key.value, str) else id(key))
            nodes.append(value)
