"""``Serving``: what the routes share: the model's name, its tokenizer, its limits, the engine.

It is made once, before the engine is up, and stands in ``app.state.serving``. What a route does
with it is the route's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from hookserve.engine.engine_client import EngineClient
from hookserve.engine.grammar_checks import GrammarChecks
from hookserve.engine.plugin_reports import EngineReports
from hookserve.engine.request_limits import ContextLimits, SamplingDefaults
from hookserve.engine.stat_loggers import StatLoggers
from hookserve.engine.text.chat_template import choose_template
from hookserve.engine.text.tokenizer import Tokenizer
from hookserve.hookspecs import ApiRequest, Host, Principal, RequestRecord
from hookserve.hookspecs.report import ProcessReport

from .chat_parsers import ChatParsers
from .errors import ApiError, cut
from .front_client import FrontPromptClient
from .grammar_questions import GrammarQuestions
from .health import Health
from .hook_metrics import HookMetrics
from .metrics import MetricsPage
from .patch_audit import log_dead_patches
from .processor_questions import ProcessorQuestions
from .prompt_encoder import PromptEncoder
from .request_metrics import RequestMetrics


class Serving:
    def __init__(
        self,
        host: Host,
        client: EngineClient,
        tokenizer: Tokenizer,
        health: Health,
        loggers: StatLoggers,
        processors: ProcessorQuestions,
        parsers: ChatParsers,
    ) -> None:
        self.host = host
        self.client = client
        self.tokenizer = tokenizer
        self.health = health
        self.loggers = loggers
        self.processors = processors
        self.parsers = parsers
        grammar_checks = GrammarChecks(host, client.engine_config)
        self.grammars = GrammarQuestions(grammar_checks, host.settings.front_hook_timeout_s)
        self.prompt_client = FrontPromptClient(
            client, tokenizer, loggers, processors.checks, grammar_checks
        )
        self.request_metrics = RequestMetrics()
        self.engine_reports = EngineReports(client)
        self.hook_metrics = HookMetrics(host, self.engine_reports)
        self.metrics = MetricsPage(loggers, self.request_metrics, self.hook_metrics)
        self.engine_config = client.engine_config
        self.created = int(time.time())
        self.defaults = SamplingDefaults.from_model(self.engine_config, tokenizer.eos_token_id)
        model = self.engine_config.model
        self.prompts = PromptEncoder(
            tokenizer,
            choose_template(model.chat_template, tokenizer),
            choose_template(model.chat_template, tokenizer, with_tools=True),
            model.max_model_len,
        )
        self._may_be_patched = any(not each.is_builtin for each in host.plugins)
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

    async def process_reports(self) -> list[ProcessReport]:
        """What every process tells of its plugins and ops, this one first."""
        return [self.host.report("front"), *await self.engine_reports.ask()]

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
        if self._may_be_patched and record.error is None:
            self._may_be_patched = False
            self._spawn(self._audit_patches())

    async def _audit_patches(self) -> None:
        """After the first request, by when what is used has run."""
        log_dead_patches(await self.process_reports())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, timeout_s: float = 1.0) -> None:
        """Let reports under way end, and the threads go."""
        await self.hook_metrics.close()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        self.prompts.close()
        self.processors.end()
        self.grammars.end()
        self.parsers.end()
