"""``PromptClient``: what a program or a plugin asks of an engine in prompts, and gets as outputs.

It turns prompts and tokens into each other over an ``EngineClient``, and has the names of the
ecosystem's client (vLLM's), so that code written for that one runs; what this engine cannot do
raises and says so. Whose the engine is, and when it comes up, is for those who derive from it:
``async_llm``, and the server for its plugins.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from .config import EngineConfig
from .ecosystem_arguments import expect_none
from .engine_client import EngineClient
from .errors import NotServedError
from .input_processor import InputProcessor, ReadyRequest
from .messages import EngineCoreOutput
from .not_served import (
    NO_ELASTIC,
    NO_LORA,
    NO_PAUSE,
    NO_PICTURES,
    NO_POOLING,
    NO_PROFILE,
    NO_RANKS,
    NO_SLEEP,
    NO_TRANSFER,
    not_served,
    not_served_awaited,
)
from .output_assembler import OutputAssembler
from .output_sink import OutputSink
from .outputs import RequestOutput
from .prompts import PromptInput, read_prompt
from .sampling_params import SamplingParams
from .stat_loggers import StatLoggers
from .text.tokenizer import Tokenizer
from .vllm_config import ModelConfig, VllmConfig

SUPPORTED_TASKS: tuple[str, ...] = ("generate",)


class _Live:
    """A call of ``generate`` that has not ended."""

    def __init__(self) -> None:
        self.sink = OutputSink()
        self.engine_ids: list[str] = []
        self.is_aborted = False
        """Also where nothing was submitted yet."""

    def abort(self, client: EngineClient) -> None:
        self.is_aborted = True
        aborted = client.abort_now(self.engine_ids)
        for engine_id in aborted:
            index = self.engine_ids.index(engine_id)
            self.sink.put(index, EngineCoreOutput(engine_id, finish_reason="abort"))


class PromptClient(abc.ABC):
    """
    Attributes:
        tokenizer: the model's.
        engine_config: what the engine was started with; ``vllm_config`` is the same as the
            ecosystem's tree.
    """

    def __init__(
        self,
        engine_config: EngineConfig,
        vllm_config: VllmConfig,
        tokenizer: Tokenizer,
        client: EngineClient,
        loggers: StatLoggers,
    ) -> None:
        self.engine_config = engine_config
        self.vllm_config = vllm_config
        self.tokenizer = tokenizer
        self._client = client
        self._loggers = loggers
        self._live: dict[str, list[_Live]] = {}

    @abc.abstractmethod
    async def _ready(self) -> InputProcessor:
        """Wait until the engine takes requests; what makes them ready for it.

        Raises:
            EngineDeadError: it takes none any more.
        """

    @abc.abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine, where it is the caller's to end."""

    # -- how it is ------------------------------------------------------------------------------

    @property
    def model_config(self) -> ModelConfig:
        return self.vllm_config.model_config

    @property
    def is_running(self) -> bool:
        return self._client.is_running

    @property
    def is_stopped(self) -> bool:
        return self._client.is_stopped

    @property
    def errored(self) -> bool:
        return self._client.errored

    @property
    def dead_error(self) -> BaseException:
        return self._client.dead_error

    async def check_health(self) -> None:
        """Raises ``EngineDeadError`` if the engine is dead or has stalled."""
        await self._ready()
        await self._client.check_health()

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Raises ``QueueFullError`` where ``n`` more sequences would be too many now."""
        del request_id
        self._client.check_room(n)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return SUPPORTED_TASKS

    async def is_tracing_enabled(self) -> bool:
        """Never: no traces are sent anywhere."""
        return False

    async def is_sleeping(self) -> bool:
        """Never."""
        return False

    async def is_paused(self) -> bool:
        """Never."""
        return False

    def get_kv_event_sources(self) -> dict[int, Any]:
        """None: nobody is told of blocks that come and go."""
        return {}

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def get_num_unfinished_requests(self) -> int:
        return self._client.num_unfinished_requests

    async def wait_for_requests_to_drain(self, timeout: float = 300.0) -> None:
        """Wait until no request is unfinished.

        Raises:
            TimeoutError: some are after ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            while self._client.num_unfinished_requests:
                await asyncio.sleep(0.05)

    # -- requests -------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        prompt_text: str | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        lora_request: None = None,
        tokenization_kwargs: None = None,
        trace_headers: None = None,
        session_id: None = None,
        kv_hints: None = None,
        reasoning_ended: None = None,
        reasoning_parser_kwargs: None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield outputs as ``sampling_params.output_kind`` says; the last one is ``finished``.

        With ``n`` above 1 an output holds the sequence that went on; where the best of more are
        chosen, there is one output at the end. Leaving the iteration early aborts the request.

        Args:
            prompt: a text, token ids, or a dict (``prompts.PromptInput``).
            sampling_params: ``None``: what the model's generation config says.
            request_id: the caller's name for it, for ``abort``.
            prompt_text: what outputs show as the prompt.
            priority: lower is sooner, with ``scheduling_policy="priority"``.
            data_parallel_rank: 0 is all there is. The other arguments belong to what this engine
                does not have, and are ``None``.

        Raises:
            InvalidRequestError, SamplingParamsError: it cannot run.
            NotServedError: an argument is given that has no meaning here.
            QueueFullError: too many requests are unfinished.
            EngineDeadError: the engine is gone.
        """
        expect_none(
            "generate",
            data_parallel_rank=data_parallel_rank or None,
            lora_request=lora_request,
            tokenization_kwargs=tokenization_kwargs or None,
            trace_headers=trace_headers or None,
            session_id=session_id,
            kv_hints=kv_hints,
            reasoning_ended=reasoning_ended,
            reasoning_parser_kwargs=reasoning_parser_kwargs or None,
        )
        read = read_prompt(prompt)
        live = _Live()
        named = self._live.setdefault(request_id, [])
        named.append(live)
        try:
            processor = await self._ready()
            params = sampling_params if sampling_params is not None else processor.default_params()
            # A long prompt must not hold up the other requests.
            request = await asyncio.to_thread(processor.prepare, read, params, priority=priority)
            shown_prompt = request.prompt if prompt_text is None else prompt_text
            assembler = OutputAssembler(
                request_id, shown_prompt, request.prompt_token_ids, request.params, self.tokenizer
            )
            self._submit(live, assembler, request)
            while not assembler.is_finished:
                index, output = await live.sink.get()
                delta = assembler.take(index, output)
                if delta.stopped_by_text and delta.finish_reason is not None:
                    engine_id = live.engine_ids[index]
                    self._client.finish(engine_id, delta.finish_reason, assembler.num_tokens(index))
                shown = assembler.output(index)
                if shown is not None:
                    yield shown
        finally:
            self._client.abort_now(live.engine_ids)
            named.remove(live)
            if not named:
                self._live.pop(request_id, None)

    def _submit(self, live: _Live, assembler: OutputAssembler, request: ReadyRequest) -> None:
        siblings = assembler.siblings()
        for index, child in enumerate(assembler.children):
            engine_id = self._client.submit(
                request.prompt_token_ids,
                child,
                live.sink,
                index,
                priority=request.priority,
                cache_salt=request.cache_salt,
                siblings=siblings,
            )
            live.engine_ids.append(engine_id)
        if live.is_aborted:
            live.abort(self._client)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End what ``generate`` was called for under these ids; unknown ones do nothing."""
        names = [request_id] if isinstance(request_id, str) else list(request_id)
        for name in names:
            for live in self._live.get(name, ()):
                live.abort(self._client)

    # -- the rest -------------------------------------------------------------------------------

    async def do_log_stats(self) -> None:
        """Have every stat logger write its line now."""
        self._loggers.log()

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a public method of every worker; one result each. Raises as ``EngineClient``'s."""
        await self._ready()
        return await self._client.collective_rpc(method, timeout, args, kwargs)

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget every cached prefix; whether it is done.

        Raises:
            NotServedError: requests that run are to lose theirs too, or a connector its own.
        """
        if reset_running_requests or reset_connector:
            raise NotServedError(
                "reset_prefix_cache: requests that run keep their blocks, and no connector holds "
                "others; expected no argument"
            )
        await self._ready()
        return await self._client.reset_prefix_cache()

    encode = not_served("encode", NO_POOLING)
    add_lora = not_served_awaited("add_lora", NO_LORA)
    remove_lora = not_served_awaited("remove_lora", NO_LORA)
    list_loras = not_served_awaited("list_loras", NO_LORA)
    pin_lora = not_served_awaited("pin_lora", NO_LORA)
    sleep = not_served_awaited("sleep", NO_SLEEP)
    wake_up = not_served_awaited("wake_up", NO_SLEEP)
    release_kv_cache_memory = not_served_awaited("release_kv_cache_memory", NO_SLEEP)
    pause_generation = not_served_awaited("pause_generation", NO_PAUSE)
    resume_generation = not_served_awaited("resume_generation", NO_PAUSE)
    reset_mm_cache = not_served_awaited("reset_mm_cache", NO_PICTURES)
    reset_encoder_cache = not_served_awaited("reset_encoder_cache", NO_PICTURES)
    start_profile = not_served_awaited("start_profile", NO_PROFILE)
    stop_profile = not_served_awaited("stop_profile", NO_PROFILE)
    init_weight_transfer_engine = not_served_awaited("init_weight_transfer_engine", NO_TRANSFER)
    update_weights = not_served_awaited("update_weights", NO_TRANSFER)
    shutdown_weight_transfer_engine = not_served_awaited(
        "shutdown_weight_transfer_engine", NO_TRANSFER
    )
    start_draft_weight_update = not_served_awaited("start_draft_weight_update", NO_TRANSFER)
    update_weight_version = not_served_awaited("update_weight_version", NO_TRANSFER)
    compute_weight_checksums = not_served_awaited("compute_weight_checksums", NO_TRANSFER)
    start_weight_update = not_served_awaited("start_weight_update", NO_TRANSFER)
    finish_weight_update = not_served_awaited("finish_weight_update", NO_TRANSFER)
    get_weight_version = not_served_awaited("get_weight_version", NO_TRANSFER)
    scale_elastic_ep = not_served_awaited("scale_elastic_ep", NO_ELASTIC)
    handle_fault = not_served_awaited("handle_fault", NO_RANKS)
    get_status = not_served_awaited("get_status", NO_RANKS)
    notify_kv_transfer_request_rejected = not_served_awaited(
        "notify_kv_transfer_request_rejected", "no KV cache is transferred between engines here"
    )
