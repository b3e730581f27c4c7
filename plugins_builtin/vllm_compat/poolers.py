"""Poolers: from the hidden states of a step to one vector, or one for each token, of each request.

Models of packages for vLLM are built with them, and may call them; no route here pools, so the
server does not. Names and tasks are vLLM's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Pick = Callable[[torch.Tensor], torch.Tensor]
"""From the hidden states of one request, ``[tokens, hidden]``, to what is pooled of them."""
Head = Callable[[torch.Tensor, Any], torch.Tensor]
"""From what was pooled and a request's ``PoolingParams`` to its answer."""

PICKS: Mapping[str, Pick] = {
    "CLS": lambda states: states[0],
    "LAST": lambda states: states[-1],
    "MEAN": lambda states: states.mean(0, dtype=torch.float32),
    "ALL": lambda states: states,
}


@dataclass
class PoolingMetadata:
    """The requests of one step, each with all of its tokens."""

    prompt_lens: torch.Tensor
    """``[requests]``, on the CPU."""
    prompt_token_ids: torch.Tensor | None
    """``[requests, longest]``, for poolers that ask for them."""
    pooling_params: list[Any]
    """Of each request its ``PoolingParams``."""

    def __getitem__(self, requests: slice) -> PoolingMetadata:
        ids = self.prompt_token_ids
        return PoolingMetadata(
            self.prompt_lens[requests],
            None if ids is None else ids[requests],
            self.pooling_params[requests],
        )

    def split(self, hidden_states: torch.Tensor) -> Sequence[torch.Tensor]:
        """``[tokens, hidden]`` of the step as those of each request."""
        return torch.split(hidden_states, self.prompt_lens.tolist())


@dataclass(frozen=True)
class PoolingParamsUpdate:
    """What a pooler wants of the requests of one task."""

    requires_token_ids: bool = False

    def __or__(self, other: PoolingParamsUpdate) -> PoolingParamsUpdate:
        return PoolingParamsUpdate(self.requires_token_ids or other.requires_token_ids)

    def apply(self, params: Any) -> None:
        """Change a request's ``PoolingParams``."""
        params.requires_token_ids = self.requires_token_ids


class Pooler(nn.Module):
    """Base of all poolers."""

    def get_supported_tasks(self) -> set[str]:
        raise TypeError(f"{type(self).__qualname__} must define get_supported_tasks")

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        return PoolingParamsUpdate()

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor] | torch.Tensor:
        """``[tokens, hidden]`` of a step to the answer of each request, in their order."""
        raise TypeError(f"{type(self).__qualname__} must define forward")


class IdentityPooler(Pooler):
    """Hidden states as they are, for a plugin that makes something of them."""

    def get_supported_tasks(self) -> set[str]:
        return {"plugin"}

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        """``[tokens of the request, hidden]`` of each."""
        return list(pooling_metadata.split(hidden_states))


class HeadedPooler(Pooler):
    """Picks of each request's states, then asks a head.

    Args:
        tasks: what it is for.
    """

    def __init__(self, tasks: Sequence[str], pick: Pick, head: Head) -> None:
        super().__init__()
        self._tasks = set(tasks)
        self._pick = pick
        self.head = head

    def get_supported_tasks(self) -> set[str]:
        return set(self._tasks)

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        states = pooling_metadata.split(hidden_states)
        pairs = zip(states, pooling_metadata.pooling_params, strict=True)
        return [self.head(self._pick(each), params) for each, params in pairs]


class DispatchPooler(Pooler):
    """A pooler for each task.

    Raises:
        ValueError: a pooler does not support the task that it is given for.
    """

    def __init__(self, poolers_by_task: Mapping[str, Pooler]) -> None:
        super().__init__()
        for task, pooler in poolers_by_task.items():
            supported = pooler.get_supported_tasks()
            if task not in supported:
                raise ValueError(
                    f"{type(pooler).__qualname__} is given for task {task!r}, and supports "
                    f"{', '.join(sorted(supported)) or 'none'}"
                )
        self.poolers_by_task = dict(poolers_by_task)
        self._parts = nn.ModuleList(dict.fromkeys(poolers_by_task.values()))

    @classmethod
    def for_embedding(cls, pooler_config: Any) -> DispatchPooler:
        """For embeddings of texts and of tokens.

        Args:
            pooler_config: a ``PoolerConfig``.
        """
        pick = seq_pick(pooler_config)
        return cls(
            {
                "embed": HeadedPooler(("embed",), pick, embed(pooler_config)),
                "token_embed": HeadedPooler(("token_embed",), PICKS["ALL"], embed(pooler_config)),
            }
        )

    @classmethod
    def for_seq_cls(
        cls, pooler_config: Any, *, pooling: Pick | None = None, classifier: Any = None
    ) -> DispatchPooler:
        """For classes and scores of texts.

        Args:
            pooling: in place of what the configuration says.
            classifier: ``[hidden]`` to ``[labels]``; ``None``: the states are scores already.
        """
        pick, head = pooling or seq_pick(pooler_config), classify(pooler_config, classifier)
        whole = HeadedPooler(("classify", "score"), pick, head)
        each = HeadedPooler(("token_classify",), PICKS["ALL"], head)
        made = cls({"classify": whole, "score": whole, "token_classify": each})
        made.classifier = classifier
        return made

    def get_supported_tasks(self) -> set[str]:
        return set(self.poolers_by_task)

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        return self._pooler(task).get_pooling_updates(task)

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata
    ) -> list[torch.Tensor]:
        states, answers = pooling_metadata.split(hidden_states), []
        for row, each in enumerate(states):
            pooler = self._pooler(pooling_metadata.pooling_params[row].task)
            answers += list(pooler(each, pooling_metadata[row : row + 1]))
        return answers

    def _pooler(self, task: str) -> Pooler:
        if task not in self.poolers_by_task:
            known = ", ".join(sorted(self.poolers_by_task))
            raise ValueError(f"nothing is pooled for task {task!r}; there are: {known}")
        return self.poolers_by_task[task]


def seq_pick(pooler_config: Any) -> Pick:
    """
    Raises:
        ValueError: a way of pooling that is not known.
    """
    name = pooler_config.seq_pooling_type or pooler_config.pooling_type or "LAST"
    if name not in PICKS:
        raise ValueError(f"pooling type {name!r} is not known; there are: {', '.join(PICKS)}")
    return PICKS[name]


def embed(pooler_config: Any) -> Head:
    """Vectors of length 1, unless the configuration or the request says otherwise, of as many
    dimensions as the request asks for."""

    def head(pooled: torch.Tensor, params: Any) -> torch.Tensor:
        vector = pooled.float()[..., : params.dimensions]
        if first_said(params.use_activation, pooler_config.use_activation, True):
            vector = F.normalize(vector, dim=-1)
        return vector

    return head


def classify(pooler_config: Any, classifier: Any) -> Head:
    """Probabilities, unless the configuration or the request says otherwise: of one label by
    itself, of several together."""

    def head(pooled: torch.Tensor, params: Any) -> torch.Tensor:
        scores = (pooled if classifier is None else classifier(pooled)).float()
        if not first_said(params.use_activation, pooler_config.use_activation, True):
            return scores
        return scores.sigmoid() if scores.shape[-1] == 1 else scores.softmax(-1)

    return head


def first_said(*said: bool | None) -> bool:
    return next(each for each in said if each is not None)
