"""The hooks around one step of the engine and one load of a model: what may be answered.

A wrong answer is its plugin's failure, as an exception is; the next plugin is then asked as if the
one that failed had said nothing. How one implementation is called, and for how long, is ``hook``'s;
what an order, a victim or a stream of weights means is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from .context import enter
from .errors import causes_of
from .hook import first, notify
from .notify_loop import caught
from .owned import Owned
from .step_types import QueuedRequest, StepBatch

if TYPE_CHECKING:
    from .guard import Guard
    from .hook import Hook


class StepCalls:
    """A typed method for each of these hooks; a base of ``Calls``. Whoever calls one at each step
    looks first whether anybody implements it."""

    hooks: dict[str, Hook]

    def order_waiting(self, queue: list[QueuedRequest]) -> list[QueuedRequest]:
        """The queue in the order that plugins want; the same list where none wants another."""
        hook = self.hooks["order_waiting"]
        for guard in hook.guards:
            try:
                answer = hook.answer_now(guard, list(queue))
                if answer is not None:
                    queue = _reordered(queue, answer)
            except caught() as error:
                hook.failed(guard, error)
        return queue

    def select_victim(self, running: list[QueuedRequest]) -> Owned | None:
        """The id of one of ``running``, and who chose it; ``None``: no plugin chooses."""
        hook = first(self.hooks, "select_victim")
        return hook.ask_now(partial(_victim, running), list(running))

    def after_schedule(self, output: Any) -> None:
        """Tell what the next step computes (``SchedulerOutput``)."""
        notify(self.hooks, "after_schedule").tell(output)

    def before_step(self, batch: StepBatch) -> None:
        """Tell what this worker computes now."""
        notify(self.hooks, "before_step").tell(batch)

    def after_step(self, batch: StepBatch, output: Any) -> None:
        """Tell what this worker has computed (``ModelRunnerOutput``)."""
        notify(self.hooks, "after_step").tell(batch, output)

    def compile_cache_key(self, config: Any) -> list[str]:
        """What plugins say that compiled code depends on, each with the plugin's identity.

        Raises:
            RequiredPluginError: if a plugin that must work fails.
        """
        hook = self.hooks["compile_cache_key"]
        keys = []
        for guard in hook.guards:
            try:
                key = hook.answer_now(guard, config)
            except caught() as error:
                hook.failed(guard, error)
            else:
                if key is not None:
                    keys.append(f"{guard.plugin.identity}={key}")
        return keys

    def model_loaded(self, model: Any, config: Any) -> None:
        """Tell that the weights are in.

        Raises:
            RequiredPluginError: if a plugin that must work fails.
        """
        notify(self.hooks, "model_loaded").tell(model, config)

    def weights(
        self, iterator: Iterator[tuple[str, Any]], config: Any
    ) -> Iterator[tuple[str, Any]]:
        """The stream as plugins change it; the same iterator where none does.

        Raises:
            RequiredPluginError: if a plugin that must work fails, now or while it is read.
            PluginError: while it is read, if another plugin does; it is out by then.
        """
        hook = self.hooks["weights"]
        for guard in hook.guards:
            given = _Source(iterator)
            try:
                answer = hook.answer_now(guard, given, config)
                if answer is not None:
                    iterator = _Stream(hook, guard, given, iter(answer))
            except caught() as error:
                hook.failed(guard, error)
        return iterator


class _Source:
    """What a plugin is given to read; remembers what was raised behind it, which is not the
    plugin's."""

    def __init__(self, items: Iterator[tuple[str, Any]]) -> None:
        self._items = items
        self.error: BaseException | None = None

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> tuple[str, Any]:
        try:
            with enter(None):
                return next(self._items)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise


class _Stream:
    """What a plugin makes of its source. Its code runs whenever this is read."""

    def __init__(
        self, hook: Hook, guard: Guard, source: _Source, items: Iterator[tuple[str, Any]]
    ) -> None:
        self._hook, self._guard, self._source, self._items = hook, guard, source, items

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> tuple[str, Any]:
        try:
            with enter(self._guard.plugin):
                item = next(self._items)
            _check_weight(item)
        except StopIteration:
            if self._source.error is not None:  # swallowed: the rest of the weights is missing
                raise self._source.error from None
            raise
        except caught() as error:
            if self._source.error is not None and _is_behind(self._source.error, error):
                raise self._source.error from None
            self._hook.failed(self._guard, error)
            raise self._hook.plugin_error(self._guard, error) from error
        return item


def _is_behind(cause: BaseException, error: BaseException) -> bool:
    """Whether ``error`` is ``cause``, or was raised while it was handled."""
    return any(each is cause for each in causes_of(error, contexts=True))


def _reordered(queue: list[QueuedRequest], answer: object) -> list[QueuedRequest]:
    """Our own views in the plugin's order; raises for an answer that is none."""
    if not isinstance(answer, list | tuple):
        raise TypeError(
            f"order_waiting returned a {type(answer).__name__}; expected the list of the waiting "
            "requests in another order, or None"
        )
    answer = list(answer)  # read once: a class of the plugin's may say another length than it has
    ids = [view.request_id for view in answer if isinstance(view, QueuedRequest)]
    mine = {view.request_id: view for view in queue}
    if len(answer) != len(queue) or set(ids) != mine.keys():
        raise ValueError(
            f"order_waiting returned {len(answer)} entries, {len(mine.keys() & set(ids))} of the "
            f"waiting requests among them; expected each of the {len(queue)} once"
        )
    return [mine[request_id] for request_id in ids]


def _victim(running: list[QueuedRequest], answer: object) -> str:
    """The id; raises for an answer that is none."""
    if type(answer) is not str:
        raise TypeError(
            f"select_victim returned a {type(answer).__name__}; expected a request id or None"
        )
    if all(view.request_id != answer for view in running):
        raise ValueError(
            f"select_victim returned {answer[:100]!r}, which is none of the {len(running)} "
            "running requests"
        )
    return answer


def _check_weight(item: object) -> None:
    if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)):
        raise TypeError(
            f"weights yielded a {type(item).__name__}; expected pairs of a name and a tensor"
        )
