"""``ChatParsers``: the parsers of tool calls and of reasoning at work for HTTP requests: those of
plugins in threads and within the time of a front's hook. What they find is their own business, how
it is put together ``engine.reply_parsers``'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from hookserve.engine.config import ModelConfig
from hookserve.engine.errors import ConfigError
from hookserve.engine.reply_parsers import ReplyForm, ReplyParsers
from hookserve.engine.text.reply_splitter import ReplySplitter
from hookserve.engine.text.tokenizer import Tokenizer
from hookserve.engine.text.tool_calls import DeltaMessage, ParserRequest
from hookserve.hookspecs import Host, PluginError
from hookserve.hookspecs.plugin_threads import PluginThreads

from .settings import ServerSettings
from .thread_calls import NoAnswerError, answer_of

T = TypeVar("T")
MAX_CHARS_ON_LOOP = 4096
"""Of a text that is read at once: the time for a longer one would be missing to open streams."""


class ChatParsers:
    """
    Attributes:
        may_choose: whether models may decide by themselves that they call a tool.
        hides_tools: whether templates are not shown the tools of who must call none.
        reads_options: whether there is a parser that looks at the template's options too.

    Args:
        budget_s: for one call of a plugin's parser.
    """

    def __init__(
        self, parsers: ReplyParsers, budget_s: float, *, may_choose: bool, hides_tools: bool
    ) -> None:
        self.may_choose = may_choose
        self.hides_tools = hides_tools
        self.reads_options = parsers.reasoning is not None
        self._parsers = parsers
        self._budget_s = budget_s
        self._is_builtin = all(each.is_builtin for each in parsers.chosen)
        self._threads = PluginThreads("parsers")

    @classmethod
    def build(
        cls, host: Host, tokenizer: Tokenizer, model: ModelConfig, settings: ServerSettings
    ) -> ChatParsers:
        """
        Raises:
            ConfigError: models may choose, and no parser is named.
            hookserve.hookspecs.HostError: a parser that cannot be had.
        """
        if settings.enable_auto_tool_choice and model.tool_call_parser is None:
            raise ConfigError(
                "--enable-auto-tool-choice: calls are found by a parser, and none is named; give "
                "--tool-call-parser too"
            )
        return cls(
            ReplyParsers.build(host, tokenizer, model.tool_call_parser, model.reasoning_parser),
            host.settings.front_hook_timeout_s,
            may_choose=settings.enable_auto_tool_choice,
            hides_tools=settings.exclude_tools_when_tool_choice_none,
        )

    def check(self) -> None:
        """
        Raises:
            RequiredPluginError: the plugin of a parser is out by now.
        """
        self._parsers.check()

    async def open(self, request: ParserRequest, prompt_token_ids: list[int]) -> ReplyForm:
        """Raises as ``ReplyParsers.open``."""
        parsers = self._parsers
        return await self._run(
            lambda: parsers.open(request, prompt_token_ids),
            is_builtin=self._is_builtin,
            is_long=bool(request.tools),  # there may be thousands of schemas in them
        )

    async def splitters(
        self, form: ReplyForm, count: int, *, is_whole: bool
    ) -> list[ReplySplitter]:
        """One for each choice, as ``ReplyForm.splitter``. Raises ``PluginError``."""
        return await self._run(
            lambda: [form.splitter(is_whole=is_whole) for _ in range(count)],
            is_builtin=not form.runs_plugins,
        )

    async def push(
        self,
        form: ReplyForm,
        splitter: ReplySplitter,
        text: str,
        token_ids: list[int],
        is_last: bool,
    ) -> DeltaMessage:
        """``ReplySplitter.push``. Raises ``PluginError``."""
        return await self._run(
            lambda: splitter.push(text, token_ids, is_last),
            is_builtin=not form.runs_plugins,
            is_long=len(text) > MAX_CHARS_ON_LOOP,
        )

    async def _run(self, work: Callable[[], T], *, is_builtin: bool, is_long: bool = False) -> T:
        """
        Args:
            is_long: not for the event loop, whoever's code it is.

        Raises:
            PluginError: a parser failed, or took too long.
        """
        if is_builtin:
            return await asyncio.to_thread(work) if is_long else work()
        try:
            outcome = await answer_of(self._threads, work, self._budget_s)
        except NoAnswerError as error:
            raise PluginError(
                self._owners(), "run", f"its parser came to no end within {self._budget_s:g} s"
            ) from error.__cause__
        result: T = outcome.unwrap()
        return result

    def _owners(self) -> str:
        """Whose parsers run there."""
        chosen = [each for each in self._parsers.chosen if not each.is_builtin]
        return " or ".join(
            each.name if each.plugin is None else each.plugin.identity for each in chosen
        )

    def end(self) -> None:
        """Let the threads go."""
        self._threads.end()
