"""What the fields of a chat request about tools say together, and what parsers are told of it."""

from __future__ import annotations

from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.text.tool_calls import NamedToolChoice, ParserRequest, ToolChoice

from .errors import ApiError, bad_request, cut, nearest
from .prompt_encoder import Chat
from .wire_chat import ChatRequest


def tool_choice(wanted: ChatRequest, *, may_choose: bool) -> ToolChoice:
    """What was chosen; without a choice ``auto`` where there are tools.

    Args:
        may_choose: whether the server finds the calls of a model that decides by itself.

    Raises:
        ApiError: 400 for tools of one name, for a choice without tools, of one that is not there,
            or that the server was not started for.
    """
    tools, choice = wanted.tools or [], wanted.tool_choice
    names = [tool.function.name for tool in tools]
    seen: set[str] = set()
    for i, name in enumerate(names):
        if name in seen:
            path = f"tools[{i}].function.name"
            raise bad_request(f"{path}: {name!r} is a tool already", path, "invalid_value")
        seen.add(name)
    if not tools:
        if choice in (None, "none", "auto"):
            return "none"
        raise _wrong("it needs tools, and there are none")
    if choice is None or choice == "auto":
        if not may_choose:
            raise _wrong(
                "'auto' (which it is where tools are given) needs a server that was started with "
                "--enable-auto-tool-choice and --tool-call-parser; 'none', 'required' and a "
                "function's name do not",
                "unsupported_value",
            )
        return "auto"
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        name = cut(choice.function.name)
        hint = nearest(choice.function.name, names)
        raise _wrong(f"no tool has the name {name!r}{hint}")
    return choice


def _wrong(what: str, code: str = "invalid_value") -> ApiError:
    return bad_request(f"tool_choice: {what}", "tool_choice", code)


def parser_request(
    wanted: ChatRequest, chat: Chat, choice: ToolChoice, params: SamplingParams
) -> ParserRequest:
    return ParserRequest(
        messages=chat.messages,
        tools=list(wanted.tools or ()),
        tool_choice=choice,
        parallel_tool_calls=wanted.parallel_tool_calls is not False,
        include_reasoning=wanted.include_reasoning is not False,
        chat_template_kwargs=dict(chat.options),
        skip_special_tokens=params.skip_special_tokens,
        structured_outputs=params.structured_outputs,
        response_format=wanted.response_format,
        reasoning_effort=wanted.reasoning_effort,
        model=wanted.model,
        stream=bool(wanted.stream),
    )
