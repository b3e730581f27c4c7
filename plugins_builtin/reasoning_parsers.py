"""Built-in reasoning parsers: what a model thought, up to ``</think>``, and what it answers.

``deepseek_r1``: the format of DeepSeek-R1 and the models distilled from it
(https://huggingface.co/deepseek-ai/DeepSeek-R1, "Usage Recommendations"), whose template writes
``<think>`` itself. ``qwen3``: that of Qwen 3 (https://huggingface.co/Qwen/Qwen3-8B, "Switching
Between Thinking and Non-Thinking Mode"), which writes it or whose template does, and which does not
think where the request sets ``enable_thinking`` to false in ``chat_template_kwargs``.
"""

from __future__ import annotations

from hookserve.engine.text.reasoning_parser import MarkedReasoningParser


class DeepseekR1ReasoningParser(MarkedReasoningParser):
    pass


class Qwen3ReasoningParser(MarkedReasoningParser):
    def is_thinking(self) -> bool:
        return self.chat_template_kwargs.get("enable_thinking") is not False
