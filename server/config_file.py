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
        try:
            value = yaml.safe_load(file)
        except yaml.YAMLError as error:
            text = " ".join(str(error).split())
            raise ConfigError(f"--config {path!r}: no valid YAML: {text}") from error
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"--config {path!r}: expected a table of keys at the top")
    return value
