"""Chat templates: messages to one text, in jinja2's immutable sandbox.

A template is part of a checkpoint, so it is not trusted: it cannot reach attributes that are unsafe
or change what it is given, and time, output and the growth of strings are limited. What messages
look like on the wire is the server's.
"""

from __future__ import annotations

import functools
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from hookserve.engine.errors import ConfigError

from .template_growth import (
    GROWING_FILTERS,
    GROWING_METHODS,
    LARGEST_ARGUMENTS,
    counted_items,
    formatted_chars,
    grown_chars,
    largest_argument,
)
from .template_names import TemplateDict, TemplateNamespace
from .tokenizer import DEFAULT_TEMPLATE, TOOL_TEMPLATE, Tokenizer

logger = logging.getLogger(__name__)

MAX_OUTPUT_CHARS = 32 << 20
MAX_RENDER_S = 5.0
MAX_REPEATED_CHARS = 1 << 20
"""Longest text that ``*`` may make in a template."""

RESERVED_NAMES = frozenset(
    {
        "messages",
        "conversation",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "self",
        "raise_exception",
        "strftime_now",
    }
)
"""Names that template options of a request may not set."""

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
"""What a message's reasoning may come by, the name first that most templates read."""

_BUDGET = "_render_budget"
_TICK_FILTER = "_counted"
_SIZE_FILTER = "_measured"


class ChatTemplateError(ValueError):
    """The template refused the messages, or could not render them; the text says why."""


class ChatTemplate:
    """One compiled template.

    Args:
        source: jinja2.
        special_tokens: text by name (``bos_token``, ...), visible in the template.
        origin: what messages call it: the file or flag that it came from.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], origin: str) -> None:
        self.source = source
        self.origin = origin
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _Environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"chat template of {origin}, line {error.lineno}: {error.message}"
            ) from error

    @property
    def reserved(self) -> frozenset[str]:
        """Names that options may not have."""
        return RESERVED_NAMES | self._special_tokens.keys() | {_BUDGET}

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """Every name that the template reads and does not set itself."""
        tree = _Environment().parse(self.source)
        return frozenset(jinja2.meta.find_undeclared_variables(tree))

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """The text of a chat.

        Args:
            messages: what is ``None`` in one counts as left out, and reasoning is shown under the
                names that templates know, whichever it came by.
            continue_final_message: end with the last message's own text, so that the model goes on
                with it; excludes ``add_generation_prompt``.

        Raises:
            ChatTemplateError: the template's own complaint, a reserved or unusable option, a last
                message that cannot be continued, or a limit that it ran into.
        """
        reserved = sorted(self.reserved & set(options))
        if reserved:
            raise ChatTemplateError(f"chat template option {reserved[0]!r} is reserved")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError(
                "a chat goes on with its last message or begins a new one, not both"
            )
        messages = [_shown(message) for message in self._with_known_roles(messages)]
        marked, end = _mark_end(messages) if continue_final_message else (messages, None)
        text = self._generate(
            {
                **self._special_tokens,
                **options,
                "messages": marked,
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
                _BUDGET: _Budget(MAX_RENDER_S),
            }
        )
        if end is None:
            return text
        return _cut_at(text, end, is_blank=not messages[-1]["content"].strip())

    def _with_known_roles(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """``developer`` is a newer name of ``system``: the older one is given to a template that
        has not heard of it."""
        if "developer" in self.source:
            return messages
        return [
            {**message, "role": "system"} if message.get("role") == "developer" else message
            for message in messages
        ]

    def _generate(self, variables: dict[str, Any]) -> str:
        try:
            return self._join(self._template.generate(variables))
        except ChatTemplateError:
            raise
        except RecursionError as error:
            raise ChatTemplateError("the chat template recurses without end") from error
        except Exception as error:  # a template can raise anything; all of it is about this request
            raise ChatTemplateError(f"the chat template cannot render this: {error}") from error

    def _join(self, pieces: Iterable[str]) -> str:
        kept: list[str] = []
        num_chars = 0
        for piece in pieces:
            num_chars += len(piece)
            if num_chars > MAX_OUTPUT_CHARS:
                raise ChatTemplateError(
                    f"the chat template makes more than {MAX_OUTPUT_CHARS} characters"
                )
            kept.append(piece)
        return "".join(kept)


def _shown(message: dict[str, Any]) -> dict[str, Any]:
    """The message as templates are written for: one that asks for what is ``None`` gets nothing,
    where it would write the word."""
    shown = {name: value for name, value in message.items() if value is not None}
    for name in _REASONING_NAMES:
        if name in shown:
            return {"thinking": shown[name], **shown, "reasoning_content": shown[name]}
    return shown


def _mark_end(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The messages with a mark behind the last one's text, and that mark, which nobody can know
    before. So its end is found whatever the template makes of the text. The mark ends with a space:
    a template that trims the text takes that."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if not isinstance(content, str):
        raise ChatTemplateError("the last message has no text to go on with")
    mark = f"{secrets.token_hex(16)} "
    return [*messages[:-1], {**last, "content": content + mark}], mark


def _cut_at(text: str, mark: str, *, is_blank: bool) -> str:
    """
    Args:
        is_blank: the last message is white space; in front of the mark there is the template's own,
            if the message was trimmed, and that stays.
    """
    end = text.rfind(mark.rstrip())
    if end < 0:
        raise ChatTemplateError("the chat template leaves the last message's text out")
    is_trimmed = not text.startswith(mark, end)
    kept = text[:end].replace(mark, "").replace(mark.rstrip(), "")  # what is shown twice
    return kept.rstrip() if is_trimmed and not is_blank else kept


def render_chat(
    template: Tokenizer | ChatTemplate,
    messages: list[dict[str, Any]],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: list[dict[str, Any]] | None = None,
    **options: Any,
) -> str:
    """Render with a compiled template, or with the tokenizer's own (compiled once for it).

    The text carries its own special tokens: encode it with ``add_special_tokens=False``.

    Raises:
        ChatTemplateError: as ``ChatTemplate.render``; or the tokenizer has no template.
    """
    if isinstance(template, Tokenizer):
        template = tokenizer_template(template, with_tools=bool(tools))
    return template.render(
        messages,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=tools,
        **options,
    )


def tokenizer_template(tokenizer: Tokenizer, *, with_tools: bool = False) -> ChatTemplate:
    """The tokenizer's template, compiled once; the one for tools where it has one and they are
    given."""
    sources = tokenizer.chat_templates
    name = TOOL_TEMPLATE if with_tools and TOOL_TEMPLATE in sources else DEFAULT_TEMPLATE
    if name not in sources:
        known = f"; it has templates named {', '.join(sorted(sources))}" if sources else ""
        raise ChatTemplateError(
            f"the model's tokenizer has no chat template{known}; give one with --chat-template"
        )
    compiled = tokenizer.compiled_templates.get(name)
    if compiled is None:
        compiled = ChatTemplate(sources[name], tokenizer.special_tokens, tokenizer.origin)
        tokenizer.compiled_templates[name] = compiled
    assert isinstance(compiled, ChatTemplate)
    return compiled


def choose_template(
    override: str | None, tokenizer: Tokenizer, *, with_tools: bool = False
) -> ChatTemplate | None:
    """The template that chats are rendered with, compiled once; ``None`` if there is none.

    Args:
        with_tools: chats that have tools, for which a tokenizer may have a template of its own.

    Raises:
        ConfigError: the operator's own template is no template.
    """
    if override is not None:
        try:
            return ChatTemplate(override, tokenizer.special_tokens, "--chat-template")
        except ChatTemplateError as error:
            raise ConfigError(str(error)) from error
    if tokenizer.chat_template is None:
        return None
    try:
        return tokenizer_template(tokenizer, with_tools=with_tools)
    except ChatTemplateError as error:
        logger.warning("chats are refused: %s", error)
        return None


class _Budget:
    """How long a rendering may still take."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._deadline:
            raise ChatTemplateError(f"the chat template takes more than {self._seconds:g} s")


class _Environment(ImmutableSandboxedEnvironment):
    """The ecosystem's settings, names and filters, plus the limits.

    Every ``for`` loop and every call checks the budget: what else a template can do is finite.
    """

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols, _GenerationTag],
        )
        self.filters["tojson"] = _tojson
        self.filters[_TICK_FILTER] = _counted
        self.filters[_SIZE_FILTER] = _measured_text
        self.filters["join"] = _join_filter(self.filters["join"])
        for name in GROWING_FILTERS:
            self.filters[name] = _measured(name, self.filters[name])
        for name, most in LARGEST_ARGUMENTS.items():
            self.filters[name] = _bounded(name, most, self.filters[name])
        self.filters["sum"] = _sum_filter(self.filters["sum"])
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["dict"] = TemplateDict()
        self.globals["namespace"] = TemplateNamespace
        del self.globals["lipsum"]  # makes any number of words in one call

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(
                loop.iter, _TICK_FILTER, [], [], None, None, lineno=loop.lineno
            ).set_environment(self)
        return _MeasureConcat(self).visit(tree)  # type: ignore[no-any-return]

    def call(
        __self,  # jinja2's own spelling: it passes the template's own arguments by keyword
        __context: jinja2.runtime.Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        __context[_BUDGET].check()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(text, str) and name in GROWING_METHODS:
            _refuse_growth(name, grown_chars(name, text, [*args, *kwargs.values()]))
        elif isinstance(text, str) and name == "join" and args:
            args = (_measured_items(args[0], text), *args[1:])
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        if operator == "**" or _repeated_chars(left, right) > MAX_REPEATED_CHARS:
            raise ChatTemplateError(f"the chat template uses {operator!r} beyond its limit")
        if operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
            _refuse_growth(operator, len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            values = right.values() if isinstance(right, Mapping) else right
            values = values if isinstance(values, Iterable) else [values]
            _refuse_growth(operator, formatted_chars(left, [right, *values]))
        return super().call_binop(context, operator, left, right)


class _MeasureConcat(NodeTransformer):
    """Puts the result of each ``~`` through the filter that measures it."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return jinja2.nodes.Filter(
            node, _SIZE_FILTER, [], [], None, None, lineno=node.lineno
        ).set_environment(self._environment)


def _refuse_growth(name: str, num_chars: int) -> None:
    if num_chars > MAX_OUTPUT_CHARS:
        raise ChatTemplateError(f"the chat template uses {name!r} beyond its limit")


def _measured_text(text: str) -> str:
    _refuse_growth("~", len(text))
    return text


def _measured(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, measured before it runs."""

    @functools.wraps(original)
    def measured(*args: Any, **kwargs: Any) -> Any:
        at = 1 if hasattr(original, "jinja_pass_arg") else 0
        text = args[at] if isinstance(args[at], str) else str(args[at])
        _refuse_growth(name, grown_chars(name, text, [*args[at + 1 :], *kwargs.values()]))
        return original(*args, **kwargs)

    return measured


def _bounded(name: str, most: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with arguments up to that."""

    @functools.wraps(original)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        at = 1 if hasattr(original, "jinja_pass_arg") else 0
        if largest_argument([*args[at + 1 :], *kwargs.values()]) > most:
            raise ChatTemplateError(f"the chat template uses {name!r} beyond its limit")
        return original(*args, **kwargs)

    return bounded


def _sum_filter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Sums of lists, which are copied again for each, take as long as the rest may."""

    @jinja2.pass_context
    def summed(context: Any, items: Any, attribute: Any = None, start: Any = 0) -> Any:
        return original(context.environment, _counted(context, items), attribute, start)

    return summed


def _join_filter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def join(context: Any, value: Any, d: str = "", attribute: Any = None) -> Any:
        return original(context, _measured_items(value, d, attribute), d, attribute)

    return join


def _measured_items(items: Any, separator: Any, attribute: Any = None) -> list[Any]:
    kept = []
    for item, num_chars in counted_items(items, attribute):
        kept.append(item)
        _refuse_growth("join", num_chars + len(kept) * len(str(separator)))
    return kept


def _repeated_chars(left: Any, right: Any) -> int:
    """Length of ``left * right`` where one is a sequence; 0 for a product of numbers."""
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            return len(sequence) * max(times, 0)
    return 0


@jinja2.pass_context
def _counted(context: jinja2.runtime.Context, items: Iterable[Any]) -> Iterator[Any]:
    budget: _Budget = context[_BUDGET]
    for item in items:
        budget.check()
        yield item


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which no model has been trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise ChatTemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks training targets: here it is its content.
    What is set in there stays in there."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a set

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        end: tuple[str, ...] = ("name:endgeneration",)
        body = parser.parse_statements(end, drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)
