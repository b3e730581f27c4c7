"""``ServerRuntime``: everything behind the routes, put together once, started and stopped in order.

It belongs to one application. Listening and signals are ``serve``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from starlette.applications import Starlette

from hookserve.engine.config import EngineConfig
from hookserve.engine.engine_child import ENGINE_COMMAND
from hookserve.engine.engine_client import EngineClient
from hookserve.engine.engine_thread import ThreadSupervisor
from hookserve.engine.io_processor import open_io_processor
from hookserve.engine.messages import Ready
from hookserve.engine.processor_checks import ProcessorChecks
from hookserve.engine.stat_loggers import StatLoggers
from hookserve.engine.supervisor import EngineSupervisor
from hookserve.engine.text.tokenizer import Tokenizer
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Host

from .app import create_app
from .attaching import ServerFacts
from .chat_parsers import ChatParsers
from .credentials import Credentials
from .endpoint_set import EndpointSet
from .errors import unavailable
from .health import Health
from .op_listing import log_ops
from .plugin_layers import PluginLayers
from .plugin_tasks import contain
from .processor_questions import ProcessorQuestions
from .serving import Serving
from .settings import ServerSettings

logger = logging.getLogger("hookserve.server.runtime")

STALL_CHECK_S = 1.0


class ServerRuntime:
    """Making it builds loggers and routes, so that a plugin that fails there is known before the
    engine is started. ``app`` can be served at once; it answers 503 until ``start`` is through.

    Raises:
        RequiredPluginError: a plugin that must work failed.
        PluginConflictError: two plugins claim one route.
    """

    def __init__(
        self,
        settings: ServerSettings,
        host: Host,
        engine_config: EngineConfig,
        tokenizer: Tokenizer,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        self.settings = settings
        self.host = host
        self.vllm_config = VllmConfig.from_engine_config(engine_config)
        host.calls.process_started(host.roles, self.vllm_config)
        self.loggers = StatLoggers.build(host, self.vllm_config)
        self.client = EngineClient(engine_config, self.vllm_config, self.loggers.record)
        self.health = Health(self.client)
        processors = ProcessorQuestions(
            ProcessorChecks.build(host, engine_config), host.settings.front_hook_timeout_s
        )
        self.parsers = ChatParsers.build(host, tokenizer, engine_config.model, settings)
        self.io_processor = open_io_processor(host, self.vllm_config, tokenizer)
        self.serving = Serving(
            host, self.client, tokenizer, self.health, self.loggers, processors, self.parsers
        )
        self.credentials = Credentials.build(host, settings, self.vllm_config.additional_config)
        self.layers = PluginLayers.build(host, settings.middleware)
        facts = ServerFacts(settings, engine_config)
        self.endpoints = EndpointSet.build(host, facts=facts)
        self.layers.add(self.endpoints.layers())
        supervise = ThreadSupervisor if "engine" in host.roles else EngineSupervisor
        self.supervisor = supervise(
            host, engine_config, self.client, self.health.set_dead, command=command
        )
        self.app: Starlette = create_app(self)
        self._tasks: list[asyncio.Task[None]] = []
        self._on_stop = contextlib.ExitStack()

    async def start(self) -> Ready:
        """Bring the engine up, give it to the endpoints, and open the gate."""
        self._on_stop.enter_context(contain())
        logger.info("access    %s", self.credentials.summary())
        self._on_stop.enter_context(self.serving.engine_reports.told_by(self.host.pm))
        ready = await self.supervisor.start()
        self.vllm_config.cache_config.num_gpu_blocks = ready.num_gpu_blocks
        self._drop_inactive()
        client = self.serving.prompt_client
        await self.endpoints.init_state(client, self.app.state, self.settings)
        if self.supervisor.runs_what_is_out():
            ready = await self.supervisor.restart()
            self.vllm_config.cache_config.num_gpu_blocks = ready.num_gpu_blocks
        self._drop_inactive()
        self.loggers.log_engine_initialized()
        if not self.settings.disable_log_stats:
            interval_s = self.settings.log_stats_interval
            self._tasks.append(asyncio.create_task(self.loggers.log_forever(interval_s)))
        self._tasks.append(asyncio.create_task(self._log_stalls()))
        self.health.set_ready()
        self._tasks.append(asyncio.create_task(self._log_ops()))
        return ready

    async def _log_ops(self) -> None:
        """After the warm-up, so that what is used has run."""
        third = [each.identity for each in self.host.plugins if not each.is_builtin]
        log_ops(await self.serving.process_reports(), third)

    def _drop_inactive(self) -> None:
        """What was built of plugins that turned out to be broken since then."""
        self.credentials.check()
        self.parsers.check()
        self.layers.drop_inactive()
        self.endpoints.drop_inactive()
        self.loggers.drop_inactive()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests; give the open ones ``timeout_s``, then end them with an error."""
        self.health.set_draining()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.client.num_unfinished_requests and self.client.is_running:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            await asyncio.sleep(min(0.05, left_s))
        num_cut = self.client.num_unfinished_requests
        if num_cut:
            logger.warning("%d unfinished requests are ended: the server is stopping", num_cut)
        self.client.fail_all(unavailable("the server is stopping", "shutdown"))

    async def stop(self) -> None:
        """End the endpoints, the engine and the loggers, in this order; works in every phase."""
        self.health.set_draining()
        for task in self._tasks:
            task.cancel()
        await self.endpoints.shutdown()
        await self.supervisor.stop()
        await self.serving.close()
        self.loggers.shutdown()
        self._on_stop.close()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _log_stalls(self) -> None:
        """One line when the engine stalls, one when it goes on."""
        was_stalled = False
        while True:
            await asyncio.sleep(STALL_CHECK_S)
            age_s = self.client.stalled_s()
            if age_s is not None and not was_stalled:
                logger.error("the engine has finished no step for %.0f s: not ready", age_s)
            elif age_s is None and was_stalled:
                logger.info("the engine goes on")
            was_stalled = age_s is not None
