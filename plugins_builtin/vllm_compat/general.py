"""``GeneralPlugin``: a function of the group ``vllm.general_plugins``, which registers by calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookserve.hookspecs import PluginContext, hookimpl, tell_operator
from hookserve.hookspecs.loading import heavy_import
from hookserve.hookspecs.self_registration import call_once

from .wrapped_app import declare_wrapper, find_wrapper


class GeneralPlugin:
    """
    Args:
        path: of the function, for messages.
        function: takes no arguments; it is called once in a process, whatever hosts that has.
    """

    def __init__(self, path: str, function: Callable[[], Any]) -> None:
        self._path = path
        self._function = function

    @hookimpl
    def register_by_call(self, ctx: PluginContext) -> None:
        wrapped = find_wrapper()
        with heavy_import(ctx.roles, tell_operator):
            answer = call_once(self._function)
        if "front" in ctx.roles:
            declare_wrapper(wrapped)
        if answer is not None:
            tell_operator(
                f"{self._path} returned {repr(answer)[:80]}, which nobody reads: a general plugin "
                "registers by calls"
            )
