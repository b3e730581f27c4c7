"""Targets: the text ``"module:attribute"`` (or an object) that a declaration points at.

Only this file turns a target into an object. Whose fault a failure is, ``registry`` knows.
"""

from __future__ import annotations

import importlib
from typing import Any


def is_path(name: str) -> bool:
    """Whether ``name``, which nobody registered, is a class path, in either form."""
    return "." in name.replace(":", ".") and check_path(name) is None


def target_text(target: Any) -> str:
    """The target as text: a path as it was given, an object as ``module:qualname``."""
    if isinstance(target, str):
        return target
    name = getattr(target, "__qualname__", None)
    if name is None:
        return f"{type(target).__module__}:{type(target).__qualname__} object"
    return f"{target.__module__}:{name}"


def same_target(left: Any, right: Any) -> bool:
    """Whether both are the identical thing; the dotted and the colon form are one, and so are an
    object and the text that names it."""
    if isinstance(left, str) or isinstance(right, str):
        return target_text(left).replace(":", ".") == target_text(right).replace(":", ".")
    return left is right


def check_path(path: str) -> str | None:
    """Say what is wrong with the text of a target, or ``None``."""
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    parts = [*module.split("."), *attribute.split(".")]
    if all(part.isidentifier() for part in parts):
        return None
    return f"target '{path}' is not of the form 'package.module:attribute'"


def import_target(target: Any) -> Any:
    """The object that the target names; whatever its import raises passes.

    Raises:
        ImportError: if the module has no such attribute.
    """
    if not isinstance(target, str):
        return target
    module_name, _, attribute = target.partition(":") if ":" in target else target.rpartition(".")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ImportError(f"module {module_name} has no attribute '{attribute}'") from error
    return found
