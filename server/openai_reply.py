"""``Reply``: what the OpenAI routes do once a request is known to be right: generate, and answer
with a stream or with a whole reply. What either holds is each route's own."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hookserve.engine.sampling_params import SamplingParams

from .generation import Generation
from .serving import Serving
from .streaming import EventStream, until_gone
from .wire_common import SamplingFields, usage
from .wire_logprobs import LogprobsWriter


class Reply(abc.ABC):
    """What one request's reply shows of its generation.

    Args:
        num_top: how many of the likeliest tokens are shown at each position; ``None``: nothing is
            shown of generated tokens.
    """

    def __init__(
        self,
        serving: Serving,
        wanted: SamplingFields,
        *,
        request_id: str,
        route: str,
        model: str,
        prompts: list[list[int]],
        params: list[SamplingParams],
        num_top: int | None,
    ) -> None:
        self.generation = Generation(
            serving,
            request_id=request_id,
            route=route,
            model=model,
            prompts=prompts,
            params=params,
            priority=wanted.priority or 0,
            cache_salt=wanted.cache_salt,
        )
        as_ids = bool(wanted.return_tokens_as_token_ids)
        self.writer = LogprobsWriter(serving.tokenizer, num_top, as_ids)
        self.with_ids = bool(wanted.return_token_ids)
        self._is_streamed = bool(wanted.stream)

    @abc.abstractmethod
    def events(self, with_usage: bool) -> AsyncIterator[bytes]:
        """The events of the stream, but for the closing ``[DONE]``."""

    @abc.abstractmethod
    async def collect(self) -> bytes:
        """The JSON of the whole reply: the fold of the stream's deltas."""

    async def response(
        self, request: Request, with_usage: bool, headers: Mapping[str, str]
    ) -> Response:
        """Generate, and answer as the client asked.

        Args:
            with_usage: whether a stream ends with ``usage``.

        Raises:
            ApiError: the engine could not go on.
        """
        if self._is_streamed:
            return EventStream(self.generation, self.events(with_usage), headers)
        body = await until_gone(request.receive, self.generation, self.collect())
        return Response(body, headers=headers, media_type="application/json")

    def usage(self) -> dict[str, Any]:
        generation = self.generation
        return usage(
            generation.num_prompt_tokens,
            generation.num_completion_tokens,
            generation.num_cached_tokens,
        )
