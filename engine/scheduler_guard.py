"""``SchedulerGuard``: the methods of the scheduler that was chosen, called as its owner's code.

What a step is, ``core`` knows; which class was chosen, ``scheduler_class``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import HostError, describe_error
from hookserve.hookspecs.notify_loop import caught

from .errors import EX_SOFTWARE, HookserveError
from .step import SchedulerOutput

if TYPE_CHECKING:
    from hookserve.hookspecs import Plugin

    from .messages import EngineCoreOutput
    from .scheduler_interface import SchedulerInterface
    from .step import ModelRunnerOutput

NOTHING_S = 5.0
"""So long a scheduler may choose nobody while somebody waits. Shorter than what the front takes for
a stall: the engine knows whose it is."""
NOTHING_PAUSE_S = 0.005
"""Before it is asked again."""


class SchedulerError(HookserveError):
    """The scheduler failed: whose block is whose is not known for sure, so the engine ends."""

    exit_code = EX_SOFTWARE


class SchedulerGuard:
    """Args:
    name: by which the scheduler was chosen.
    owner: the plugin that declared it; ``None``: it was named by its class path.
    max_tokens: of one step.
    is_checked: whether its steps are looked at before workers have them.
    """

    def __init__(
        self, name: str, owner: Plugin | None, max_tokens: int, is_checked: bool = True
    ) -> None:
        self._owner = owner
        self._max_tokens = max_tokens
        self._is_checked = is_checked
        self.who = f"scheduler {name!r}" + ("" if owner is None else f" of plugin {owner.identity}")
        self._nobody_since: float | None = None

    def entered(self) -> enter:
        """Within it the owner's code runs."""
        return enter(self._owner)

    def call(self, scheduler: SchedulerInterface, method: str, *args: Any) -> Any:
        """What the method returns.

        Raises:
            SchedulerError: it raised, in one sentence that names the scheduler.
        """
        try:
            with self.entered():
                return getattr(scheduler, method)(*args)
        except (HookserveError, HostError):
            raise
        except caught() as error:
            raise SchedulerError(f"{self.who}: {method} raised {describe_error(error)}") from error

    def schedule(self, scheduler: SchedulerInterface) -> SchedulerOutput:
        """The next step.

        Raises:
            SchedulerError: it raised, or returned something else or what no worker can compute.
        """
        answer = self.call(scheduler, "schedule")
        output: SchedulerOutput = self._of_type(SchedulerOutput, "schedule", answer)
        fault = self._fault(output) if self._is_checked else None
        if fault is not None:
            raise SchedulerError(f"{self.who}: schedule returned a step {fault}")
        return output

    def _fault(self, output: SchedulerOutput) -> str | None:
        """What is wrong with the step in itself, in words; ``None``: nothing. The workers would
        fail at it, and nobody would know by whom."""
        counts = output.num_scheduled_tokens
        if output.total_num_scheduled_tokens != sum(counts.values()):
            return (
                f"with a total of {output.total_num_scheduled_tokens} tokens; its requests have "
                f"{sum(counts.values())}"
            )
        if output.total_num_scheduled_tokens > self._max_tokens:
            return (
                f"of {output.total_num_scheduled_tokens} tokens; max_num_batched_tokens is "
                f"{self._max_tokens}"
            )
        told = [new.req_id for new in output.scheduled_new_reqs]
        told += output.scheduled_cached_reqs.req_ids
        if sorted(told) != sorted(counts):
            one = min({*told} ^ {*counts}, default=max(told, key=told.count, default=""))
            return (
                f"in which request {one!r} does not stand once among the tokens and once among "
                "the new or the cached requests"
            )
        wrong = next((each for each, count in counts.items() if count < 1), None)
        return None if wrong is None else f"with {counts[wrong]} tokens for request {wrong!r}"

    def update(
        self, scheduler: SchedulerInterface, scheduled: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """What is to be told after the step.

        Raises:
            SchedulerError: it raised, or returned something else.
        """
        answer = self.call(scheduler, "update_from_output", scheduled, result)
        outputs: list[EngineCoreOutput] = self._of_type(list, "update_from_output", answer)
        return outputs

    def _of_type(self, kind: type, method: str, answer: Any) -> Any:
        if isinstance(answer, kind):
            return answer
        raise SchedulerError(
            f"{self.who}: {method} returned a {type(answer).__name__}; expected {kind.__name__}"
        )

    # -- a scheduler that chooses nobody --------------------------------------------------------

    def chose_somebody(self) -> None:
        self._nobody_since = None

    def chose_nobody(self, scheduler: SchedulerInterface) -> None:
        """Somebody waits, and nobody is computed: give it a moment, but not for ever.

        Raises:
            SchedulerError: it has been so for ``NOTHING_S``.
        """
        now = time.monotonic()
        if self._nobody_since is None:
            self._nobody_since = now
        if now - self._nobody_since >= NOTHING_S:
            count = self.call(scheduler, "get_num_unfinished_requests")
            raise SchedulerError(
                f"{self.who} has chosen nobody for {NOTHING_S:g} s while requests ({count}) wait; "
                "the engine ends"
            )
        time.sleep(NOTHING_PAUSE_S)
