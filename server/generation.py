"""``Generation``: the sequences of one HTTP request while the engine works on them.

From the engine's tokens to deltas of text, the counts for ``usage``, the record for
``request_finished``, and the abort when the client goes away. How a reply is written is the
routes' business.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType

from hookserve.engine.errors import EngineDeadError, RequestError
from hookserve.engine.messages import EngineCoreOutput, TokenLogprobs
from hookserve.engine.output_sink import OutputSink
from hookserve.engine.parallel_sampling import fan_out
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.stats import Siblings
from hookserve.engine.text.output import OutputProcessor, TextDelta
from hookserve.hookspecs import RequestRecord

from .api_call import ApiCall, how_it_failed
from .errors import ApiError, bad_request, cut, engine_failure

_RANK = {None: 0, "stop": 1, "length": 2, "content_filter": 3, "abort": 4, "error": 5}


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class _Sequence:
    """One of those that a prompt was divided into; an engine request of its own."""

    __slots__ = ("engine_id", "has_begun", "is_open", "params", "processor", "prompt_index")

    def __init__(
        self, prompt_index: int, params: SamplingParams, processor: OutputProcessor
    ) -> None:
        self.prompt_index = prompt_index
        self.params = params
        self.processor = processor
        self.engine_id = ""
        self.has_begun = False
        self.is_open = True


class Generation:
    """Entered with ``async with``: entering submits the prompts, leaving frees what still runs and
    reports the request, whether it ended, failed or was left by its client.

    Sequences are numbered in the order of their prompts: those of prompt ``i`` begin at
    ``i * per_prompt``.

    Args:
        params: one for each prompt; they agree in ``n`` and ``best_of``.
        is_prompt_only: the one token that the engine generates at least is no part of the reply.
    """

    def __init__(
        self,
        call: ApiCall,
        prompts: list[list[int]],
        params: list[SamplingParams],
        *,
        is_prompt_only: bool = False,
    ) -> None:
        self.model = call.checked.model
        self.prompts = prompts
        self.n = params[0].n
        self.per_prompt = params[0].best_of or self.n
        self.prompt_logprobs: list[list[TokenLogprobs | None] | None] = [None] * len(prompts)
        """By prompt, once its first token is there."""
        self.num_prompt_tokens = sum(len(prompt) for prompt in prompts)
        """Each prompt once, however many sequences go on from it."""
        self.num_completion_tokens = 0
        """Of all sequences, those too of which ``best_of`` returns nothing."""
        self.num_cached_tokens = 0
        """Prompt tokens that were in the cache before this request put them there."""
        self.filter = call.response_filter()
        """What all that is returned goes through; ``deltas`` have, unless the best are to be
        chosen among more."""
        self._call = call
        self._client = call.serving.client
        self._sink = OutputSink()
        self._sequences = [
            _Sequence(index, each, OutputProcessor(call.serving.tokenizer, prompt, each))
            for index, (prompt, together) in enumerate(zip(prompts, params, strict=True))
            for each in fan_out(together)
        ]
        self._engine_ids: list[str] = []
        self._num_cached: dict[int, int] = {}
        self._finish_reason: str | None = None
        self._ttft_s: float | None = None
        self._is_gone = False
        self._is_prompt_only = is_prompt_only

    async def __aenter__(self) -> Generation:
        together = [Siblings(self.n, self.per_prompt) for _ in self.prompts]
        wanted, principal = self._call.wanted, self._call.principal
        try:
            for index, sequence in enumerate(self._sequences):
                sequence.engine_id = self._client.submit(
                    self.prompts[sequence.prompt_index],
                    sequence.params,
                    self._sink,
                    index,
                    priority=wanted.priority or 0,
                    cache_salt=wanted.cache_salt,
                    principal=None if principal is None else principal.name,
                    siblings=together[sequence.prompt_index],
                )
                self._engine_ids.append(sequence.engine_id)
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            if isinstance(error, EngineDeadError | RequestError):
                raise engine_failure(error) from None
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.abort_now(self._engine_ids)
        self._call.report(self._record(error))

    def cancel(self) -> None:
        """The client is gone: the engine is told at once, and ``deltas`` ends: also where outputs
        wait that nobody has read, since plugins may take long over each."""
        self._is_gone = True
        self._client.abort_now(self._engine_ids)
        self._sink.fail(ClientGone())

    async def deltas(self) -> AsyncIterator[tuple[int, TextDelta]]:
        """What each step of the engine added, with the number of its sequence, until all have
        ended.

        Raises:
            ApiError: the engine could not go on with one of them.
            ClientGone: after ``cancel``.
        """
        num_open = len(self._sequences)
        is_filtered = self.filter is not None and self.per_prompt == self.n
        while num_open:
            try:
                index, output = await self._sink.get()
            except (EngineDeadError, RequestError) as error:
                raise engine_failure(error) from None
            if self._is_gone:
                raise ClientGone
            sequence = self._sequences[index]
            if not sequence.is_open:
                continue
            if output.finish_reason in ("error", "abort"):
                self._note_end(output.finish_reason)
                raise _ended(output)
            if output.new_token_ids:
                self._note_tokens(sequence, output)
            delta = self._push(sequence.processor, output)
            self.num_completion_tokens += len(delta.token_ids)
            if delta.stopped_by_text:
                self._finish(sequence)
            shown = await self._pass_on(index, sequence, delta) if is_filtered else delta
            if shown is None:
                continue
            if shown.finish_reason is not None:
                num_open -= 1
                sequence.is_open = False
                self._note_end(shown.finish_reason)
            yield index, shown

    def _push(self, processor: OutputProcessor, output: EngineCoreOutput) -> TextDelta:
        if self._is_prompt_only:
            logprobs: list[TokenLogprobs] | None = None if output.logprobs is None else []
            return processor.push([], "length", None, logprobs)
        return processor.push(
            output.new_token_ids, output.finish_reason, output.stop_reason, output.logprobs
        )

    async def _pass_on(self, index: int, sequence: _Sequence, delta: TextDelta) -> TextDelta | None:
        assert self.filter is not None
        shown = await self.filter.pass_on(index, delta)
        if shown is not None and shown.finish_reason is not None and delta.finish_reason is None:
            self._finish(sequence)  # a plugin ends it
        return shown

    def _finish(self, sequence: _Sequence) -> None:
        """The engine does not know of an end that was found in the text."""
        self._client.finish(sequence.engine_id, "stop", sequence.processor.num_tokens)

    def _note_tokens(self, sequence: _Sequence, output: EngineCoreOutput) -> None:
        """What comes with the first tokens, and whether what was asked for comes with all.

        Raises:
            ApiError: a worker left log-probabilities out.
        """
        if self._ttft_s is None:
            self._ttft_s = self._call.elapsed_s
        index, params = sequence.prompt_index, sequence.params
        is_short = params.logprobs is not None and (
            len(output.logprobs or ()) != len(output.new_token_ids)
        )
        if not sequence.has_begun:
            sequence.has_begun = True
            # One sequence computes the prompt; the others find it in the cache.
            known = self._num_cached.get(index)
            num_cached = output.num_cached_tokens if known is None else known
            self._num_cached[index] = min(num_cached, output.num_cached_tokens)
            self.num_cached_tokens += self._num_cached[index] - (known or 0)
            if params.prompt_logprobs is not None:
                self.prompt_logprobs[index] = output.prompt_logprobs
                is_short |= len(output.prompt_logprobs or ()) != len(self.prompts[index])
        if is_short:
            raise _engine_error("the engine returned too few log-probabilities")

    def _note_end(self, reason: str) -> None:
        """Of several sequences the worst end counts for the record."""
        if _RANK.get(reason, 0) > _RANK[self._finish_reason]:
            self._finish_reason = reason

    def _record(self, error: BaseException | None) -> RequestRecord:
        reason, sentence = self._finish_reason, None
        if error is not None and not isinstance(error, ClientGone):
            reason, sentence = how_it_failed(error)
        elif error is not None or any(sequence.is_open for sequence in self._sequences):
            reason = "abort"
        return self._call.record(
            reason,
            sentence,
            num_prompt_tokens=self.num_prompt_tokens,
            num_completion_tokens=self.num_completion_tokens,
            ttft_s=self._ttft_s,
        )


def _ended(output: EngineCoreOutput) -> ApiError:
    """What a client is told of a request that the engine ended."""
    sentence = output.error or "the engine ended the request"
    if output.is_refusal:
        return bad_request(cut(sentence), code="invalid_value")
    return _engine_error(sentence)


def _engine_error(sentence: str) -> ApiError:
    return ApiError(500, cut(sentence), code="engine_error")
