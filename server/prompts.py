"""What the fields of a request say of its prompts: read, checked and named by their paths, before
anything is tokenized (``prompt_encoder``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import msgspec

from hookserve.engine.request_limits import ContextLimits
from hookserve.engine.sampling_rules import RULE_OF

from .errors import bad_request, cut
from .limits import MAX_MESSAGES, MAX_PROMPTS, check_num_prompts
from .prompt_encoder import MAX_LIST_TOKENS, Chat, Shortening
from .wire_chat import ChatRequest, template_messages
from .wire_common import (
    DEFAULT_MAX_TOKENS,
    MAX_TEMPLATE_OPTIONS,
    MAX_XARGS_BYTES,
    SamplingFields,
)
from .wire_completions import CompletionRequest

PromptField = str | list[int | str | list[int]] | None


class Prompts(NamedTuple):
    """Texts and token lists by their path; one of the two is empty."""

    texts: dict[str, str]
    token_lists: dict[str, list[int]]
    add_special_tokens: bool = True
    shortening: Shortening | None = None


def read_prompts(wanted: CompletionRequest, limits: ContextLimits) -> Prompts:
    """
    Raises:
        ApiError: 400 for a mixed list, too many prompts or tokens.
        InvalidRequestError: for ids beyond the vocabulary.
    """
    shortening = shortening_of(wanted, limits, wanted.max_tokens)
    most = limits.max_model_len if shortening is None else MAX_LIST_TOKENS
    _check_num_items(wanted.prompt, most)
    prompts = split_prompt(wanted.prompt)
    check_num_prompts(len(prompts.texts) + len(prompts.token_lists))
    for path, ids in prompts.token_lists.items():
        limits.check_token_ids(ids, path)
    if shortening is not None:
        lists = {path: shortening.of(ids) for path, ids in prompts.token_lists.items()}
        prompts = prompts._replace(token_lists=lists, shortening=shortening)
    return prompts._replace(add_special_tokens=wanted.add_special_tokens is not False)


def shortening_of(
    fields: SamplingFields, limits: ContextLimits, max_tokens: int | None
) -> Shortening | None:
    """What is kept of longer prompts, if they are to be shortened.

    Args:
        max_tokens: as the client asked; -1 leaves room for so many.

    Raises:
        ApiError: 400 for more than the context has, for nothing, and for a side alone.
    """
    most = fields.truncate_prompt_tokens
    if most is None:
        if fields.truncation_side is not None:
            raise bad_request(
                "truncation_side needs truncate_prompt_tokens",
                param="truncation_side",
                code="invalid_value",
            )
        return None
    if most == 0 or most > limits.max_model_len:
        raise bad_request(
            f"truncate_prompt_tokens: expected 1 to {limits.max_model_len}, the tokens of the "
            f"model's context, or -1 (given: {most})",
            param="truncate_prompt_tokens",
            code="invalid_value",
        )
    if most == -1:
        room = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
        most = max(1, limits.capacity - room)
    return Shortening(most, "start" if fields.truncation_side == "right" else "end")


def _check_num_items(prompt: PromptField, most_tokens: int) -> None:
    """Refuse lists that are too long in every reading, before anything looks at each item."""
    if not isinstance(prompt, list):
        return
    if len(prompt) > max(most_tokens, MAX_PROMPTS):
        raise bad_request(
            f"prompt has {len(prompt)} items; a prompt may have {most_tokens} tokens, and a "
            f"request {MAX_PROMPTS} prompts",
            param="prompt",
            code="context_length_exceeded",
        )
    for i, item in enumerate(prompt):
        if isinstance(item, list) and len(item) > most_tokens:
            raise bad_request(
                f"prompt[{i}] has {len(item)} tokens; {most_tokens} are the limit",
                param=f"prompt[{i}]",
                code="context_length_exceeded",
            )


def split_prompt(prompt: PromptField) -> Prompts:
    """
    Raises:
        ApiError: 400 for no prompt, an empty list, or a list of different kinds.
    """
    if prompt is None:
        raise bad_request("the field 'prompt' is required", param="prompt", code="missing_field")
    if isinstance(prompt, str):
        return Prompts({"prompt": prompt}, {})
    if not prompt:
        raise bad_request("prompt: the list is empty", param="prompt", code="empty_prompt")
    kind = type(prompt[0])
    for i, item in enumerate(prompt):
        if type(item) is not kind:
            raise bad_request(
                f"prompt[{i}]: texts, token ids and lists of token ids cannot be mixed",
                param=f"prompt[{i}]",
                code="invalid_value",
            )
    if kind is int:
        return Prompts({}, {"prompt": cast("list[int]", prompt)})
    named = {f"prompt[{i}]": item for i, item in enumerate(prompt)}
    if kind is str:
        return Prompts(cast("dict[str, str]", named), {})
    return Prompts({}, cast("dict[str, list[int]]", named))


def read_chat(wanted: ChatRequest, limits: ContextLimits, reserved: frozenset[str]) -> Chat:
    """
    Args:
        reserved: names of which a request may not say what they are in the template.

    Raises:
        ApiError: 400 for messages, or options of the template, that cannot be.
    """
    if not wanted.messages:
        raise bad_request(
            "the field 'messages' must hold at least one message",
            param="messages",
            code="missing_field",
        )
    if len(wanted.messages) > MAX_MESSAGES:
        raise bad_request(
            f"messages: {len(wanted.messages)} messages; {MAX_MESSAGES} are the limit",
            param="messages",
            code="too_many_messages",
        )
    asked, _ = wanted.asked_max_tokens()
    continues = bool(wanted.continue_final_message)
    if continues and wanted.add_generation_prompt:
        raise bad_request(
            "continue_final_message: a chat goes on with its last message or begins a new one, "
            "not both; leave add_generation_prompt out",
            param="continue_final_message",
            code="invalid_value",
        )
    begins = not continues if wanted.add_generation_prompt is None else wanted.add_generation_prompt
    return Chat(
        template_messages(wanted.messages),
        add_generation_prompt=begins,
        continue_final_message=continues,
        add_special_tokens=bool(wanted.add_special_tokens),
        options=_template_options(wanted, reserved),
        tools=[tool.as_dict() for tool in wanted.tools or ()] or None,
        shortening=shortening_of(wanted, limits, asked),
    )


def _template_options(wanted: ChatRequest, reserved: frozenset[str]) -> dict[str, Any]:
    given = wanted.chat_template_kwargs or {}
    _check_template_options(given, reserved)
    if wanted.reasoning_effort is None:
        return dict(given)
    return {"reasoning_effort": wanted.reasoning_effort, **given}


def unused_options(wanted: ChatRequest, unread: Iterable[str]) -> list[str]:
    """The fields that say what the template does not look at.

    Args:
        unread: names of options.
    """
    given = wanted.chat_template_kwargs or {}
    return [f"chat_template_kwargs.{name}" if name in given else name for name in unread]


def _check_template_options(given: Mapping[str, Any], reserved: frozenset[str]) -> None:
    """Raise the 400 for options that a template cannot be given."""
    if len(given) > MAX_TEMPLATE_OPTIONS:
        raise _wrong_options(f"{len(given)} names; {MAX_TEMPLATE_OPTIONS} are the limit")
    for name in given:
        if not (name.isascii() and name.isidentifier() and len(name) <= 64):
            raise _wrong_options(f"{cut(name)!r} is no name of a variable", cut(name))
        if name in reserved:
            raise _wrong_options(f"{name!r} is the server's to set", name)
    rule = RULE_OF["extra_args"]
    if not rule.accepts(given):
        raise _wrong_options(f"expected {rule.expected}")
    num_bytes = len(msgspec.json.encode(given))
    if num_bytes > MAX_XARGS_BYTES:
        raise _wrong_options(f"{num_bytes} bytes; {MAX_XARGS_BYTES} are the limit")


def _wrong_options(what: str, name: str | None = None) -> Exception:
    path = "chat_template_kwargs" + (f".{name}" if name is not None else "")
    return bad_request(f"{path}: {what}", param=path, code="invalid_value")
