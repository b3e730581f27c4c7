"""``Choice``: one choice of a whole reply, the fold of the deltas that a stream would send."""

from __future__ import annotations

from hookserve.engine.messages import TokenLogprobs
from hookserve.engine.parallel_sampling import choose_best
from hookserve.engine.text.output import TextDelta

from .generation import Generation
from .response_filter import ResponseFilter


class Choice:
    def __init__(self, prompt_index: int) -> None:
        self.prompt_index = prompt_index
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        """Parallel to ``token_ids`` where they were asked for, else empty."""
        self.text_offsets: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def cumulative_logprob(self) -> float:
        return sum(entry.logprobs[0] for entry in self.logprobs)

    def add(self, delta: TextDelta) -> None:
        self._texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.text_offsets += delta.text_offsets or ()
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


async def fold_choices(generation: Generation) -> list[Choice]:
    """Everything that is returned, ``n`` choices for each prompt; the likeliest ones first where
    more were generated.

    Raises:
        ApiError, ClientGone: as ``Generation.deltas``.
    """
    per_prompt, n = generation.per_prompt, generation.n
    choices = [Choice(i) for i in range(len(generation.prompts)) for _ in range(per_prompt)]
    async for index, delta in generation.deltas():
        choices[index].add(delta)
    if per_prompt == n:
        return choices
    best: list[Choice] = []
    for start in range(0, len(choices), per_prompt):
        rivals = choices[start : start + per_prompt]
        ranked = choose_best([rival.cumulative_logprob for rival in rivals], n)
        best += [rivals[i] for i in ranked]
    if generation.filter is not None:
        return [await _filtered(generation.filter, *numbered) for numbered in enumerate(best)]
    return best


async def _filtered(filter_: ResponseFilter, index: int, choice: Choice) -> Choice:
    """A choice that was chosen at its end: its whole text at once, under the index that the client
    sees."""
    whole = TextDelta(
        choice.text,
        choice.token_ids,
        choice.finish_reason,
        choice.stop_reason,
        stopped_by_text=False,
        logprobs=choice.logprobs,
        text_offsets=choice.text_offsets,
    )
    passed = await filter_.pass_on(index, whole)
    assert passed is not None, "the end of a choice always goes on"
    shown = Choice(choice.prompt_index)
    shown.add(passed)
    return shown
