"""``Serving``: what the routes share: the model's name, its tokenizer, its limits, the engine.

It is made once, before the engine is up, and stands in ``app.state.serving``. What a route does
with it is the route's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from hookserve.engine.engine_client import EngineClient
from hookserve.engine.plugin_reports import EngineReports
from hookserve.engine.request_limits import ContextLimits, SamplingDefaults
from hookserve.engine.stat_loggers import StatLoggers
from hookserve.engine.text.bad_words import bad_words_token_ids
from hookserve.engine.text.chat_template import (
    ChatTemplateError,
    choose_template,
    render_chat,
)
from hookserve.engine.text.tokenizer import Tokenizer
from hookserve.hookspecs import ApiRequest, Host, Principal, RequestRecord

from .errors import ApiError, bad_request, cut
from .health import Health
from .hook_metrics import HookMetrics
from .metrics import MetricsPage
from .processor_questions import ProcessorQuestions
from .request_metrics import RequestMetrics

T = TypeVar("T")
NUM_TEXT_THREADS = 2


class Serving:
    """Tokenizing and rendering run in threads: a long prompt must not hold up the streams."""

    def __init__(
        self,
        host: Host,
        client: EngineClient,
        tokenizer: Tokenizer,
        health: Health,
        loggers: StatLoggers,
        processors: ProcessorQuestions,
    ) -> None:
        self.host = host
        self.client = client
        self.tokenizer = tokenizer
        self.health = health
        self.loggers = loggers
        self.processors = processors
        self.request_metrics = RequestMetrics()
        self.engine_reports = EngineReports(client)
        self.hook_metrics = HookMetrics(host, self.engine_reports)
        self.metrics = MetricsPage(loggers, self.request_metrics, self.hook_metrics)
        self.engine_config = client.engine_config
        self.created = int(time.time())
        self.defaults = SamplingDefaults.from_model(self.engine_config, tokenizer.eos_token_id)
        self._template = choose_template(self.engine_config.model.chat_template, tokenizer)
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="text")
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def model_names(self) -> tuple[str, ...]:
        return self.engine_config.model.served_model_names

    @property
    def limits(self) -> ContextLimits:
        return ContextLimits.of(self.engine_config, self.client.kv_capacity_tokens)

    def model_name(self, requested: str | None) -> str:
        """The name to answer under: the requested one, or the first that is served.

        Raises:
            ApiError: 404 ``model_not_found``, with the names that are served.
        """
        if requested is None:
            return self.model_names[0]
        if requested not in self.model_names:
            raise ApiError(
                404,
                f"the model {cut(requested)!r} does not exist; served: "
                f"{cut(', '.join(self.model_names))}",
                param="model",
                code="model_not_found",
            )
        return requested

    async def encode(self, texts: Mapping[str, str]) -> dict[str, list[int]]:
        """Tokenize prompts as they are, with the tokenizer's own BOS rule.

        Args:
            texts: by their path in the request.

        Raises:
            ApiError: 400 for a text that cannot fit, found before it is tokenized.
        """
        for path, text in texts.items():
            self._check_length(text, path)
        encode = self.tokenizer.encode
        return await self._in_thread(lambda: {path: encode(text) for path, text in texts.items()})

    async def spell_bad_words(self, words: Sequence[str] | None) -> tuple[tuple[int, ...], ...]:
        if not words:
            return ()
        return await self._in_thread(lambda: bad_words_token_ids(self.tokenizer, words))

    async def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Render the messages with the model's template and tokenize the result.

        Raises:
            ApiError: 400 with the template's own complaint, or for a chat that cannot fit.
        """
        template = self._template
        if template is None:
            raise bad_request(
                "this model has no usable chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        try:
            text = await self._in_thread(
                lambda: render_chat(template, messages, add_generation_prompt=True)
            )
        except ChatTemplateError as error:
            raise bad_request(
                f"the chat template refuses these messages: {cut(str(error))}",
                param="messages",
                code="chat_template_error",
            ) from None
        self._check_length(text, "messages")
        # The template has written the special tokens; a second BOS would change the answer.
        return await self._in_thread(lambda: self.tokenizer.encode(text, add_special_tokens=False))

    def _check_length(self, text: str, param: str) -> None:
        limit = self.engine_config.model.max_model_len
        at_least = self.tokenizer.min_token_count(text)
        if at_least > limit:
            raise bad_request(
                f"{param}: {len(text)} characters are at least {at_least} tokens, more than the "
                f"model's context of {limit} tokens",
                param=param,
                code="context_length_exceeded",
            )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def report(
        self, record: RequestRecord, request: ApiRequest | None, principal: Principal | None
    ) -> None:
        """Tell metrics, loggers and plugins of a request that ended, without holding up its reply.

        Args:
            request: as plugins know it, if any wants to.
        """
        hooks = self.host.calls.hooks
        if request is not None and hooks["metric_labels"].guards:
            self._spawn(self._report_labelled(record, request, principal))
            return
        self._count(record)
        if hooks["request_finished"].guards:
            self._spawn(self.host.calls.request_finished(record))

    async def _report_labelled(
        self, record: RequestRecord, request: ApiRequest, principal: Principal | None
    ) -> None:
        labels: dict[str, str] = {}
        claim = self.request_metrics.claim
        for owned in await self.host.calls.metric_labels(request, principal, accept=claim):
            labels.update(owned.value)
        record = msgspec.structs.replace(record, labels=labels)
        self._count(record)
        await self.host.calls.request_finished(record)

    def _count(self, record: RequestRecord) -> None:
        self.request_metrics.observe(record)
        self.loggers.request_finished(record)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, timeout_s: float = 1.0) -> None:
        """Let reports under way end, and the threads go."""
        await self.hook_metrics.close()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.processors.end()
