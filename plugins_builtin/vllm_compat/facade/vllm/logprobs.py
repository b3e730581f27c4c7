"""Log-probabilities of tokens."""

from __future__ import annotations

from hookserve.engine.outputs import Logprob

__all__ = ["Logprob", "LogprobsOnePosition", "PromptLogprobs", "SampleLogprobs"]

__surface__ = {
    "FlatLogprobs": "refused: log-probabilities are dicts by token id, one for each token",
    "Logprob": "live: CompletionOutput.logprobs and RequestOutput.prompt_logprobs hold it",
    "LogprobsOnePosition": "live: the type of one position",
    "PromptLogprobs": "live: the type of RequestOutput.prompt_logprobs",
    "SampleLogprobs": "live: the type of CompletionOutput.logprobs",
}

LogprobsOnePosition = dict[int, Logprob]
PromptLogprobs = list[LogprobsOnePosition | None]
SampleLogprobs = list[LogprobsOnePosition]
