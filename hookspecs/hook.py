"""How the host calls one hook: collect, first, notify, each implementation in its guard.

pluggy's own calls drop the owner and stop all at the first exception; these know whose code runs,
catch what it raises (only a real interrupt or cancellation passes) and apply the hook's failure
policy. Built once after bootstrap. What a plugin's failure leads to is the host's, through
``Refuse``; what may be answered is for the typed methods of ``calls`` to say.
"""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from itertools import islice
from time import perf_counter
from typing import Any

from .coarse_clock import CoarseClock
from .context import enter
from .deadline import OutOfTimeError, within
from .errors import PluginError, describe_error, exc_info_of, explain_error
from .guard import OBSERVE_FAILURES, OBSERVE_WINDOW_S, Guard
from .markers import HookInfo
from .notify_loop import NotifyLoop, caught
from .owned import Owned
from .plugin import Plugin
from .plugin_thread import Outcome

logger = logging.getLogger(__name__)

MAX_DECLARATIONS = 10_000
"""Of one hook of one plugin; more is a generator without an end."""

Refuse = Callable[[Plugin, HookInfo, str, BaseException], None]
"""``(plugin, hook, stage, error)``: puts the plugin out, or raises if the start must stop."""
Accept = Callable[[Any], Any]
"""Makes of an answer what the caller is given; raises for one that cannot be used."""


class Hook:
    """The implementations of one hook, in call order. An empty ``guards`` means that nobody
    implements it: callers on a hot path test that one attribute.

    Args:
        refuse: what the failure policy of that name does.
        budget_s: for one call of one implementation, seconds.
        coarse: for hooks that a loop calls at each step.
    """

    def __init__(
        self,
        info: HookInfo,
        guards: Iterable[Guard] = (),
        refuse: Refuse | None = None,
        *,
        budget_s: float = math.inf,
        coarse: CoarseClock | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self.guards: tuple[Guard, ...] = tuple(guards)
        self.switched_off: tuple[Guard, ...] = ()
        self.budget_s = budget_s
        self.coarse = coarse
        self._refuse = refuse
        self._clock = clock
        self._warned: set[Plugin] = set()

    def withdraw(self, plugin: Plugin) -> None:
        """Call the plugin no more; a call in progress ends with the guards that it began with."""
        if any(guard.plugin is plugin for guard in self.guards):
            self._swap(guard for guard in self.guards if guard.plugin is not plugin)

    def _swap(self, guards: Iterable[Guard]) -> None:
        self.guards = tuple(guards)

    def failed(self, guard: Guard, error: BaseException, stage: str = "run") -> None:
        """Apply the hook's failure policy.

        Raises:
            PluginError: under the policy ``request``.
            RequiredPluginError: under ``refuse``, if the start must stop.
        """
        guard.errors += 1
        explain_error(error, guard.plugin.explain)
        guard.last_error = describe_error(error)
        policy, plugin = self.info.failure, guard.plugin
        if policy == "refuse" and self._refuse is not None:
            self._refuse(plugin, self.info, stage, error)
        elif policy in ("observe", "default"):
            self._observe(guard, error)
        elif policy == "logged":
            logger.warning(
                "plugin %s failed in %s: %s",
                plugin.identity,
                self.info.name,
                guard.last_error,
            )
        else:
            raise self.plugin_error(guard, error) from error

    def plugin_error(self, guard: Guard, error: BaseException) -> PluginError:
        message = f"hook {self.info.name} raised {describe_error(error)}"
        return PluginError(guard.plugin.identity, "run", message)

    def calls_of(self, guard: Guard) -> int:
        """How often it was called so far."""
        return guard.calls

    async def answer(self, guard: Guard, *args: Any) -> Any:
        """One implementation's answer within the budget: of a coroutine function on the event loop,
        of a plain function in a thread of its own.

        Raises:
            TimeoutError: it took too long; or an earlier call of it did, and still runs.
            TypeError: it is not what the specification says.
            whatever it raises: ``failed`` is the caller's to call.
        """
        guard.calls += 1
        started = perf_counter()
        try:
            with enter(guard.plugin):
                if guard.is_coroutine:
                    result = guard.call(*args)
                else:
                    result = await self._from_thread(guard, args)
                if inspect.isawaitable(result):
                    result = await self._wait(guard, result, perf_counter() - started)
                self._check(result)
        finally:
            elapsed_s = perf_counter() - started
            guard.sample(elapsed_s)
        if guard.is_coroutine and elapsed_s > self.budget_s:  # it held the loop up itself
            self.slow(guard, elapsed_s)
            raise TimeoutError(f"it took {elapsed_s:.1f} s; it has {self.budget_s:g} s")
        return result

    async def _from_thread(self, guard: Guard, args: tuple[Any, ...]) -> Any:
        import asyncio  # the command line never waits, and should not pay for this

        call = guard.call_in_thread(args)
        budget = asyncio.timeout(self.budget_s)
        try:
            async with budget:
                outcome = await asyncio.wrap_future(call)
        except TimeoutError as error:
            if not call.done() or call.cancelled():
                raise self._given_up(guard, call) from error
            outcome = call.result()  # ended in time: somebody else held the loop up
        return outcome.unwrap()

    async def _wait(self, guard: Guard, result: Awaitable[Any], elapsed_s: float) -> Any:
        """What an implementation promised. It is not waited for longer, whatever it does with its
        cancellation."""
        try:
            if elapsed_s >= self.budget_s:
                _close(result)
                raise OutOfTimeError
            name = f"{self.info.name} of plugin {guard.plugin.identity}"
            return await within(self.budget_s - elapsed_s, result, name)
        except OutOfTimeError as error:
            raise self._given_up(guard, None) from error

    def _given_up(self, guard: Guard, call: Future[Outcome] | None) -> TimeoutError:
        """What is said of a call that is not waited for any more."""
        if call is not None and not guard.thread.leave(call, self.budget_s):
            return TimeoutError(
                f"no end within {self.budget_s:g} s, since it waited for the calls before it"
            )
        if call is not None:
            self.slow(guard, self.budget_s)
        return TimeoutError(f"no end within {self.budget_s:g} s")

    def answer_now(self, guard: Guard, *args: Any) -> Any:
        """One implementation's answer, for a caller that cannot wait.

        Raises:
            TypeError: it is an awaitable, or not what the specification says.
            whatever it raises: ``failed`` is the caller's to call.
        """
        guard.calls += 1
        started = perf_counter()
        try:
            with enter(guard.plugin):
                result = guard.call(*args)
                if result is not None:
                    self.refuse_awaitable(result)
                    self._check(result)
                return result
        finally:
            elapsed_s = perf_counter() - started
            guard.sample(elapsed_s)
            if elapsed_s > self.budget_s:
                self.slow(guard, elapsed_s)

    def refuse_awaitable(self, result: Any) -> None:
        """
        Raises:
            TypeError: somebody would have to wait for the result, and this hook's caller cannot.
        """
        if not inspect.isawaitable(result):
            return
        _close(result)
        raise TypeError(f"hook {self.info.name} cannot wait, and was given an awaitable")

    def _check(self, result: Any) -> None:
        expects = self.info.expects
        if not expects or result is None or isinstance(result, expects):
            return
        wanted = ", ".join(expected.__name__ for expected in expects)
        raise TypeError(
            f"{self.info.name} returned a {type(result).__name__}; expected {wanted} or None"
        )

    def slow(self, guard: Guard, elapsed_s: float) -> None:
        """A call took longer than the budget: what can be done without is not called again."""
        if self.info.failure in ("observe", "default"):
            self.switch_off(guard, f"one call took {elapsed_s:.2g} s; it has {self.budget_s:g} s")

    def _observe(self, guard: Guard, error: BaseException) -> None:
        plugin = guard.plugin
        if plugin not in self._warned:
            self._warned.add(plugin)
            logger.warning(
                "plugin %s failed in %s%s; further failures are only counted",
                plugin.identity,
                self.info.name,
                ", and the default is kept" if self.info.failure == "default" else "",
                exc_info=exc_info_of(error),
            )
        now = self._clock()
        guard.failures.append(now)
        if len(guard.failures) == OBSERVE_FAILURES and now - guard.failures[0] <= OBSERVE_WINDOW_S:
            self.switch_off(guard, f"{OBSERVE_FAILURES} failures in {OBSERVE_WINDOW_S:.0f} s")

    def switch_off(self, guard: Guard, reason: str) -> None:
        """Stop calling one implementation; its plugin's other hooks go on."""
        if guard not in self.guards:
            return
        self._swap(other for other in self.guards if other is not guard)
        self.switched_off += (guard,)
        logger.error(
            "plugin %s: hook %s is switched off: %s",
            guard.plugin.identity,
            self.info.name,
            reason,
        )


class Collect(Hook):
    """Every implementation's answer, with its owner; a failing one is left out."""

    def __call__(self, *args: Any) -> list[Owned]:
        answers = []
        for guard in self.guards:
            try:
                value = self.answer_now(guard, *args)
                if inspect.isgenerator(value):  # its body is the plugin's code too
                    with enter(guard.plugin):
                        value = list(islice(value, MAX_DECLARATIONS + 1))
                    if len(value) > MAX_DECLARATIONS:
                        raise ValueError(f"yielded more than {MAX_DECLARATIONS} declarations")
            except caught() as error:
                self.failed(guard, error, "register")
            else:
                answers.append(Owned(guard.plugin, value))
        return answers


class First(Hook):
    """Asked in order; the first answer that is not ``None`` counts. One that ``accept`` raises for
    is its plugin's failure."""

    async def ask(self, accept: Accept, *args: Any) -> Owned | None:
        """Each answer is awaited before the next is asked."""
        for guard in self.guards:
            try:
                value = await self.answer(guard, *args)
                if value is not None:
                    return Owned(guard.plugin, accept(value))
            except caught() as error:
                self.failed(guard, error)
        return None

    def ask_now(self, accept: Accept, *args: Any) -> Owned | None:
        """The same, for a caller that cannot wait."""
        for guard in self.guards:
            try:
                value = self.answer_now(guard, *args)
                if value is not None:
                    return Owned(guard.plugin, accept(value))
            except caught() as error:
                self.failed(guard, error)
        return None


class Notify(Hook):
    """Each is told, guarded alone.

    ``tell(*arguments)`` tells all, one after the other; it is compiled anew when the set of
    implementations changes (``notify_loop``). ``run`` and ``tell_within`` are for processes that
    must not be held up.
    """

    def __init__(
        self,
        info: HookInfo,
        guards: Iterable[Guard] = (),
        refuse: Refuse | None = None,
        *,
        budget_s: float = math.inf,
        coarse: CoarseClock | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(info, guards, refuse, budget_s=budget_s, coarse=coarse, clock=clock)
        self._loop = NotifyLoop(self, self.guards, self.coarse)

    @property
    def tell(self) -> Callable[..., None]:
        return self._loop.tell

    def _swap(self, guards: Iterable[Guard]) -> None:
        super()._swap(guards)
        self._loop.end()
        self._loop = NotifyLoop(self, self.guards, self.coarse)

    def calls_of(self, guard: Guard) -> int:
        return guard.calls + (self._loop.count if guard in self.guards else 0)

    async def run(self, *args: Any) -> None:
        """Tell all at once from an event loop, each within the budget: coroutine functions on the
        loop, plain functions in threads of their own."""
        import asyncio

        await asyncio.gather(*[self._run_one(guard, args) for guard in self.guards])

    async def _run_one(self, guard: Guard, args: tuple[Any, ...]) -> None:
        try:
            await self.answer(guard, *args)
        except caught() as error:
            self.failed(guard, error)

    def tell_within(self, *args: Any) -> None:
        """Tell all, one after the other, each in a thread of its own and within the budget."""
        for guard in self.guards:
            guard.calls += 1
            try:
                call = guard.call_in_thread(args)
                try:
                    outcome = call.result(self.budget_s)
                except TimeoutError:
                    raise self._given_up(guard, call) from None
                if outcome.error is not None:  # the plugin's, also where it looks like a signal
                    self.failed(guard, outcome.error)
                else:
                    self.refuse_awaitable(outcome.result)
            except caught() as error:
                self.failed(guard, error)


def _close(awaitable: Awaitable[Any]) -> None:
    """A coroutine that is thrown away without having been awaited is a warning."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()


HOOK_CLASSES: dict[str, type[Hook]] = {
    "collect": Collect,
    "first": First,
    "pipeline": Hook,
    "notify": Notify,
}


def first(hooks: Mapping[str, Hook], name: str) -> First:
    hook = hooks[name]
    assert isinstance(hook, First)
    return hook


def notify(hooks: Mapping[str, Hook], name: str) -> Notify:
    hook = hooks[name]
    assert isinstance(hook, Notify)
    return hook
