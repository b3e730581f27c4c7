"""``EventWriter``: the events of one stream as bytes, for every route that streams choices.

What stands in a choice is the route's own; when an event is sent is ``streaming``'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .wire_common import StreamOptions


class EventWriter:
    """What does not change from one event to the next is encoded once, here.

    Args:
        head: the fields that every event begins with: ``id``, ``object``, ``created``, ``model``.
        options: which events have ``usage``. Where the last one has it alone, it is ``null`` in the
            others, as in the OpenAI API.
        usage: what it is by now.
    """

    def __init__(
        self, head: dict[str, Any], options: StreamOptions, usage: Callable[[], dict[str, Any]]
    ) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._head = b"data: " + self._encode(head)[:-1]
        self._usage = usage
        self._close = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._counts_each = bool(options.continuous_usage_stats)

    def choice(self, value: dict[str, Any], **beside: Any) -> bytes:
        """An event with one choice.

        Args:
            beside: fields that stand beside ``choices``, where they are not ``None``.
        """
        head = self._head
        for name, extra in beside.items():
            if extra is not None:
                head += b',"' + name.encode() + b'":' + self._encode(extra)
        close = self._close
        if self._counts_each:
            close = b'],"usage":' + self._encode(self._usage()) + b"}\n\n"
        return head + b',"choices":[' + self._encode(value) + close

    def usage(self) -> bytes:
        """The last event but ``[DONE]``: ``choices`` is empty."""
        return self._head + b',"choices":[],"usage":' + self._encode(self._usage()) + b"}\n\n"
