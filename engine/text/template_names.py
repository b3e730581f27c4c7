"""``dict`` and ``namespace`` as chat templates have them.

jinja2's own are ways out of its sandbox: Python's ``dict`` lends the methods that change a message
(``dict.update(message, ...)``), and Python asks an object for names such as ``__html__``, which
would run a macro where neither its time nor its depth is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace


class TemplateDict:
    """Makes new dicts, and lends no method that changes one."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class TemplateNamespace(Namespace):
    """What ``{% set space.name = value %}`` writes to; names that begin with ``_`` are refused.

    jinja2's class has no attributes but the template's own, so nothing here is asked of ``self``.

    Raises:
        SecurityError: such a name.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` is a name that a template may give
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"names in a namespace may not begin with '_' (given: {name!r})")
