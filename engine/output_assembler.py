"""``OutputAssembler``: one caller's request, from what the engine says of its sequences to
``RequestOutput``.

It divides the request into the sequences that the engine runs and puts their answers together
again. Text is ``text.output``'s, which sequences are best ``parallel_sampling``'s; submitting and
waiting are ``llm_engine``'s and ``async_llm``'s.
"""

from __future__ import annotations

import dataclasses
import math

from .messages import EngineCoreOutput, TokenLogprobs
from .outputs import CompletionOutput, Logprob, RequestOutput
from .parallel_sampling import choose_best, fan_out
from .sampling_params import SamplingParams
from .sampling_rules import RequestOutputKind
from .stats import RequestStateStats, Siblings
from .text.output import OutputProcessor, TextDelta
from .text.tokenizer import Tokenizer


class _Sequence:
    """One sequence so far. Its text is in ``completion`` up to the last output that was made, and
    in ``pieces`` from there on."""

    __slots__ = ("completion", "num_sent", "pieces", "processor")

    def __init__(self, index: int, processor: OutputProcessor, shows_logprobs: bool) -> None:
        self.processor = processor
        self.pieces: list[str] = []
        self.num_sent = 0
        """Tokens that were in earlier deltas."""
        self.completion = CompletionOutput(index, "", [], logprobs=[] if shows_logprobs else None)

    def whole(self) -> CompletionOutput:
        self.completion.text += self._take_pieces()
        return dataclasses.replace(self.completion)

    def delta(self) -> CompletionOutput:
        start, self.num_sent = self.num_sent, len(self.completion.token_ids)
        logprobs = self.completion.logprobs
        return dataclasses.replace(
            self.completion,
            text=self._take_pieces(),
            token_ids=self.completion.token_ids[start:],
            logprobs=None if logprobs is None else logprobs[start:],
        )

    def _take_pieces(self) -> str:
        text = "".join(self.pieces)
        self.pieces.clear()
        return text

    @property
    def likelihood(self) -> float:
        """By which the best are chosen; one that was not completed is the last choice."""
        if self.completion.finish_reason in ("error", "abort", None):
            return -math.inf
        return self.completion.cumulative_logprob or 0.0


class OutputAssembler:
    """Give it each output of each sequence in turn; ``children`` are what to submit.

    Attributes:
        children: the parameters of the sequences to run, one each.
        num_cached_tokens: of the prompt; known with the first token.
        metrics: shown in every output; set by who collects statistics.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
    ) -> None:
        self.request_id = request_id
        self.children = fan_out(params)
        self.num_cached_tokens: int | None = None
        self.metrics: RequestStateStats | None = None
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._n = params.n
        self._tokenizer = tokenizer
        # Which of more sequences than asked for are the best is known at their end alone.
        is_choice = len(self.children) > params.n
        self._kind = RequestOutputKind.FINAL_ONLY if is_choice else params.output_kind
        self._sequences = [
            _Sequence(
                index,
                OutputProcessor(tokenizer, prompt_token_ids, child),
                shows_logprobs=params.logprobs is not None,
            )
            for index, child in enumerate(self.children)
        ]
        self._num_open = len(self._sequences)

    def siblings(self) -> Siblings | None:
        """What the statistics of the sequences share; one alone needs nothing."""
        count = len(self.children)
        return Siblings(self._n, count) if count > 1 else None

    @property
    def is_finished(self) -> bool:
        return self._num_open == 0

    def num_tokens(self, index: int) -> int:
        """Completion tokens of a sequence; those after a stop string do not count."""
        return self._sequences[index].processor.num_tokens

    def take(self, index: int, output: EngineCoreOutput) -> TextDelta:
        """Add what the engine says of sequence ``index``. Where the delta is ``stopped_by_text``
        the engine has to be told to finish it; what comes after its end is passed over."""
        sequence = self._sequences[index]
        completion = sequence.completion
        if completion.finish_reason is not None:
            return TextDelta("", [], None, None, False)
        self._take_prompt(output)
        delta = sequence.processor.push(
            output.new_token_ids, output.finish_reason, output.stop_reason, output.logprobs
        )
        sequence.pieces.append(delta.text)
        completion.token_ids += delta.token_ids
        for entry in delta.logprobs or ():
            sum_before = completion.cumulative_logprob or 0.0
            completion.cumulative_logprob = sum_before + entry.logprobs[0]
            if completion.logprobs is not None:
                completion.logprobs.append(self._named(entry))
        if delta.finish_reason is not None:
            completion.finish_reason = delta.finish_reason
            completion.stop_reason = delta.stop_reason
            completion.error = output.error
            self._num_open -= 1
        return delta

    def _take_prompt(self, output: EngineCoreOutput) -> None:
        if self.num_cached_tokens is None and output.new_token_ids:
            self.num_cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = [
                None if entry is None else self._named(entry) for entry in output.prompt_logprobs
            ]

    def _named(self, entry: TokenLogprobs) -> dict[int, Logprob]:
        """The token itself first, then the best ones; each with its rank."""
        ids, logprobs = entry.token_ids, entry.logprobs
        named = {ids[0]: Logprob(logprobs[0], entry.rank, self._text_of(ids[0]))}
        for rank in range(1, len(ids)):
            if ids[rank] not in named:
                named[ids[rank]] = Logprob(logprobs[rank], rank, self._text_of(ids[rank]))
        return named

    def _text_of(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode(errors="replace")

    # -- outputs --------------------------------------------------------------------------------

    def output(self, index: int) -> RequestOutput | None:
        """What the caller is to see after ``take``; ``None``: nothing yet.

        With ``DELTA`` and ``CUMULATIVE`` it holds the sequence ``index`` alone.
        """
        if self._kind is RequestOutputKind.FINAL_ONLY:
            return self._request(self._best()) if self.is_finished else None
        if self._kind is RequestOutputKind.DELTA:
            return self._request([self._sequences[index].delta()])
        return self._request([self._sequences[index].whole()])

    def final(self) -> RequestOutput:
        """The best ``n`` sequences, whole, however they ended."""
        return self._request(self._best())

    def _best(self) -> list[CompletionOutput]:
        sequences = self._sequences
        if len(sequences) > self._n:
            chosen = choose_best([each.likelihood for each in sequences], self._n)
            sequences = [sequences[index] for index in chosen]
        completions = [each.whole() for each in sequences]
        for index, completion in enumerate(completions):
            completion.index = index
        return completions

    def _request(self, completions: list[CompletionOutput]) -> RequestOutput:
        return RequestOutput(
            self.request_id,
            self._prompt,
            self._prompt_token_ids,
            self._prompt_logprobs,
            completions,
            self.is_finished,
            self.metrics,
            num_cached_tokens=self.num_cached_tokens,
        )
