"""How the host calls hooks: collect, first, pipeline, notify, each implementation in its guard.

pluggy's own calls drop the owner and stop all at the first exception; these know whose code runs,
catch what it raises (only a real interrupt or cancellation passes) and apply the hook's failure
policy. Built once after bootstrap. What a plugin's failure leads to is the host's, through
``Refuse``.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import Any, NoReturn

from .context import PluginContext, enter
from .errors import PluginError, describe_error
from .markers import HookInfo
from .notify_loop import SAMPLE_MASK, caught, compile_loop
from .owned import Owned as Owned
from .plugin import Implementation, Plugin
from .plugin_thread import Outcome, PluginThread
from .request_calls import RequestCalls
from .step_calls import StepCalls
from .types import RequestRecord, Role

logger = logging.getLogger(__name__)

OBSERVE_FAILURES = 5
OBSERVE_WINDOW_S = 60.0
FRONT_BUDGET_S = 5.0
MAX_DECLARATIONS = 10_000
"""Of one hook of one plugin; more is a generator without an end."""

Refuse = Callable[[Plugin, HookInfo, str, BaseException], None]
"""``(plugin, hook, stage, error)``: puts the plugin out, or raises if the start must stop."""


class Guard:
    """One implementation of one hook, with its owner and its counters."""

    __slots__ = (
        "buffers",
        "call",
        "errors",
        "failures",
        "is_coroutine",
        "plugin",
        "sampled",
        "sampled_s",
        "thread",
    )

    def __init__(
        self,
        plugin: Plugin,
        call: Callable[..., Any],
        *,
        is_coroutine: bool = False,
        buffers: bool = False,
    ) -> None:
        self.plugin = plugin
        self.call = call
        """Takes the specification's arguments (without ``ctx``) by position."""
        self.is_coroutine = is_coroutine
        self.buffers = buffers
        """Whoever calls it collects the text, and calls once."""
        self.thread = PluginThread(f"plugin {plugin.identity}")
        self.errors = 0
        self.sampled = 0
        self.sampled_s = 0.0
        self.failures: deque[float] = deque(maxlen=OBSERVE_FAILURES)

    def call_in_thread(self, args: tuple[Any, ...]) -> Future[Outcome]:
        def work() -> Any:
            with enter(self.plugin):
                return self.call(*args)

        return self.thread.call(work)


def bind(implementation: Implementation, context: PluginContext) -> Callable[..., Any]:
    """A callable that takes the hook's arguments by position and hands on those that the
    implementation wants, in its order. The common shape costs nothing: the function itself."""
    function, wanted = implementation.function, implementation.arguments
    arguments = implementation.info.arguments
    if wanted == arguments:
        return function
    sources = [None if name == "ctx" else arguments.index(name) for name in wanted]

    def adapted(*given: Any) -> Any:
        return function(*[context if at is None else given[at] for at in sources])

    return adapted


class Hook:
    """The implementations of one hook, in call order. An empty ``guards`` means that nobody
    implements it: callers on a hot path test that one attribute."""

    def __init__(
        self,
        info: HookInfo,
        guards: Iterable[Guard] = (),
        refuse: Refuse | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self.guards: tuple[Guard, ...] = tuple(guards)
        self.switched_off: tuple[Guard, ...] = ()
        self.count = 0
        self._refuse = refuse
        self._clock = clock
        self._warned: set[Plugin] = set()

    def withdraw(self, plugin: Plugin) -> None:
        """Call the plugin no more; a call in progress ends with the guards that it began with."""
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
                describe_error(error),
            )
        else:
            raise self.plugin_error(guard, error) from error

    def plugin_error(self, guard: Guard, error: BaseException) -> PluginError:
        message = f"hook {self.info.name} raised {describe_error(error)}"
        return PluginError(guard.plugin.identity, "run", message)

    async def answer(self, guard: Guard, *args: Any) -> Any:
        """One implementation's answer within the budget: of a coroutine function on the event loop,
        of a plain function in a thread of its own.

        Raises:
            TimeoutError: it took too long.
            whatever it raises: ``failed`` is the caller's to call.
        """
        import asyncio

        budget = asyncio.timeout(FRONT_BUDGET_S)
        try:
            with enter(guard.plugin):
                async with budget:
                    if guard.is_coroutine:
                        result = guard.call(*args)
                    else:
                        result = (await asyncio.wrap_future(guard.call_in_thread(args))).unwrap()
                    return await result if inspect.isawaitable(result) else result
        except caught() as error:
            if budget.expired():
                raise _too_long(FRONT_BUDGET_S) from error
            raise

    def answer_now(self, guard: Guard, *args: Any) -> Any:
        """One implementation's answer, for a caller that cannot wait.

        Raises:
            TypeError: it is an awaitable.
            whatever it raises: ``failed`` is the caller's to call.
        """
        with enter(guard.plugin):
            result = guard.call(*args)
            if inspect.isawaitable(result):
                _refuse_awaitable(self.info, result)
        return result

    def _observe(self, guard: Guard, error: BaseException) -> None:
        plugin = guard.plugin
        if plugin not in self._warned:
            self._warned.add(plugin)
            logger.warning(
                "plugin %s failed in %s; further failures are only counted",
                plugin.identity,
                self.info.name,
                exc_info=error,
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
                with enter(guard.plugin):
                    value = guard.call(*args)
                    if inspect.isgenerator(value):  # its body is the plugin's code too
                        value = list(islice(value, MAX_DECLARATIONS + 1))
                        if len(value) > MAX_DECLARATIONS:
                            raise ValueError(f"yielded more than {MAX_DECLARATIONS} declarations")
            except caught() as error:
                self.failed(guard, error, "register")
            else:
                answers.append(Owned(guard.plugin, value))
        return answers


class First(Hook):
    """Asked in order; the first answer that is not ``None`` counts. Called, each answer is awaited
    before the next is asked; ``ask`` is for a caller that cannot wait."""

    def ask(self, *args: Any) -> Owned | None:
        for guard in self.guards:
            try:
                with enter(guard.plugin):
                    value = guard.call(*args)
            except caught() as error:
                self.failed(guard, error)
            else:
                if value is not None:
                    return Owned(guard.plugin, value)
        return None

    async def __call__(self, *args: Any) -> Owned | None:
        for guard in self.guards:
            try:
                with enter(guard.plugin):
                    value = guard.call(*args)
                    if inspect.isawaitable(value):
                        value = await _within(value, FRONT_BUDGET_S)
            except caught() as error:
                self.failed(guard, error)
            else:
                if value is not None:
                    return Owned(guard.plugin, value)
        return None


class Pipeline(Hook):
    """Each gets the result of the one before; ``None`` means unchanged."""

    def __call__(self, value: Any, *rest: Any) -> Any:
        for guard in self.guards:
            try:
                with enter(guard.plugin):
                    changed = guard.call(value, *rest)
            except caught() as error:
                self.failed(guard, error)
            else:
                value = value if changed is None else changed
        return value

    async def run(self, value: Any, *rest: Any) -> Any:
        """The same, for hooks whose implementations may return an awaitable."""
        for guard in self.guards:
            try:
                with enter(guard.plugin):
                    changed = guard.call(value, *rest)
                    if inspect.isawaitable(changed):
                        changed = await _within(changed, FRONT_BUDGET_S)
            except caught() as error:
                self.failed(guard, error)
            else:
                value = value if changed is None else changed
        return value


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(info, guards, refuse, clock)
        self._swap(self.guards)

    def _swap(self, guards: Iterable[Guard]) -> None:
        super()._swap(guards)
        self.tell: Callable[..., None] = compile_loop(
            self, self.guards, self.info.arguments, FRONT_BUDGET_S
        )

    async def run(self, *args: Any) -> None:
        """Tell all at once from an event loop, each within the budget: coroutine functions on the
        loop, plain functions in threads of their own."""
        import asyncio

        self.count += 1
        await asyncio.gather(*[self._run_one(guard, args) for guard in self.guards])

    async def _run_one(self, guard: Guard, args: tuple[Any, ...]) -> None:
        import asyncio

        started = time.perf_counter()
        budget = asyncio.timeout(FRONT_BUDGET_S)
        try:
            with enter(guard.plugin):
                async with budget:
                    if guard.is_coroutine:
                        result = guard.call(*args)
                    else:
                        result = (await asyncio.wrap_future(guard.call_in_thread(args))).unwrap()
                    if inspect.isawaitable(result):
                        await result
        except caught() as error:
            self.failed(guard, _too_long(FRONT_BUDGET_S) if budget.expired() else error)
        elapsed_s = time.perf_counter() - started
        if not self.count & SAMPLE_MASK:
            guard.sampled += 1
            guard.sampled_s += elapsed_s
        if budget.expired() and not guard.is_coroutine:  # it still runs, and the next would wait
            self.slow(guard, elapsed_s)

    def tell_within(self, budget_s: float, *args: Any) -> None:
        """Tell all, one after the other, each in a thread of its own and within the budget."""
        for guard in self.guards:
            call = guard.call_in_thread(args)
            try:
                self.check(call.result(budget_s).unwrap())
            except caught() as error:
                self.failed(guard, error if call.done() else _too_long(budget_s))

    def slow(self, guard: Guard, elapsed_s: float) -> None:
        """A timed call took longer than the budget: an observer is not called again."""
        if self.info.failure == "observe":
            self.switch_off(guard, f"one call took {elapsed_s:.1f} s")

    def check(self, result: Any) -> None:
        """What an observer returns means nothing, unless somebody would have to wait for it.

        Raises:
            TypeError: it is an awaitable, and this hook's caller cannot wait.
        """
        if inspect.isawaitable(result):
            _refuse_awaitable(self.info, result)


def _refuse_awaitable(info: HookInfo, result: Any) -> NoReturn:
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError(f"hook {info.name} cannot wait, and was given an awaitable")


def _too_long(budget_s: float) -> TimeoutError:
    return TimeoutError(f"no end within {budget_s:g} s")


async def _within(awaitable: Awaitable[Any], budget_s: float) -> Any:
    import asyncio  # the command line never waits, and should not pay for this

    async with asyncio.timeout(budget_s):
        return await awaitable


HOOK_CLASSES: dict[str, type[Hook]] = {
    "collect": Collect,
    "first": First,
    "pipeline": Pipeline,
    "notify": Notify,
}


class Calls(RequestCalls, StepCalls):
    """A typed method for each hook that the host's users call; registration hooks are called by
    the host alone."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self.hooks = hooks
        self._started: set[Role] = set()
        self._request_finished = _notify(hooks, "request_finished")

    def process_started(self, roles: Iterable[Role], config: Any) -> None:
        """Tell every plugin which process this is; once for each role of the process.

        Raises:
            RequiredPluginError: if a plugin that must work fails.
        """
        told = frozenset(roles)
        assert not told & self._started, f"process_started was already called for {sorted(told)}"
        self._started |= told
        _notify(self.hooks, "process_started").tell(told, config)

    def cli_options(self, parser: ArgumentParser) -> ArgumentParser:
        """Let every plugin add its options to the parser.

        Raises:
            RequiredPluginError: if a plugin that must work fails.
        """
        hook = self.hooks["cli_options"]
        assert isinstance(hook, Pipeline)
        answer: ArgumentParser = hook(parser)
        return answer

    async def request_finished(self, record: RequestRecord) -> None:
        """Tell every plugin about a request that ended; never raises for a plugin."""
        hook = self._request_finished
        if hook.guards:
            await hook.run(record)

    def shutdown(self, roles: Iterable[Role]) -> None:
        """Tell every plugin that the process stops cleanly; never raises for a plugin.

        In front each has its time, and then the stop goes on. Other processes are ended by front.
        """
        hook, told = _notify(self.hooks, "shutdown"), frozenset(roles)
        if "front" in told:
            hook.tell_within(FRONT_BUDGET_S, told)
        else:
            hook.tell(told)

    def withdraw(self, plugin: Plugin) -> None:
        for hook in self.hooks.values():
            hook.withdraw(plugin)


def _notify(hooks: dict[str, Hook], name: str) -> Notify:
    hook = hooks[name]
    assert isinstance(hook, Notify)
    return hook
