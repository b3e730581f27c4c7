"""What the model runner answers for a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from hookserve.engine.step import ModelRunnerOutput
from hookserve.plugins_builtin.vllm_compat.lazy import names_from

if TYPE_CHECKING:
    import torch

    from hookserve.engine.sampler import SamplerOutput

__all__ = [
    "EMPTY_MODEL_RUNNER_OUTPUT",
    "AsyncModelRunnerOutput",
    "LogprobsLists",
    "LogprobsTensors",
    "ModelRunnerOutput",
    "SamplerOutput",
]

__surface__ = {
    "EMPTY_MODEL_RUNNER_OUTPUT": "shape: the answer for a step of nobody; not to be changed",
    "AsyncModelRunnerOutput": "shape: base of answers that come later; the engine takes an answer "
    "itself, so call get_output before it is returned",
    "LogprobsLists": "shape: log-probabilities as lists; those of a step are in "
    "ModelRunnerOutput.logprobs, by request",
    "LogprobsTensors": "shape: log-probabilities as tensors; those of a step are in "
    "ModelRunnerOutput.logprobs, by request",
    "ModelRunnerOutput": "live: what a worker's execute_model returns and update_from_output takes",
    "SamplerOutput": "live: what the worker's sampler returns",
    "DraftTokenIds": "refused: nothing is guessed ahead",
    "KVConnectorOutput": "refused: no worker transfers a cache",
    "ECConnectorOutput": "refused: there is text alone",
    "PoolerOutput": "refused: models generate; no worker pools",
    "RoutedExpertsLists": "refused: no model of this server routes to experts",
    "RoutedExpertsTensors": "refused: no model of this server routes to experts",
}

EMPTY_MODEL_RUNNER_OUTPUT = ModelRunnerOutput()


class LogprobsLists(NamedTuple):
    """Of each position, the sampled token first and then the best ones."""

    logprob_token_ids: Any
    """[positions, 1 + best] token ids."""
    logprobs: Any
    """[positions, 1 + best]."""
    sampled_token_ranks: Any
    """[positions]; 1 is the best."""
    cu_num_generated_tokens: list[int] | None = None


class LogprobsTensors(NamedTuple):
    """Of each position, the sampled token first and then the best ones."""

    logprob_token_ids: torch.Tensor
    """[positions, 1 + best] token ids."""
    logprobs: torch.Tensor
    """[positions, 1 + best]."""
    selected_token_ranks: torch.Tensor
    """[positions]; 1 is the best."""

    def tolists(self) -> LogprobsLists:
        return LogprobsLists(
            self.logprob_token_ids.tolist(),
            self.logprobs.tolist(),
            self.selected_token_ranks.tolist(),
        )


class AsyncModelRunnerOutput(ABC):
    """An answer that is not there yet."""

    @abstractmethod
    def get_output(self) -> ModelRunnerOutput:
        """Wait for it."""


__getattr__ = names_from(__name__, {"SamplerOutput": "hookserve.engine.sampler"})
