"""``LLM``: prompts in, finished outputs out, all in this process.

The loop is ``llm_engine``'s; this file knows batches, chats, and the person who waits.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from .ecosystem_arguments import expect_none
from .engine_args import EngineArgs
from .errors import InvalidRequestError
from .input_processor import ReadyRequest
from .interrupts import held_interrupts
from .llm_engine import LLMEngine
from .not_served import (
    NO_BEAMS,
    NO_METRICS,
    NO_PICTURES,
    NO_POOLING,
    NO_PROFILE,
    NO_QUEUE,
    NO_SLEEP_OFFLINE,
    NO_TRANSFER,
    not_serving,
)
from .outputs import RequestOutput
from .progress import make_progress
from .prompts import Prompt, PromptInput, read_prompts
from .reply_parsers import ReplyForm, read_choice, read_tools
from .sampling_params import SamplingParams
from .sampling_rules import RequestOutputKind
from .stat_loggers import LOG_INTERVAL_S
from .text.tool_calls import ParserRequest, Tool, ToolChoice

if TYPE_CHECKING:
    from hookserve.hookspecs import PluginManager, PluginSettings

    from .text.tokenizer import Tokenizer

Message = Mapping[str, Any]
MAX_LAST_CHARS = 256
"""Of a prompt, by which a parser of reasoning sees whether the template has ended it."""

_ABSENT = {
    "beam_search": NO_BEAMS,
    **dict.fromkeys(("encode", "embed", "classify", "reward", "score"), NO_POOLING),
    **dict.fromkeys(("enqueue", "enqueue_chat", "wait_for_completion"), NO_QUEUE),
    "get_metrics": NO_METRICS,
    "reset_mm_cache": NO_PICTURES,
    **dict.fromkeys(("sleep", "wake_up"), NO_SLEEP_OFFLINE),
    **dict.fromkeys(("start_profile", "stop_profile"), NO_PROFILE),
    **dict.fromkeys(("init_weight_transfer_engine", "update_weights"), NO_TRANSFER),
}
"""What the ecosystem's ``LLM`` has besides."""


@not_serving(_ABSENT)
class LLM:
    """A model, ready to generate. Usable from any thread; calls wait for one another.

    It ends with ``shutdown``, as a context manager, with its last reference, or with the process.

    Args:
        model: local folder or ``.gguf`` file, hub name, or ``pypi:DIST``; a small default model
            without one.
        plugins: objects with hooks, names of modules, or paths of ``.py`` files; with several
            ranks, names and paths alone.
        plugin_settings: which installed plugins are wanted, and what is set for them.
        log_stats_interval: seconds between two lines of statistics, where they are wanted
            (``disable_log_stats=False``).
        engine_args: the fields of ``EngineArgs``; statistics are off unless asked for.

    Raises:
        TypeError: an argument that ``EngineArgs`` does not have.
        HookserveError: a setting, a model file or an architecture that cannot work.
        hookserve.hookspecs.HostError: plugins; or another ``LLM`` lives with other plugin settings.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        plugins: Sequence[Any] = (),
        plugin_settings: PluginSettings | None = None,
        log_stats_interval: float = LOG_INTERVAL_S,
        **engine_args: Any,
    ) -> None:
        engine = LLMEngine.from_engine_args(
            EngineArgs(model=model, **{"disable_log_stats": True, **engine_args}),
            plugins=plugins,
            plugin_settings=plugin_settings,
            log_stats_interval=log_stats_interval,
        )
        self.llm_engine = engine
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, engine.shutdown)

    @property
    def plugins(self) -> PluginManager:
        """The plugin manager of this process."""
        return self.llm_engine.plugins

    # -- generating -----------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: Sequence[int] | None = None,
        lora_request: None = None,
        tokenization_kwargs: None = None,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many; the outputs in the order of the prompts.

        A request that fails alone while it runs has ``finish_reason == "error"``; the others are
        not concerned. Ctrl-C ends all of them and leaves the ``LLM`` usable.

        Args:
            prompts: texts, lists of token ids, or dicts (``prompts.PromptInput``).
            sampling_params: for all of them, or one for each; without any, what the model's
                generation config says.
            use_tqdm: show progress where stderr is a terminal; or what makes a bar, such as
                ``tqdm.notebook.tqdm``.
            priority: one for each prompt, with ``scheduling_policy="priority"``. What follows it
                belongs to what this engine does not have.

        Raises:
            NotServedError: an argument is given that has no meaning here.
            InvalidRequestError, SamplingParamsError: both ``ValueError``: one of them cannot run,
                so none did.
            EngineDeadError: after ``shutdown``, or after a step that failed.
        """
        expect_none("generate", lora_request=lora_request, tokenization_kwargs=tokenization_kwargs)
        return self._run(read_prompts(prompts), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: Sequence[int] | None = None,
        lora_request: None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """As ``generate``, for one conversation or a list of them.

        With ``tool_call_parser`` or ``reasoning_parser``, and where a call must be made, each
        ``CompletionOutput`` also has ``reasoning``, ``content`` and ``tool_calls``.

        Args:
            chat_template: a template in place of the model's.
            add_generation_prompt: end with the beginning of the assistant's answer.
            continue_final_message: go on with the last message's own text; excludes the former.
            tools: functions, as in the OpenAI API; shown to the template.
            tool_choice: ``"none"``, ``"auto"`` (what it is with tools and a parser),
                ``"required"``, or the object that names a function.
            chat_template_kwargs: what the template is given besides.
        """
        expect_none("chat", lora_request=lora_request, mm_processor_kwargs=mm_processor_kwargs)
        conversations = _conversations(messages)
        choice, declared = self._read_tools(tools, tool_choice)
        rendered = [
            self.llm_engine.input_processor.render(
                conversation,
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                options=chat_template_kwargs or {},
            )
            for conversation in conversations
        ]
        prompts = [Prompt(text, None) for text in rendered]
        every_params = self._params_of(sampling_params, len(prompts))
        forms = [
            self._open_form(
                conversation, text, params, declared, choice, chat_template_kwargs or {}
            )
            for conversation, text, params in zip(
                conversations, rendered, every_params, strict=True
            )
        ]
        adjusted = [form.adjusted(params) for form, params in zip(forms, every_params, strict=True)]
        outputs = self._run(prompts, adjusted, use_tqdm, priority, is_chat=True)
        for form, output in zip(forms, outputs, strict=True):
            form.fill(output)
        return outputs

    def _read_tools(
        self, tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None
    ) -> tuple[ToolChoice, list[Tool]]:
        """What is chosen, and the tools where somebody looks at them beside the template.

        Raises:
            InvalidRequestError: tools, or a choice, that cannot be.
        """
        parsers = self.llm_engine.reply_parsers
        if choice is None:
            choice = "auto" if tools and parsers.tool is not None else "none"
        declared = [] if choice == "none" else read_tools(tools or [])
        return read_choice(choice, declared, parsers), declared

    def _open_form(
        self,
        messages: Sequence[Message],
        text: str,
        params: SamplingParams,
        tools: list[Tool],
        choice: ToolChoice,
        options: Mapping[str, Any],
    ) -> ReplyForm:
        """How the answers to one conversation are taken apart."""
        request = ParserRequest(
            messages=[dict(each) for each in messages],
            tools=tools,
            tool_choice=choice,
            chat_template_kwargs=dict(options),
            skip_special_tokens=params.skip_special_tokens,
            structured_outputs=params.structured_outputs,
        )
        parsers, end = self.llm_engine.reply_parsers, text[-MAX_LAST_CHARS:]
        has_reasoning = parsers.reasoning is not None
        return parsers.open(
            request, self.get_tokenizer().encode(end, False) if has_reasoning else []
        )

    def _run(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | Callable[..., Any],
        priority: Sequence[int] | None,
        is_chat: bool = False,
    ) -> list[RequestOutput]:
        """Check everything, then run it."""
        prepare = self.llm_engine.input_processor.prepare
        every_params = self._params_of(sampling_params, len(prompts))
        count = len(prompts)
        priorities = [0] * count if priority is None else _one_each("priority", priority, count)
        requests = [
            prepare(
                prompt,
                msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY),
                priority=priorities[at],
                is_chat=is_chat,
            )
            for at, (prompt, params) in enumerate(zip(prompts, every_params, strict=True))
        ]
        progress = make_progress(use_tqdm, len(requests))
        try:
            with self._lock:
                return self._generate(requests, progress.add)
        finally:
            progress.close()

    def _generate(
        self, requests: list[ReadyRequest], on_end: Callable[[RequestOutput], None]
    ) -> list[RequestOutput]:
        engine = self.llm_engine
        names = [str(next(self._ids)) for _ in requests]
        ended: dict[str, RequestOutput] = {}
        try:
            with held_interrupts() as interrupts:
                for name, request in zip(names, requests, strict=True):
                    engine.add_ready(name, request)
                while len(ended) < len(names):
                    interrupts.check()
                    for output in engine.step():
                        ended[output.request_id] = output
                        on_end(output)
        except BaseException:
            engine.abort_request(names)
            raise
        return [ended[name] for name in names]

    def _params_of(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if given is None:
            return [self.get_default_sampling_params()] * count
        if isinstance(given, SamplingParams):
            return [given] * count
        every = _one_each("sampling_params", given, count)
        for at, each in enumerate(every):
            if not isinstance(each, SamplingParams):
                raise InvalidRequestError(
                    f"sampling_params[{at}]: expected SamplingParams, got {type(each).__name__}",
                    param=f"sampling_params[{at}]",
                )
        return every

    def get_default_sampling_params(self) -> SamplingParams:
        """What applies where none are given: the model's generation config."""
        return self.llm_engine.input_processor.default_params()

    # -- the rest -------------------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        return self.llm_engine.tokenizer

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Call a public method of every worker, or a function that is given the worker first; one
        result each. Raises as ``LLMEngine``'s."""
        with self._lock:
            return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """What the function makes of each worker's model. Raises as ``collective_rpc``."""
        return self.collective_rpc("apply_model", args=(func,))

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; whether that is done."""
        with self._lock:
            return self.llm_engine.core.reset_prefix_cache()

    def shutdown(self) -> None:
        """Free everything; what is asked afterwards raises ``EngineDeadError``."""
        with self._lock:
            self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()


def _conversations(given: Any) -> list[Sequence[Message]]:
    """One conversation is a list of dicts."""
    if not isinstance(given, Sequence) or isinstance(given, str) or not given:
        raise InvalidRequestError(
            "messages: expected a list of messages, or a list of such lists", param="messages"
        )
    return [given] if isinstance(given[0], Mapping) else list(given)


def _one_each(name: str, given: Any, count: int) -> list[Any]:
    if not isinstance(given, Sequence) or len(given) != count:
        size = f"{len(given)}" if isinstance(given, Sequence) else type(given).__name__
        raise InvalidRequestError(
            f"{name}: expected one for each of {count} prompts, got {size}", param=name
        )
    return list(given)
