"""``ResponseFilter``: the text of one request's choices on its way through ``before_response``.

Streams and whole replies are made of what it lets through, so they say the same. Plugins see text
alone; this file keeps the tokens with it. Where nobody implements the hook there is no filter.

Text that a plugin changed or took away must not be told by another way: the tokens of a piece whose
text is not the generated one, and their log-probabilities, stay here.
"""

from __future__ import annotations

from collections.abc import Callable

from hookserve.engine.messages import TokenLogprobs
from hookserve.engine.text.output import TextDelta
from hookserve.hookspecs import ApiRequest, PluginError, ResponseDelta
from hookserve.hookspecs.calls import Calls
from hookserve.hookspecs.request_calls import HeldText

from .errors import ApiError


class _Choice:
    """What was generated for one choice and is not out yet, and how far its text has moved."""

    __slots__ = ("held", "logprobs", "shift", "text_offsets", "texts", "token_ids")

    def __init__(self, held: HeldText) -> None:
        self.held = held
        self.shift = 0
        """Characters shown so far beyond those generated."""
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.text_offsets: list[int] = []

    def add(self, delta: TextDelta) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.text_offsets += delta.text_offsets or ()

    def release(self, shown: ResponseDelta, last: TextDelta) -> TextDelta:
        """Everything that waited, with the text that plugins made of it.

        Args:
            last: the piece that let it go.
        """
        generated = "".join(self.texts)
        is_same = shown.text == generated
        offsets = [offset + self.shift for offset in self.text_offsets if is_same]
        delta = TextDelta(
            shown.text,
            self.token_ids if is_same else [],
            shown.finish_reason,
            last.stop_reason,
            last.stopped_by_text,
            None if last.logprobs is None else (self.logprobs if is_same else []),
            None if last.text_offsets is None else offsets,
        )
        self.shift += len(shown.text) - len(generated)
        self.texts, self.token_ids, self.logprobs, self.text_offsets = [], [], [], []
        return delta


class ResponseFilter:
    """One request's.

    Args:
        failure: what the client is told of a plugin's failure in a hook.
    """

    def __init__(
        self, calls: Calls, request: ApiRequest, failure: Callable[[PluginError, str], ApiError]
    ) -> None:
        self._calls = calls
        self._request = request
        self._failure = failure
        self._guards = calls.hooks["before_response"].guards
        self._choices: dict[int, _Choice] = {}

    async def pass_on(self, index: int, delta: TextDelta) -> TextDelta | None:
        """What goes on to the client of a piece of a choice; ``None``: nothing yet. It may end the
        choice before the engine does.

        Raises:
            ApiError: a plugin failed.
        """
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _Choice(HeldText(self._guards))
        choice.add(delta)
        if not delta.text and delta.finish_reason is None:
            return None  # the tokens wait for their text
        given = ResponseDelta(index, delta.text, delta.finish_reason)
        try:
            shown = await self._calls.before_response(self._request, given, held=choice.held)
        except PluginError as error:
            raise self._failure(error, "before_response") from None
        return None if shown is None else choice.release(shown, delta)
