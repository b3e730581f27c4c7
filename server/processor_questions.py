"""``ProcessorQuestions``: logits processors and the platform are asked about the parameters of HTTP
requests, in threads and within the time of a front's hook. What their answers mean is
``engine.processor_checks``'."""

from __future__ import annotations

from collections.abc import Iterable

from hookserve.engine.processor_checks import Asked, ProcessorChecks, ask
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import PluginError
from hookserve.hookspecs.plugin_threads import PluginThreads

from .thread_calls import NoAnswerError, answer_of

FIELD = "vllm_xargs"
"""Where an HTTP request has ``extra_args``."""


class ProcessorQuestions:
    """
    Args:
        budget_s: for one processor and one request.
    """

    def __init__(self, checks: ProcessorChecks, budget_s: float) -> None:
        self.checks = checks
        self._budget_s = budget_s
        self._threads: dict[Asked, PluginThreads] = {}

    def __bool__(self) -> bool:
        """Whether there is any processor."""
        return bool(self.checks)

    def end(self) -> None:
        """Let the threads go in which processors were asked."""
        for threads in self._threads.values():
            threads.end()

    async def ask(self, every: Iterable[SamplingParams]) -> None:
        """
        Args:
            every: of the prompts of one request, which differ in ``max_tokens`` alone.

        Raises:
            InvalidRequestError: a processor refuses them.
            PluginError: a processor failed, or took too long.
        """
        askable = self.checks.askable()
        if not askable:
            return
        different = list({params.max_tokens: params for params in every}.values())
        for each in askable:
            await self._ask_one(each, different)

    async def _ask_one(self, processor: Asked, every: list[SamplingParams]) -> None:
        def work() -> None:
            for params in every:
                ask(processor, params, FIELD)

        threads = self._threads.get(processor)
        if threads is None:
            threads = self._threads[processor] = PluginThreads(processor.label)
        try:
            outcome = await answer_of(threads, work, self._budget_s)
        except NoAnswerError as error:
            said = f"validate_params of {processor.label}: no end within {self._budget_s:g} s"
            raise PluginError(processor.owner, "run", said) from error.__cause__
        outcome.unwrap()
