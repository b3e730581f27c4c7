"""``Reply``: what the OpenAI routes do once a request is known to be right: generate, and answer
with a stream or with a whole reply. What either holds is each route's own."""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hookserve.engine.sampling_params import SamplingParams

from .api_call import ApiCall
from .generation import Generation
from .openai_request import reply_id
from .streaming import EventStream, until_gone
from .wire_common import usage
from .wire_events import EventWriter
from .wire_logprobs import LogprobsWriter


class Reply(abc.ABC):
    """What one request's reply shows of its generation.

    Args:
        prompts, params, is_prompt_only: as ``Generation`` takes them.
    """

    def __init__(
        self,
        call: ApiCall,
        prompts: list[list[int]],
        params: list[SamplingParams],
        *,
        is_prompt_only: bool = False,
    ) -> None:
        self.generation = Generation(call, prompts, params, is_prompt_only=is_prompt_only)
        wanted, serving = call.wanted, call.serving
        self.writer = LogprobsWriter(
            serving.tokenizer,
            call.checked.num_top,
            serving.limits.num_logprobs(wanted.prompt_logprobs, "prompt_logprobs"),
            as_ids=bool(wanted.return_tokens_as_token_ids),
        )
        self.with_ids = bool(wanted.return_token_ids)
        self.options = call.checked.stream_options
        self._call = call

    @abc.abstractmethod
    def events(self) -> AsyncIterator[bytes]:
        """The events of the stream, but for the closing ``[DONE]``."""

    @abc.abstractmethod
    async def collect(self) -> bytes:
        """The JSON of the whole reply: the fold of the stream's deltas."""

    async def response(self, request: Request) -> Response:
        """Generate, unless a plugin refuses, and answer as the client asked.

        Raises:
            ApiError: the engine could not go on; or of a plugin.
        """
        await self._call.admit()
        headers = self._call.headers
        if self._call.wanted.stream:
            return EventStream(self.generation, self.events(), headers)
        body = await until_gone(request.receive, self.generation, self.collect())
        return Response(body, headers=headers, media_type="application/json")

    async def written(self, write: Callable[[], bytes]) -> bytes:
        """What ``write`` makes; in a thread where that takes a time which would be missing to every
        open stream."""
        return await asyncio.to_thread(write) if self.writer.writes_many else write()

    def event_writer(self, prefix: str, kind: str) -> EventWriter:
        """
        Args:
            prefix: of the reply's id.
            kind: the ``object`` of each event.
        """
        return EventWriter(self.head(prefix, kind), self.options, self.usage)

    def head(self, prefix: str, kind: str) -> dict[str, Any]:
        """What a whole reply and each event of a stream begin with."""
        return {
            "id": reply_id(prefix, self._call.wanted.request_id),
            "object": kind,
            "created": int(time.time()),
            "model": self.generation.model,
        }

    def usage(self) -> dict[str, Any]:
        generation = self.generation
        return usage(
            generation.num_prompt_tokens,
            generation.num_completion_tokens,
            generation.num_cached_tokens,
        )
