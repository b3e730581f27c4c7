"""``FrontPromptClient``: the server's engine as plugins in the front ask it in prompts.

The engine is started and ended by the runtime; requests that plugins make are the engine's like any
others, and no hook or limit of HTTP requests sees them.
"""

from __future__ import annotations

from hookserve.engine.engine_client import EngineClient
from hookserve.engine.errors import NotServedError
from hookserve.engine.grammar_checks import GrammarChecks
from hookserve.engine.input_processor import InputProcessor
from hookserve.engine.processor_checks import ProcessorChecks
from hookserve.engine.prompt_client import PromptClient
from hookserve.engine.stat_loggers import StatLoggers
from hookserve.engine.text.tokenizer import Tokenizer


class FrontPromptClient(PromptClient):
    """
    Args:
        client: whose engine it is.
        checks: what logits processors say of parameters.
        grammars: what the grammar backend says of the form of a text.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        loggers: StatLoggers,
        checks: ProcessorChecks,
        grammars: GrammarChecks,
    ) -> None:
        super().__init__(client.engine_config, client.vllm_config, tokenizer, client, loggers)
        self._checks = checks
        self._grammars = grammars
        self._processor: InputProcessor | None = None
        self._capacity = 0

    async def _ready(self) -> InputProcessor:
        if not self._client.is_running:
            raise self._client.dead_error
        capacity = self._client.kv_capacity_tokens
        if self._processor is None or capacity != self._capacity:
            self._capacity = capacity
            self._processor = InputProcessor(
                self.engine_config, self.tokenizer, capacity, self._checks, self._grammars
            )
        return self._processor

    def shutdown(self, timeout: float | None = None) -> None:
        """Raises ``NotServedError``: the engine is the server's."""
        raise NotServedError(
            "shutdown: the engine is the server's and ends with it; to stop the server send its "
            "process SIGTERM"
        )
