"""``ReplyParsers``: which parsers take apart what a model says in a chat, and what they do with one
request. What a parser finds is its own; how it is streamed is ``text.reply_splitter``'s.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from hookserve.hookspecs.errors import RequiredPluginError

from .errors import InvalidRequestError, cut
from .outputs import RequestOutput
from .plugin_class import find_class
from .plugin_code import as_plugin
from .sampling_params import SamplingParams
from .text.call_streams import CallStream, open_calls
from .text.forced_calls import ListedCalls, NamedCall, form_of
from .text.reasoning_parser import ReasoningParser
from .text.reasoning_streams import OwnReasoning, open_reasoning
from .text.reply_splitter import ReasoningTokens, ReplySplitter
from .text.tokenizer import Tokenizer
from .text.tool_calls import (
    DeltaMessage,
    NamedFunction,
    NamedToolChoice,
    ParserRequest,
    Tool,
    ToolChoice,
    fold_calls,
    make_call_id,
)
from .text.tool_parser import ToolParser

if TYPE_CHECKING:
    from hookserve.hookspecs import Host, Plugin

T = TypeVar("T")
BASES: dict[str, type[Any]] = {"tool_parser": ToolParser, "reasoning_parser": ReasoningParser}
FLAGS = {"tool_parser": "--tool-call-parser", "reasoning_parser": "--reasoning-parser"}


@dataclass(frozen=True)
class ChosenParser:
    """The parser of one kind that the operator named.

    Args:
        name: as it was given.
        plugin: whose it is; ``None`` for a class path.
    """

    kind: str
    name: str
    plugin: Plugin | None
    cls: type[Any]
    host: Host

    @classmethod
    def find(cls, host: Host, kind: str, name: str | None) -> ChosenParser | None:
        """
        Raises:
            UnknownNameError: a name that nobody registered; with the nearest ones.
            hookserve.hookspecs.PluginError: what cannot be imported, or is no parser.
        """
        if name is None:
            return None
        found, plugin = find_class(host, kind, name, BASES[kind])
        return cls(kind, name, plugin, found, host)

    @property
    def is_builtin(self) -> bool:
        return self.plugin is not None and self.plugin.is_builtin

    def make(self, tokenizer: Tokenizer, *more: Any, **named: Any) -> Any:
        """A parser. Classes of the older form take the tokenizer alone."""
        if not self.is_builtin:
            try:
                inspect.signature(self.cls).bind(tokenizer, *more, **named)
            except TypeError:
                return self.cls(tokenizer)
        return self.cls(tokenizer, *more, **named)

    def check(self) -> None:
        """
        Raises:
            RequiredPluginError: its plugin is out by now.
        """
        if self.plugin is not None and self.plugin.state != "active":
            raise RequiredPluginError(
                self.plugin.identity,
                "run",
                f"it is out: {self.plugin.reason}",
                f"{FLAGS[self.kind]} names {self.name} of it",
            )

    def running(self) -> AbstractContextManager[None]:
        """Its code runs within; what it raises is told under its plugin's name."""
        return as_plugin(self.host, self.plugin, f"{self.kind} {self.name}")

    def guarded(self, function: Callable[..., T]) -> Callable[..., T]:
        """The function, which runs so."""

        def run(*args: Any) -> T:
            with self.running():
                return function(*args)

        return run


class _Guarded:
    """A stream of a parser's, whose code runs as its plugin's, and whose texts can be written."""

    def __init__(self, chosen: ChosenParser, stream: CallStream) -> None:
        self._chosen = chosen
        self._stream = stream

    def push(self, text: str, token_ids: Sequence[int]) -> DeltaMessage:
        with self._chosen.running():
            return self._checked(self._stream.push(text, token_ids))

    def end(self) -> DeltaMessage:
        with self._chosen.running():
            return self._checked(self._stream.end())

    def _checked(self, message: DeltaMessage) -> DeltaMessage:
        if not self._chosen.is_builtin:
            for text in message.texts():
                if not isinstance(text, str):
                    raise TypeError(f"gave {cut(text)!r}; expected a str")
                text.encode()  # half of a surrogate pair is no text
        return message


class ReplyParsers:
    """Those of an engine's chats.

    Attributes:
        tool, reasoning: ``None`` where the operator named none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tool: ChosenParser | None = None,
        reasoning: ChosenParser | None = None,
    ) -> None:
        self.tool = tool
        self.reasoning = reasoning
        self._tokenizer = tokenizer

    @classmethod
    def build(
        cls, host: Host, tokenizer: Tokenizer, tool: str | None, reasoning: str | None
    ) -> ReplyParsers:
        """Raises as ``ChosenParser.find``."""
        return cls(
            tokenizer,
            ChosenParser.find(host, "tool_parser", tool),
            ChosenParser.find(host, "reasoning_parser", reasoning),
        )

    @property
    def chosen(self) -> list[ChosenParser]:
        return [each for each in (self.tool, self.reasoning) if each is not None]

    def check(self) -> None:
        """Raises as ``ChosenParser.check``."""
        for each in self.chosen:
            each.check()

    def open(self, request: ParserRequest, prompt_token_ids: Sequence[int]) -> ReplyForm:
        """What the parsers do with one request; they may change it.

        Args:
            prompt_token_ids: tell whether the model thinks; nobody looks at them without a parser
                of reasoning.

        Raises:
            InvalidRequestError: a form is asked for beside calls that have their own.
            hookserve.hookspecs.PluginError: a parser failed.
        """
        return ReplyForm(self, request, prompt_token_ids)

    def token_id(self, text: str) -> int | None:
        """The token that the text is."""
        return self._tokenizer.token_to_id(text)

    def make_tool_parser(self, request: ParserRequest) -> ToolParser:
        assert self.tool is not None
        with self.tool.running():
            made: ToolParser = self.tool.make(self._tokenizer, request.tools)
            made.tools = list(request.tools)
            return made

    def make_reasoning_parser(self, request: ParserRequest) -> ReasoningParser:
        assert self.reasoning is not None
        with self.reasoning.running():
            kwargs = dict(request.chat_template_kwargs)
            made: ReasoningParser = self.reasoning.make(
                self._tokenizer, chat_template_kwargs=kwargs
            )
            return made


class ReplyForm:
    """How the replies to one request are taken apart.

    Attributes:
        request: as the parsers left it.
        has_reasoning: whether the model thinks first.
    """

    def __init__(
        self, parsers: ReplyParsers, request: ParserRequest, prompt_token_ids: Sequence[int]
    ) -> None:
        self._parsers = parsers
        choice = request.tool_choice if request.tools else "none"
        self._named = choice.function.name if isinstance(choice, NamedToolChoice) else None
        must_call = choice == "required" or self._named is not None
        self._is_forced = must_call
        self._is_parsed = choice == "auto" and parsers.tool is not None
        self.request = self._adjusted(request, must_call)
        self._begins_behind: int | None = None
        self.has_reasoning = parsers.reasoning is not None and self._thinks(prompt_token_ids)

    @property
    def is_plain(self) -> bool:
        """Whether the text is content as it is."""
        return not (self._is_forced or self._is_parsed or self.has_reasoning)

    @property
    def counts_reasoning(self) -> bool:
        """Whether a reply says how many of its tokens are reasoning."""
        return self._parsers.reasoning is not None

    @property
    def runs_plugins(self) -> bool:
        """Whether a third party's code has a part in it."""
        return not self.is_plain and not all(each.is_builtin for each in self._parsers.chosen)

    def _adjusted(self, request: ParserRequest, must_call: bool) -> ParserRequest:
        """Let the parsers change the request, and hold one that must call to a form."""
        asked = request.structured_outputs
        if must_call and asked is not None:
            raise InvalidRequestError(
                "tool_choice: a reply that must be a call cannot have another form too; leave out "
                "response_format and structured_outputs",
                param="tool_choice",
            )
        tool, reasoning = self._parsers.tool, self._parsers.reasoning
        if tool is not None and (self._is_parsed or must_call):
            parser = self._parsers.make_tool_parser(request)
            with tool.running():
                request = _request_of(parser.adjust_request(request))
            if must_call and not parser.supports_required_and_named:
                self._is_forced, self._is_parsed = False, True
        if self._is_forced:
            request.structured_outputs = form_of(
                request.tools, self._named, request.parallel_tool_calls
            )
        if reasoning is not None:
            with reasoning.running():
                parser_of_reasoning = self._parsers.make_reasoning_parser(request)
                request = _request_of(parser_of_reasoning.adjust_request(request))
        return request

    def _thinks(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the text begins with reasoning. Where it must have a form there is some only if
        the engine can tell its end: by the one token that the end marker is."""
        chosen = self._parsers.reasoning
        assert chosen is not None
        parser = self._parsers.make_reasoning_parser(self.request)
        with chosen.running():
            if not parser.is_thinking() or parser.is_reasoning_end(prompt_token_ids):
                return False
            if self.request.structured_outputs is None:
                return True
            marker = parser.reasoning_end_str
        self._begins_behind = None if marker is None else self._parsers.token_id(marker)
        return self._begins_behind is not None

    def splitter(self, *, is_whole: bool = False) -> ReplySplitter:
        """For one choice.

        Args:
            is_whole: all its text will come at once.

        Raises:
            hookserve.hookspecs.PluginError: a parser failed.
        """
        request, stream, tokens = self.request, None, None
        if self.has_reasoning:
            chosen = self._parsers.reasoning
            assert chosen is not None
            parser = self._parsers.make_reasoning_parser(request)
            with chosen.running():
                found = open_reasoning(parser, request, is_whole=is_whole)
                stream = _Guarded(chosen, found)
                has_ended = chosen.guarded(parser.is_reasoning_end_streaming)
                tokens = ReasoningTokens(
                    chosen.guarded(parser.count_reasoning_tokens),
                    chosen.guarded(parser.extract_content_ids),
                    has_ended if isinstance(found, OwnReasoning) else None,
                )
        return ReplySplitter(
            stream,
            self._calls(is_whole),
            tokens=tokens,
            shows_reasoning=request.include_reasoning,
            max_calls=None if request.parallel_tool_calls else 1,
        )

    def _calls(self, is_whole: bool) -> CallStream | None:
        tool, request = self._parsers.tool, self.request
        make_id: Callable[[], str] = make_call_id
        if tool is not None and (self._is_parsed or self._is_forced):
            parser = self._parsers.make_tool_parser(request)
            if self._is_parsed:
                return _Guarded(tool, open_calls(parser, request, is_whole=is_whole))
            make_id = parser.make_id
        if not self._is_forced:
            return None
        return ListedCalls(make_id) if self._named is None else NamedCall(self._named, make_id)

    def adjusted(self, params: SamplingParams) -> SamplingParams:
        """With what the parsers changed."""
        return msgspec.structs.replace(
            params,
            skip_special_tokens=self.request.skip_special_tokens,
            structured_outputs=self.request.structured_outputs,
            form_begins_behind=self._begins_behind,
        )

    def fill(self, output: RequestOutput) -> None:
        """Take apart what an offline chat gave.

        Raises:
            hookserve.hookspecs.PluginError: a parser failed.
        """
        if self.is_plain and not self._parsers.chosen:
            return
        for each in output.outputs:
            found = self.splitter(is_whole=True).push(each.text, each.token_ids, is_last=True)
            each.reasoning, each.content = found.reasoning or None, found.content or None
            each.tool_calls = fold_calls(found.tool_calls)

    def finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """``tool_calls`` where the model ended its reply by itself and made a call; a call of the
        one function that had to be called is no choice of the model's, and ends with ``stop``."""
        is_choice = num_calls > 0 and self._named is None
        return "tool_calls" if reason == "stop" and is_choice else reason


def _request_of(answer: Any) -> ParserRequest:
    """
    Raises:
        TypeError: a parser gave something else.
    """
    if isinstance(answer, ParserRequest):
        return answer
    raise TypeError(f"adjust_request gave {cut(answer)!r}; expected the request")


def read_tools(given: Any) -> list[Tool]:
    """Tools that a caller gave as dicts.

    Raises:
        InvalidRequestError: with what is wrong with them.
    """
    try:
        return msgspec.convert(given, list[Tool])
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"tools: {cut(str(error))}", param="tools") from error


def read_choice(
    choice: str | dict[str, Any], tools: Sequence[Tool], parsers: ReplyParsers
) -> ToolChoice:
    """What a caller gave.

    Raises:
        InvalidRequestError: a choice that is none, that names no tool, or that needs a parser.
    """
    names = [tool.function.name for tool in tools]
    found: ToolChoice | None = None
    if isinstance(choice, dict):
        function = choice.get("function")
        if isinstance(function, dict) and function.get("name") in names:
            found = NamedToolChoice("function", NamedFunction(function["name"]))
    elif choice == "none" or (choice in ("auto", "required") and names):
        found = cast(ToolChoice, choice)
    if found is None:
        raise InvalidRequestError(
            f"tool_choice: expected 'none', 'auto', 'required' or an object that names one of the "
            f"tools ({', '.join(names) or 'there are none'}), got {cut(choice)}",
            param="tool_choice",
        )
    if found == "auto" and parsers.tool is None:
        raise InvalidRequestError(
            "tool_choice 'auto': make the engine with tool_call_parser", param="tool_choice"
        )
    return found
