"""Hooks around a step: who is served, who gives way, what is told; and that plugins which fail at
it change nobody's text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fake_engine import Collected, continuation, make_config, make_request
from hookserve.engine import scheduler_hooks, worker_hooks
from hookserve.engine.core import EngineCore
from hookserve.engine.request import Request
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.scheduler_guard import SchedulerError
from hookserve.engine.step import SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Host, PluginSettings, QueuedRequest, bootstrap, hookimpl

PROMPTS = {"a": [3, 1, 4, 1, 5], "b": [9, 2, 6], "c": [5, 3, 5, 8, 9, 7, 9]}
NEW_TOKENS = 24


def host_of(*plugins: object, **settings: Any) -> Host:
    return Host(["engine"], PluginSettings(**settings), plugins)


def scheduler_of(host: Host, **options: Any) -> Scheduler:
    config = make_config(**options)
    num_blocks = config.cache.num_gpu_blocks_override
    assert num_blocks is not None
    tree = VllmConfig.from_engine_config(config)
    return Scheduler(tree, num_blocks, config.cache.block_size, host.calls)


def add(scheduler: Scheduler, name: str, length: int, **options: Any) -> Request:
    prompt = [(len(scheduler.requests) * 7 + at) % 90 for at in range(length)]
    request = Request(make_request(name, prompt, max_tokens=60, **options), time.monotonic())
    assert scheduler.add_request(request) is None
    return request


def step(scheduler: Scheduler) -> list[str]:
    """Compute a step; who took part in it."""
    output = scheduler.schedule()
    names = list(output.num_scheduled_tokens)
    for name in names:
        request = scheduler.requests[name]
        if request.num_uncomputed_tokens == 0:
            request.append_token(1)
    scheduler.check_integrity()
    return names


def failures_of(host: Host, name: str) -> int:
    hook = host.calls.hooks[name]
    return sum(guard.errors for guard in (*hook.guards, *hook.switched_off))


# -- who waits ------------------------------------------------------------------------------------


class Reversed:
    """The last one first."""

    def __init__(self) -> None:
        self.asked: list[list[QueuedRequest]] = []

    @hookimpl
    def order_waiting(self, queue: list[QueuedRequest]) -> list[QueuedRequest]:
        self.asked.append(queue)
        return queue[::-1]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_an_order_counts_before_arrival_length_and_priority(policy: str) -> None:
    plugin = Reversed()
    scheduler = scheduler_of(host_of(plugin), max_num_seqs=1, policy=policy)
    for name, length in (("a", 3), ("b", 2), ("c", 9)):
        add(scheduler, name, length, priority="abc".index(name), cache_salt="s")
    assert step(scheduler) == ["c"]
    (asked,) = plugin.asked
    assert [view.request_id for view in asked] == ["a", "b", "c"]
    assert (asked[1].priority, asked[1].num_prompt_tokens, asked[1].cache_salt) == (1, 2, "s")
    assert abs(asked[1].arrival_time - time.time()) < 60
    scheduler.finish_requests("c", "abort")
    assert step(scheduler) == ["b"]


def test_several_are_taken_in_the_order_that_was_given() -> None:
    scheduler = scheduler_of(host_of(Reversed()), max_num_batched_tokens=16)
    for name in "abc":
        add(scheduler, name, 8)
    assert step(scheduler) == ["c", "b"]


def _awaited(queue: list[QueuedRequest]) -> Any:
    async def later() -> None: ...

    return later()


class _Short(list[Any]):
    def __len__(self) -> int:
        return super().__len__() - 1


WRONG_ORDERS: dict[str, Callable[[list[QueuedRequest]], Any]] = {
    "one is missing": lambda queue: queue[1:],
    "one stands twice": lambda queue: [queue[0], *queue[:-1]],
    "ids alone": lambda queue: [view.request_id for view in queue],
    "a generator": lambda queue: (view for view in reversed(queue)),
    "a text": lambda queue: "bac",
    "more than it says": lambda queue: _Short([*queue, queue[0]]),
    "to be awaited": _awaited,
    "an exit": lambda queue: exit(),
}


@pytest.mark.parametrize("wrong", WRONG_ORDERS)
def test_an_order_that_is_none_changes_nothing(
    wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong:
        @hookimpl
        def order_waiting(self, queue: list[QueuedRequest]) -> Any:
            return WRONG_ORDERS[wrong](queue)

    host = host_of(Wrong())
    scheduler = scheduler_of(host, max_num_seqs=1)
    for name in "abc":
        add(scheduler, name, 4)
    assert step(scheduler) == ["a"]
    assert failures_of(host, "order_waiting") == 1
    for _ in range(6):
        assert step(scheduler) == ["a"]
    assert not host.calls.hooks["order_waiting"].guards, "still asked after five failures"
    assert caplog.text.count("failed in order_waiting, and the default is kept") == 1


def test_a_slow_order_counts_once(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Reversed):
        @hookimpl
        def order_waiting(self, queue: list[QueuedRequest]) -> list[QueuedRequest]:
            time.sleep(0.05)
            return queue[::-1]

    host = host_of(Slow(), step_hook_timeout_s=0.02)
    scheduler = scheduler_of(host, max_num_seqs=1)
    for name in "abc":
        add(scheduler, name, 4)
    assert step(scheduler) == ["c"]
    assert "hook order_waiting is switched off" in caplog.text
    scheduler.finish_requests("c", "abort")
    assert step(scheduler) == ["a"]


# -- who gives way --------------------------------------------------------------------------------


class Oldest:
    @hookimpl
    def select_victim(self, running: list[QueuedRequest]) -> str:
        return running[0].request_id


def shortage(scheduler: Scheduler) -> tuple[list[str], set[str]]:
    """Two requests decode until there is no block left; who goes on, and who gave way."""
    for name in "ab":
        add(scheduler, name, 7)
    for _ in range(20):
        before = [request.request_id for request in scheduler.running]
        names = step(scheduler)
        gone = set(before) - {request.request_id for request in scheduler.running}
        if gone:
            return names, gone
    raise AssertionError("there is no shortage")


def test_a_victim_may_be_one_that_has_its_block_already() -> None:
    """The first of two finds a block, the second none: it is the first that gives way."""
    assert shortage(scheduler_of(host_of(), num_blocks=5)) == (["a"], {"b"})
    assert shortage(scheduler_of(host_of(Oldest()), num_blocks=5)) == (["b"], {"a"})


@pytest.mark.parametrize("answer", ["nobody", 7, ["a"], b"a"])
def test_a_victim_that_does_not_run_is_a_failure(answer: Any) -> None:
    class Wrong:
        @hookimpl
        def select_victim(self) -> Any:
            return answer

    host = host_of(Wrong())
    assert shortage(scheduler_of(host, num_blocks=5)) == (["a"], {"b"})
    assert failures_of(host, "select_victim") == 1


def test_the_next_plugin_is_asked_where_one_fails_or_does_not_care() -> None:
    class Careless:
        @hookimpl(tryfirst=True)
        def select_victim(self, running: list[QueuedRequest]) -> str | None:
            return None if len(running) < 9 else "x"

    assert shortage(scheduler_of(host_of(Careless(), Oldest()), num_blocks=5)) == (["b"], {"a"})


# -- what is told ---------------------------------------------------------------------------------


def test_where_nobody_asks_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*args: Any) -> Any:
        raise AssertionError("a view or a copy is made for nobody")

    monkeypatch.setattr(scheduler_hooks, "view_of", unexpected)
    monkeypatch.setattr(scheduler_hooks, "copy", SimpleNamespace(deepcopy=unexpected))
    monkeypatch.setattr(worker_hooks, "StepBatch", unexpected)
    assert shortage(scheduler_of(host_of(), num_blocks=5)) == (["a"], {"b"})
    with serving() as core:
        assert texts(core) == EXPECTED


EXPECTED = {name: continuation(prompt, NEW_TOKENS) for name, prompt in PROMPTS.items()}


class serving:
    """An engine core of its own over the fake model, with plugins."""

    def __init__(self, *plugins: object, **settings: Any) -> None:
        self._threads = torch.get_num_threads()
        self.host = bootstrap(["engine", "worker"], PluginSettings(**settings), objects=plugins)

    def __enter__(self) -> EngineCore:
        config = make_config(num_blocks=14, max_num_batched_tokens=16)
        core = EngineCore(VllmConfig.from_engine_config(config), self.host)
        torch.set_num_threads(1)
        return core

    def __exit__(self, *error: object) -> None:
        self.host.close()
        torch.set_num_threads(self._threads)


def texts(core: EngineCore) -> dict[str, list[int]]:
    for name, prompt in PROMPTS.items():
        core.add_request(make_request(name, prompt, max_tokens=NEW_TOKENS, ignore_eos=True))
    collected = Collected()
    for _ in range(1000):
        if not core.has_work():
            return collected.tokens
        collected.add(core.step().outputs)
        core.scheduler.check_integrity()
    raise AssertionError("the engine does not come to an end")


class Watching:
    def __init__(self) -> None:
        self.scheduled: list[SchedulerOutput] = []
        self.begun: list[Any] = []
        self.ended: list[Any] = []

    @hookimpl
    def after_schedule(self, output: SchedulerOutput) -> None:
        self.scheduled.append(output)

    @hookimpl
    def before_step(self, batch: Any) -> None:
        self.begun.append(batch)

    @hookimpl
    def after_step(self, batch: Any, output: Any) -> None:
        self.ended.append((batch, output))


def test_each_step_is_told_where_it_is_chosen_and_where_it_is_computed() -> None:
    plugin = Watching()
    with serving(plugin) as core:
        assert texts(core) == EXPECTED
        num_steps = core.num_steps
    assert len(plugin.scheduled) == len(plugin.begun) == len(plugin.ended) == num_steps
    assert [batch.step for batch in plugin.begun] == list(range(1, num_steps + 1))
    assert sum(batch.num_new_requests for batch in plugin.begun) == len(PROMPTS)
    for scheduled, begun, (ended, output) in zip(
        plugin.scheduled, plugin.begun, plugin.ended, strict=True
    ):
        assert begun is ended
        assert begun.num_scheduled_tokens == scheduled.num_scheduled_tokens
        assert set(output.req_ids) == scheduled.num_scheduled_tokens.keys()
    sampled = [
        dict(zip(output.req_ids, output.sampled_token_ids, strict=True))
        for _, output in plugin.ended
    ]
    for name, tokens in EXPECTED.items():
        assert [token for each in sampled for token in each.get(name, [])] == tokens


def _meddle(output: Any) -> None:
    """Change everything that can be changed."""
    for value in [output, *(getattr(output, name) for name in getattr(output, "__slots__", ()))]:
        if isinstance(value, dict | list | set):
            value.clear()


def _sleep(*args: Any) -> None:
    time.sleep(0.05)


def _raise(*args: Any) -> None:
    raise LookupError("no such trace")


def _leave(*args: Any) -> None:
    raise SystemExit(3)


FAULTS = {"raises": _raise, "leaves": _leave, "sleeps": _sleep, "meddles": _meddle}
"""``_meddle`` is called with what a hook is given last."""


@pytest.mark.parametrize("hook", ["after_schedule", "before_step", "after_step"])
@pytest.mark.parametrize("fault", FAULTS)
def test_three_streams_go_on_unchanged_beside_an_observer_that_fails(
    fault: str, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    act = FAULTS[fault]

    class Faulty:
        if hook == "after_schedule":

            @hookimpl
            def after_schedule(self, output: Any) -> None:
                act(output)

        elif hook == "before_step":

            @hookimpl
            def before_step(self, batch: Any) -> None:
                act(batch.num_scheduled_tokens if fault == "meddles" else batch)

        else:

            @hookimpl
            def after_step(self, batch: Any, output: Any) -> None:
                act(output)

    with serving(Faulty(), step_hook_timeout_s=0.03) as core:
        try:
            said: Any = texts(core)
        except SchedulerError as error:  # what it would be if the observer spoilt the step
            said = error
        assert said == EXPECTED
        guards = core.host.calls.hooks[hook].guards
    assert bool(guards) is (fault == "meddles")
    assert ("is switched off" in caplog.text) is (fault != "meddles")


def test_a_model_that_a_plugin_refuses_is_loaded_again_without_it(
    tiny_llama: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from hookserve.engine import LLM
    from hookserve.hookspecs.errors import RequiredPluginError

    class Refusing:
        def __init__(self) -> None:
            self.seen: list[str] = []

        @hookimpl
        def model_loaded(self, model: Any, config: Any) -> None:
            self.seen.append(f"{type(model).__name__} of {config.model_config.architectures}")
            raise LookupError("not this one")

    plugin = Refusing()
    llm = LLM(str(tiny_llama), plugins=[plugin], kv_cache_memory_bytes=1 << 20)
    try:
        assert plugin.seen == ["LlamaForCausalLM of ['LlamaForCausalLM']"]
        assert "hook model_loaded raised LookupError: not this one" in caplog.text
    finally:
        llm.shutdown()
    settings = PluginSettings(require=("Refusing",))
    with pytest.raises(RequiredPluginError, match="model_loaded raised LookupError"):
        LLM(str(tiny_llama), plugins=[Refusing()], plugin_settings=settings)


@pytest.fixture(autouse=True)
def one_thread(torch_threads: None) -> Iterator[None]:
    yield
