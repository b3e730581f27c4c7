"""The hooks around one HTTP request: in which order they are asked, and what may be answered.

A wrong answer is its plugin's failure, as an exception is. How one implementation is called, and
for how long, is ``hook``'s; what becomes of the answers is the server's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import msgspec

from .hook import first
from .notify_loop import caught
from .owned import Owned
from .plugin import Plugin
from .request_types import (
    SCOPES,
    ApiRequest,
    EngineLoad,
    Principal,
    Refusal,
    RequestHead,
    ResponseDelta,
)

if TYPE_CHECKING:
    from .guard import Guard
    from .hook import Hook

logger = logging.getLogger(__name__)

FINISH_REASONS = ("stop", "length", "content_filter")
"""With which a plugin may end a choice."""
ADMIT_STATUSES = (429, 503)

AcceptRequest = Callable[[ApiRequest], Awaitable[ApiRequest]]
AcceptLabels = Callable[[str, Any], Mapping[str, str]]


class HeldText:
    """What the buffering plugins of one choice have collected so far. The plugins that are asked
    about a choice are those of its first piece: text that one holds is not lost with it."""

    __slots__ = ("guards", "pieces")

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        self.pieces: dict[Guard, list[str]] = {guard: [] for guard in guards if guard.buffers}


class RequestCalls:
    """A typed method for each of these hooks; the base of ``Calls``."""

    hooks: dict[str, Hook]

    @property
    def wants_requests(self) -> bool:
        """Whether anybody implements a hook that is given the request."""
        return any(
            self.hooks[name].guards
            for name in ("before_request", "admit", "before_response", "metric_labels")
        )

    async def authenticate(self, request: RequestHead) -> Owned | None:
        """Who sends the request, and who says so.

        Raises:
            PluginError: a plugin failed.
        """
        return await first(self.hooks, "authenticate").ask(_principal, request)

    async def before_request(
        self,
        request: ApiRequest,
        principal: Principal | None,
        *,
        accept: AcceptRequest | None = None,
    ) -> ApiRequest | Refusal:
        """Each gets what the one before made of the request, until one refuses. Each gets a body
        and headers of its own: what it changes there counts, also where it returns nothing.

        Args:
            accept: checks a changed request, and returns it with the model that its body names;
                what it raises is the failure of the plugin that made the change.

        Raises:
            PluginError: a plugin failed.
            RecursionError: the body is nested too deeply to be copied.
        """
        hook = self.hooks["before_request"]
        for guard in hook.guards:
            body, headers = _copied(request.body), dict(request.headers)
            given = msgspec.structs.replace(request, body=body, headers=headers)
            try:
                answer = await hook.answer(guard, given, principal)
                answer = given if answer is None else answer
                if isinstance(answer, Refusal):
                    _check_refusal(answer, range(400, 600))
                    _tell_refusal(guard.plugin, request, answer)
                    return answer
                if _is_changed(request, answer):
                    answer = msgspec.structs.replace(answer, headers=request.headers)
                    request = answer if accept is None else await accept(answer)
            except caught() as error:
                hook.failed(guard, error)
        return request

    async def admit(
        self, request: ApiRequest, principal: Principal | None, load: EngineLoad
    ) -> Owned | None:
        """The first refusal, and whose it is.

        Raises:
            PluginError: a plugin failed.
        """
        found = await first(self.hooks, "admit").ask(_refused, request, principal, load)
        if found is not None:
            _tell_refusal(found.owner, request, found.value)
        return found

    async def before_response(
        self, request: ApiRequest, delta: ResponseDelta, *, held: HeldText | None = None
    ) -> ResponseDelta | None:
        """What all make of a piece of a choice's text; ``None``: nothing goes on yet.

        Args:
            held: of this choice, the same for all its pieces; without it this is the only piece.

        Raises:
            PluginError: a plugin failed.
        """
        hook = self.hooks["before_response"]
        held = HeldText(hook.guards) if held is None else held
        for guard in held.guards:
            if guard.buffers:
                pieces = held.pieces[guard]
                pieces.append(delta.text)
                if delta.finish_reason is None:
                    return None
                delta = msgspec.structs.replace(delta, text="".join(pieces))
            try:
                answer = await hook.answer(guard, request, delta)
                if answer is not None:
                    _check_delta(delta, answer)
                    delta = answer
            except caught() as error:
                hook.failed(guard, error)
            if not delta.text and delta.finish_reason is None:
                return None
        return delta

    async def metric_labels(
        self,
        request: ApiRequest,
        principal: Principal | None,
        *,
        accept: AcceptLabels | None = None,
    ) -> list[Owned]:
        """The labels of a request that ended, by plugin; one that fails is left out.

        Args:
            accept: checks the labels of a plugin, which is given by its identity; what it raises
                is the failure of that plugin.
        """
        hook = self.hooks["metric_labels"]
        answers = []
        for guard in hook.guards:
            try:
                answer = await hook.answer(guard, request, principal)
                if answer is not None and accept is not None:
                    answer = accept(guard.plugin.identity, answer)
            except caught() as error:
                hook.failed(guard, error)
            else:
                if answer is not None:
                    answers.append(Owned(guard.plugin, answer))
        return answers


def _copied(body: Mapping[str, Any]) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


def _is_changed(before: ApiRequest, answer: object) -> bool:
    """Raises ``TypeError`` or ``ValueError`` for what cannot be a changed request."""
    if not isinstance(answer, ApiRequest):
        raise TypeError(f"the answer is a {_kind(answer)}; expected an ApiRequest or a Refusal")
    for name in ("request_id", "route", "model", "headers"):
        if getattr(answer, name) != getattr(before, name):
            hint = "; the model is that of the body" if name == "model" else ""
            raise ValueError(f"before_request changed {name}; only the body may be{hint}")
    return bool(answer.body != before.body)


def check_principal(answer: object) -> None:
    """Raises ``TypeError`` or ``ValueError`` for what is no principal."""
    if not isinstance(answer, Principal):
        raise TypeError(f"the answer is a {type(answer).__name__}; expected a Principal or None")
    _check_text("the name of a principal", answer.name)
    if not answer.name:
        raise ValueError("the name of a principal is empty")
    scopes = answer.scopes
    if not isinstance(scopes, Set) or not scopes <= set(SCOPES):
        raise ValueError(
            f"the scopes of a principal are {repr(scopes)[:120]}; expected a set of "
            f"{', '.join(SCOPES)}"
        )


def _principal(answer: object) -> object:
    check_principal(answer)
    return answer


def _check_refusal(answer: object, statuses: Sequence[int]) -> None:
    if not isinstance(answer, Refusal):
        raise TypeError(f"the answer is a {_kind(answer)}; expected a Refusal")
    if type(answer.status) is not int or answer.status not in statuses:
        expected = f"{statuses[0]} to {statuses[-1]}" if len(statuses) > 2 else "429 or 503"
        raise ValueError(f"the status of a refusal is {answer.status!r}; expected {expected}")
    for name in ("message", "code"):
        _check_text(f"the {name} of a refusal", getattr(answer, name))
    wait_s = answer.retry_after_s
    if wait_s is not None and not (type(wait_s) in (int, float) and 0 <= wait_s < 1e9):
        raise ValueError(f"retry_after_s of a refusal is {wait_s!r}; expected seconds")


def _refused(answer: Refusal) -> Refusal:
    _check_refusal(answer, ADMIT_STATUSES)
    return answer


def _tell_refusal(owner: Plugin, request: ApiRequest, refusal: Refusal) -> None:
    logger.debug(
        "request %s is refused by plugin %s: %d %s: %s",
        request.request_id,
        owner.identity,
        refusal.status,
        refusal.code,
        refusal.message,
    )


def _check_delta(given: ResponseDelta, answer: object) -> None:
    if not isinstance(answer, ResponseDelta):
        raise TypeError(f"the answer is a {_kind(answer)}; expected a ResponseDelta")
    if answer.index != given.index:
        raise ValueError(f"before_response changed the index {given.index} to {answer.index!r}")
    _check_text("the text of a ResponseDelta", answer.text)
    if answer.finish_reason is None and given.finish_reason is not None:
        raise ValueError(f"before_response took the finish_reason {given.finish_reason!r} away")
    reason = answer.finish_reason
    if reason is not None and (
        type(reason) is not str or reason not in (given.finish_reason, *FINISH_REASONS)
    ):
        raise ValueError(
            f"before_response gave the finish_reason {reason!r}; expected one of "
            f"{', '.join(FINISH_REASONS)}"
        )


def _kind(answer: object) -> str:
    return type(answer).__name__


def _check_text(what: str, value: object) -> None:
    if type(value) is not str:  # one of a subclass could not be sent on
        raise TypeError(f"{what} is a {type(value).__name__}; expected a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half of a surrogate pair") from None
