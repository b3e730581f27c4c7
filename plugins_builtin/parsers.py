"""Built-in plugin: parsers of tool calls and of reasoning, for the formats that models use."""

from __future__ import annotations

from hookserve.hookspecs import Named, hookimpl

_HERE = "hookserve.plugins_builtin"


@hookimpl
def tool_parser() -> list[Named]:
    return [
        Named("hermes", f"{_HERE}.hermes_tool_parser:HermesToolParser"),
        Named("llama3_json", f"{_HERE}.llama3_json_tool_parser:Llama3JsonToolParser"),
        Named("pythonic", f"{_HERE}.pythonic_tool_parser:PythonicToolParser"),
        Named("mistral", f"{_HERE}.mistral_tool_parser:MistralToolParser"),
        Named("qwen3_coder", f"{_HERE}.qwen3_coder_tool_parser:Qwen3CoderToolParser"),
    ]


@hookimpl
def reasoning_parser() -> list[Named]:
    return [
        Named("deepseek_r1", f"{_HERE}.reasoning_parsers:DeepseekR1ReasoningParser"),
        Named("qwen3", f"{_HERE}.reasoning_parsers:Qwen3ReasoningParser"),
    ]
