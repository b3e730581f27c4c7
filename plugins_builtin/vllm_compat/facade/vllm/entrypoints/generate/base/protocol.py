"""Calls of tools, and messages that grow."""

from __future__ import annotations

from hookserve.engine.text.tool_calls import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    FunctionDefinition,
    ToolCall,
)

__all__ = [
    "DeltaFunctionCall",
    "DeltaMessage",
    "DeltaToolCall",
    "ExtractedToolCallInformation",
    "FunctionCall",
    "FunctionDefinition",
    "ToolCall",
]

__surface__ = {
    "DeltaFunctionCall": "live: of a DeltaToolCall, which takes it as a dict too",
    "DeltaMessage": "live: what a parser's streaming method answers; role is not read",
    "DeltaToolCall": "live: a part of a call, by its index; the first one has id and name",
    "ExtractedToolCallInformation": "live: what extract_tool_calls answers",
    "FunctionCall": "live: name and arguments of a call",
    "FunctionDefinition": "live: of a tool of a request",
    "ToolCall": "live: a whole call; its id is made where none is given",
}
