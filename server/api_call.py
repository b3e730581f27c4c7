"""``ApiCall``: one request for text, from its body to its record, and what plugins are asked on
its way.

The answers are checked by ``hookspecs.request_calls``; the text that goes back is
``response_filter``'s. Where no plugin wants the request, nothing is made for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request

from hookserve.engine.errors import EngineDeadError, RequestError
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import ApiRequest, PluginError, Principal, Refusal, RequestRecord
from hookserve.hookspecs.errors import exc_info_of

from .errors import ApiError, bad_request, engine_failure, plugin_failure, refused
from .openai_request import MAX_BYTES_ON_LOOP, note_unused, read_request, serving_of
from .processor_questions import FIELD
from .request_context import head_of, principal_of, rename, request_id_of
from .response_filter import ResponseFilter
from .sampling import sampling_params
from .serving import Serving
from .wire_common import StreamOptions
from .wire_form import path_of
from .wire_json import RequestDecoder

logger = logging.getLogger("hookserve.server.api_call")


class Checked(NamedTuple):
    """What a route found in a request before its template is rendered."""

    model: str
    """The name to answer under."""
    prompt: Any
    """What the route makes its tokens of."""
    stream_options: StreamOptions
    """Which events of a stream have ``usage``."""
    num_logprobs: int | None
    """As the client asked."""
    num_top: int | None
    """How many of the likeliest tokens are shown at each position; ``None``: nothing is shown of
    generated tokens."""


Check = Callable[[Serving, Any], Checked]
"""A route's checks of a decoded request. Raises ``ApiError`` or ``RequestError``."""


class ApiCall:
    """Made by ``open_call``.

    Attributes:
        wanted: the decoded request, as plugins left it.
        checked: what the route's checks made of it.
        headers: those that every reply carries.
        principal: who sends it.
    """

    def __init__(
        self, request: Request, route: str, decoder: RequestDecoder, check: Check, wanted: Any
    ) -> None:
        self.serving = serving_of(request)
        self.route = route
        if wanted.request_id is not None:
            rename(request.scope, wanted.request_id)
        self.request_id = request_id_of(request.scope)
        self.principal: Principal | None = principal_of(request.scope)
        self.headers: dict[str, str] = {}
        self.wanted = wanted
        self.checked = check(self.serving, wanted)
        self.arrival_time = time.time()
        self._started = time.monotonic()
        self._http = request
        self._decoder = decoder
        self._check = check
        self._calls = self.serving.host.calls
        self._request: ApiRequest | None = None
        self._is_reported = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    # -- what plugins are asked -------------------------------------------------------------

    async def before_request(self, body: bytes) -> None:
        """Let plugins see, change and refuse the request.

        Raises:
            ApiError: a refusal, or the failure of a plugin; 400 for a body that has parts that the
                server itself has no use for, and that cannot be decoded.
        """
        if not self._calls.wants_requests:
            return
        try:
            self._request = ApiRequest(
                request_id=self.request_id,
                route=self.route,
                model=self.checked.model,
                body=await _off_loop(len(body), _decode, body),
                headers=_without_keys(head_of(self._http.scope).headers),
            )
            answer = await self._calls.before_request(
                self._request, self.principal, accept=self._accept
            )
        except msgspec.ValidationError as error:  # a number beyond every type
            raise bad_request(f"the body: {error}", code="invalid_value") from None
        except RecursionError:
            raise bad_request("the body is nested too deeply", code="invalid_json") from None
        except PluginError as error:
            raise self.failure(error, "before_request") from None
        if isinstance(answer, Refusal):
            raise refused(answer)
        self._request = answer

    async def _accept(self, changed: ApiRequest) -> ApiRequest:
        """A changed request is decoded and checked as one of a client's.

        Raises:
            ValueError, TypeError: with what is wrong with it, all the plugin's fault.
        """
        try:
            # Not msgspec's: it writes bytes as base64, and null for numbers that JSON has not.
            body = json.dumps(changed.body, allow_nan=False).encode()
            self.wanted, _ = await _off_loop(len(body), self._decoder.decode, body)
            self.checked = self._check(self.serving, self.wanted)
            self._check_sampling()
        except ApiError as error:
            raise ValueError(f"the changed body is refused: {error.message}") from error
        except RequestError as error:
            raise ValueError(f"the changed body is refused: {error}") from error
        return msgspec.structs.replace(
            changed, model=self.checked.model, body=await _off_loop(len(body), _decode, body)
        )

    def _check_sampling(self) -> None:
        """What a route checks of a request's own fields when it knows the prompt; without it here.

        Raises:
            ApiError: 400.
        """
        serving = self.serving
        sampling_params(
            self.wanted,
            serving.defaults,
            serving.limits,
            max_tokens=[serving.engine_config.model.max_model_len],
            bad_words_token_ids=(),
            best_of=None,
            logprobs=self.checked.num_logprobs,
        )

    async def admit(self) -> None:
        """Ask plugins whether the request may be submitted now.

        Raises:
            ApiError: a refusal, or the failure of a plugin.
        """
        if self._request is None or not self._calls.hooks["admit"].guards:
            return
        load = self.serving.client.load
        try:
            refusal = await self._calls.admit(self._request, self.principal, load)
        except PluginError as error:
            raise self.failure(error, "admit") from None
        if refusal is not None:
            raise refused(refusal.value)

    async def check_params(self, every: Sequence[SamplingParams]) -> None:
        """Ask logits processors about the parameters of the request's prompts, and the grammar
        backend about the form of its text. Where there is no processor, arguments for them have no
        effect.

        Raises:
            ApiError: a processor or the backend failed, or the form is none.
            RequestError: a processor or the backend refuses them.
        """
        processors = self.serving.processors
        if not processors and self.wanted.vllm_xargs:
            self.note_unused([FIELD])
        if self.checked.stream_options.include_obfuscation is not None:
            self.note_unused(["stream_options.include_obfuscation"])
        try:
            await processors.ask(every)
        except PluginError as error:
            raise self.failure(error, "validate_params") from None
        form = every[0].structured_outputs
        if form is not None:
            try:
                await self.serving.grammars.ask(form, path_of(self.wanted))
            except PluginError as error:
                raise self.failure(error, "validate") from None

    def note_unused(self, names: Iterable[str]) -> None:
        """Let the reply say that these fields have no effect."""
        note_unused(self.headers, names)

    def response_filter(self) -> ResponseFilter | None:
        """What the text goes through on its way to the client, if there is anything."""
        hook = self._calls.hooks["before_response"]
        if self._request is None or not hook.guards:
            return None
        return ResponseFilter(self._calls, self._request, self.failure)

    def failure(self, error: PluginError, hook: str) -> ApiError:
        """What the client is told of a plugin that failed; the log has the rest.

        Args:
            hook: where it failed.
        """
        logger.error(
            "request %s failed: plugin %s in %s: %s",
            self.request_id,
            error.identity,
            hook,
            error.message,
            exc_info=exc_info_of(error.__cause__),
        )
        return plugin_failure(error, hook)

    # -- its end ----------------------------------------------------------------------------

    def report(self, record: RequestRecord) -> None:
        """Tell plugins and loggers of its end; once."""
        if not self._is_reported:
            self._is_reported = True
            self.serving.report(record, self._request, self.principal)

    def report_failure(self, error: BaseException) -> None:
        """It ended before anything was generated."""
        self.report(self.record(*how_it_failed(error)))

    def record(
        self,
        finish_reason: str | None,
        error: str | None,
        *,
        num_prompt_tokens: int = 0,
        num_completion_tokens: int = 0,
        ttft_s: float | None = None,
    ) -> RequestRecord:
        return RequestRecord(
            request_id=self.request_id,
            route=self.route,
            model=self.checked.model,
            num_prompt_tokens=num_prompt_tokens,
            num_completion_tokens=num_completion_tokens,
            finish_reason=finish_reason,
            error=error,
            arrival_time=self.arrival_time,
            ttft_s=ttft_s,
            latency_s=self.elapsed_s,
            principal=None if self.principal is None else self.principal.name,
        )


@contextlib.asynccontextmanager
async def open_call(
    request: Request, route: str, decoder: RequestDecoder, check: Check
) -> AsyncIterator[ApiCall]:
    """Read, decode and check a request, and let plugins change it. From then on it has a record,
    whatever becomes of it: what leaves the block by an exception is reported here.

    Raises:
        ApiError, RequestError: it is refused, here or by a plugin.
    """
    reading = await read_request(request, decoder)
    # A large one is checked in a thread too: only there may the loop come in between.
    call = await _off_loop(
        len(reading.body),
        lambda _: ApiCall(request, route, decoder, check, reading.decoded),
        reading.body,
    )
    call.headers = reading.headers
    try:
        await call.before_request(reading.body)
        yield call
    except BaseException as error:
        call.report_failure(error)
        raise


def how_it_failed(error: BaseException) -> tuple[str, str | None]:
    """``finish_reason`` and ``error`` of a record."""
    if isinstance(error, EngineDeadError | RequestError):
        error = engine_failure(error)
    if isinstance(error, ApiError):
        return "error", error.message
    if isinstance(error, Exception):
        return "error", type(error).__name__
    return "abort", None


async def _off_loop(num_bytes: int, work: Callable[[bytes], Any], body: bytes) -> Any:
    """A large body is worked on in a thread: its time would be missing to every open stream."""
    if num_bytes > MAX_BYTES_ON_LOOP:
        return await asyncio.to_thread(work, body)
    return work(body)


def _without_keys(headers: Mapping[str, str]) -> dict[str, str]:
    """Plugins are told who sends a request. The key that shows it is for those who say so."""
    return {name: value for name, value in headers.items() if name != "authorization"}


def _decode(body: bytes) -> Any:
    return msgspec.json.decode(body)
