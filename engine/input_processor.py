"""``InputProcessor``: what a caller asks for in Python, checked and completed for the engine.

Text is tokenized, chats are rendered, and parameters get what the model's files and the context
say. Nothing is submitted here: all of a batch can be checked before any of it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from .config import EngineConfig
from .errors import InvalidRequestError, cut
from .grammar_checks import GrammarChecks
from .processor_checks import ProcessorChecks
from .prompts import Prompt
from .request_limits import ContextLimits, SamplingDefaults
from .sampling_params import SamplingParams
from .text.bad_words import bad_words_token_ids
from .text.chat_template import ChatTemplate, ChatTemplateError, choose_template, render_chat
from .text.tokenizer import Tokenizer

_RENDERED = (
    "self",
    "template",
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
)
"""What templates are given in other ways than as options."""


@dataclass(frozen=True)
class ReadyRequest:
    """A request that the engine will take."""

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None


class InputProcessor:
    """
    Args:
        kv_capacity: tokens that the KV cache holds.
        checks: what logits processors say of parameters.
        grammars: what the grammar backend says of the form of a text.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        kv_capacity: int,
        checks: ProcessorChecks,
        grammars: GrammarChecks,
    ) -> None:
        self.tokenizer = tokenizer
        self.defaults = SamplingDefaults.from_model(config, tokenizer.eos_token_id)
        self._config = config
        self._checks = checks
        self._grammars = grammars
        template = config.model.chat_template
        self._template = choose_template(template, tokenizer)
        self._tool_template = choose_template(template, tokenizer, with_tools=True)
        self._limits = ContextLimits.of(config, kv_capacity)

    def default_params(self) -> SamplingParams:
        """What applies where the caller gives no parameters: the model's own defaults."""
        defaults = self.defaults
        return SamplingParams(
            temperature=defaults.temperature,
            top_p=defaults.top_p,
            top_k=defaults.top_k,
            min_p=defaults.min_p,
            repetition_penalty=defaults.repetition_penalty,
        )

    def prepare(
        self, prompt: Prompt, params: SamplingParams, *, priority: int = 0, is_chat: bool = False
    ) -> ReadyRequest:
        """Tokenize, check, and complete the parameters.

        Args:
            is_chat: the text was rendered, and has its special tokens already.

        Raises:
            InvalidRequestError: the prompt has no tokens, does not fit, or has token ids that the
                model does not have; too many log-probabilities are asked for; a priority is no
                number, or given where requests are served in their order; parameters or a
                text are none; or a logits processor refuses them.
            SamplingParamsError: parameters name such ids, or contradict each other.
            hookserve.hookspecs.PluginError: a logits processor failed at looking at them.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params: expected SamplingParams, got {type(params).__name__}",
                param="sampling_params",
            )
        params = msgspec.structs.replace(params)  # which looks at all of it
        self._check_priority(priority)
        _check_texts("cache_salt", (prompt.cache_salt or "",))
        _check_texts("stop", params.stop)
        _check_texts("bad_words", params.bad_words)
        token_ids = prompt.token_ids
        if token_ids is None:
            assert prompt.text is not None
            token_ids = self._encode(prompt.text, add_special_tokens=not is_chat)
        if not token_ids:
            raise InvalidRequestError("prompt: it has no tokens", param="prompt")
        self._limits.check_token_ids(token_ids, "prompt")
        self._limits.num_logprobs(params.logprobs, "logprobs")
        self._limits.check_prompt_logprobs(params.prompt_logprobs, len(token_ids))
        max_tokens = self._limits.max_tokens(len(token_ids), None, params.max_tokens)
        return ReadyRequest(
            prompt.text,
            token_ids,
            self._complete(params, max_tokens),
            priority,
            prompt.cache_salt,
        )

    def _check_priority(self, priority: Any) -> None:
        if type(priority) is not int or not -(2**63) <= priority < 2**63:
            raise InvalidRequestError(
                f"priority: expected a whole number of 64 bits, got {cut(priority)}",
                param="priority",
            )
        if priority and self._config.scheduler.policy != "priority":
            raise InvalidRequestError(
                f"priority {priority}: requests are served in their order; make the engine with "
                "scheduling_policy='priority'",
                param="priority",
            )

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        limit = self._config.model.max_model_len
        at_least = self.tokenizer.min_token_count(text)
        if at_least > limit:
            raise InvalidRequestError(
                f"prompt: its {len(text)} characters are at least {at_least} tokens, more than the "
                f"model's context of {limit} tokens",
                param="prompt",
                code="context_length_exceeded",
            )
        try:
            return self.tokenizer.encode(text, add_special_tokens)
        except ValueError as error:
            raise InvalidRequestError(f"prompt: {cut(str(error))}", param="prompt") from error

    def _complete(self, params: SamplingParams, max_tokens: int) -> SamplingParams:
        completed = msgspec.structs.replace(
            params,
            max_tokens=max_tokens,
            min_tokens=min(params.min_tokens, max_tokens),
            eos_token_ids=self.defaults.eos_token_ids,
            bad_words_token_ids=bad_words_token_ids(self.tokenizer, params.bad_words),
        )
        completed.check_vocabulary(self._config.model.vocab_size)
        self._checks.check(completed)
        if completed.structured_outputs is not None:
            self._grammars.check(completed.structured_outputs)
        return completed

    # -- chats ----------------------------------------------------------------------------------

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: list[dict[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> str:
        """The text of a chat.

        Args:
            chat_template: in place of the model's.
            options: what the template is given besides.

        Raises:
            InvalidRequestError: a message that is none, no template, an option that is something
                else here, or the template's complaint.
        """
        template = self._tool_template if tools else self._template
        if chat_template is not None:
            template = self._compile(chat_template)
        if template is None:
            raise InvalidRequestError(
                "this model has no usable chat template; give one as chat_template",
                param="messages",
            )
        for name in options:
            if not isinstance(name, str) or name in _RENDERED:
                raise InvalidRequestError(
                    f"chat_template_kwargs: {cut(name)!r} is no name for a template's own option",
                    param="chat_template_kwargs",
                )
        plain = [_plain_message(each, f"messages[{at}]") for at, each in enumerate(messages)]
        try:
            return render_chat(
                template,
                plain,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tools=tools,
                **options,
            )
        except ChatTemplateError as error:
            raise InvalidRequestError(
                f"the chat template refuses these messages: {cut(str(error))}", param="messages"
            ) from error

    def _compile(self, source: str) -> ChatTemplate:
        try:
            return ChatTemplate(source, self.tokenizer.special_tokens, "chat_template")
        except ChatTemplateError as error:
            raise InvalidRequestError(str(error), param="chat_template") from error


def _check_texts(name: str, texts: Iterable[str]) -> None:
    """Python's texts may have halves of surrogate pairs, which no other process can be sent."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{name}: {cut(ascii(text))} has a surrogate at {error.start}, which is no "
                "character",
                param=name,
            ) from error


def _plain_message(message: Any, path: str) -> dict[str, Any]:
    """A message as the template gets it: parts of text joined by a line's end."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequestError(
            f"{path}: expected a dict with a role, got {cut(message)}", param=path
        )
    if message.get("tool_calls"):
        message = {**message, "tool_calls": _plain_calls(message["tool_calls"], path)}
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    parts = content if isinstance(content, Sequence) else [content]
    for at, part in enumerate(parts):
        is_text = isinstance(part, Mapping) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            where = f"{path}.content[{at}]"
            raise InvalidRequestError(
                f"{where}: only parts of type 'text' are supported, got {cut(part)}", param=where
            )
    return {**message, "content": "\n".join(part["text"] for part in parts)}


def _plain_calls(calls: Any, path: str) -> list[dict[str, Any]]:
    """The calls of a message as the template gets them: arguments are an object, not its text."""
    plain = []
    for at, call in enumerate(calls if isinstance(calls, Sequence) else [calls]):
        where = f"{path}.tool_calls[{at}]"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(
                f"{where}: expected a dict with a function, got {cut(call)}", param=where
            )
        arguments = function.get("arguments") or {}
        try:
            if isinstance(arguments, str):
                arguments = msgspec.json.decode(arguments, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            where = f"{where}.function.arguments"
            raise InvalidRequestError(
                f"{where}: expected the JSON text of an object, got {cut(arguments)!r}", param=where
            ) from None
        plain.append({**call, "function": {**function, "arguments": arguments}})
    return plain
