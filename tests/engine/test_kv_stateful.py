"""The scheduler's blocks under random events, seen from the worker's side.

There is no model: ``Worker`` below keeps tables and slots as a worker does, from what the
scheduler sends and nothing else, and remembers what was computed into each slot. So it sees a slot
that is read before it is written or written twice, a block of two owners, and a prefix that is
another tenant's. With an ``Adversary`` a plugin shuffles who waits and picks any victim.
"""

from __future__ import annotations

import functools
import random
import time

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fake_engine import VOCAB, make_config, make_request
from hookserve.engine.request import Request
from hookserve.engine.scheduler import Scheduler
from hookserve.engine.step import ModelRunnerOutput, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Host, PluginSettings, QueuedRequest, hookimpl
from hookserve.hookspecs.calls import Calls

SALTS = (None, "a", "b")


class Adversary:
    """Answers that are allowed, and as bad as they come."""

    def __init__(self) -> None:
        self.draw = random.Random()
        self.num_orders = self.num_victims = 0

    @hookimpl
    def order_waiting(self, queue: list[QueuedRequest]) -> list[QueuedRequest]:
        self.num_orders += 1
        return self.draw.sample(queue, len(queue))

    @hookimpl
    def select_victim(self, running: list[QueuedRequest]) -> str:
        self.num_victims += 1
        return self.draw.choice(running).request_id


ADVERSARY = Adversary()


@functools.cache
def adversarial_calls() -> Calls:
    return Host(["engine"], PluginSettings(), [ADVERSARY]).calls


class Sequence:
    """A request as a worker knows it, and what the cache must hold of it."""

    def __init__(self, salt: str | None) -> None:
        self.tokens: list[int] = []
        self.contents: list[int] = []
        """For each token a number that stands for the salt and all tokens up to it."""
        self.table: list[int] = []
        self.salt = salt

    def append(self, token: int) -> None:
        before = self.contents[-1] if self.contents else SALTS.index(self.salt)
        self.tokens.append(token)
        self.contents.append(hash((before, token)))


class Worker:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks + 1)]
        self.live: dict[str, Sequence] = {}
        self.preempted: dict[str, Sequence] = {}
        self.num_computed = 0

    def run(self, output: SchedulerOutput, salts: dict[str, str | None]) -> dict[str, int]:
        """Compute a step; the tokens that it samples, by request."""
        for block_id in output.new_block_ids_to_zero:
            self.slots[block_id] = [None] * self.block_size
        for req_id in output.finished_req_ids:
            self.live.pop(req_id, None)
            self.preempted.pop(req_id, None)
        for req_id in output.preempted_req_ids & self.live.keys():
            self.preempted[req_id] = self.live.pop(req_id)
        starts = self._follow(output, salts)
        for req_id, start in starts.items():
            self._write(self.live[req_id], start, start + output.num_scheduled_tokens[req_id])
        sampled = {}
        for req_id, start in starts.items():
            sequence = self.live[req_id]
            end = start + output.num_scheduled_tokens[req_id]
            assert self._read(sequence, end) == sequence.contents[:end], req_id
            if end == len(sequence.tokens):
                sampled[req_id] = (7 * end + sum(sequence.tokens)) % VOCAB
                sequence.append(sampled[req_id])
        return sampled

    def _follow(self, output: SchedulerOutput, salts: dict[str, str | None]) -> dict[str, int]:
        """Let tables and tokens follow; where each scheduled request's step begins."""
        starts = {}
        for new in output.scheduled_new_reqs:
            assert new.req_id not in self.live
            self.live[new.req_id] = sequence = Sequence(salts[new.req_id])
            for token in new.prompt_token_ids:
                sequence.append(token)
            self._grow(sequence, new.block_ids, new.num_computed_tokens)
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for req_id, tokens in cached.all_token_ids.items():
            self.live[req_id] = sequence = self.preempted.pop(req_id)
            assert list(tokens) == sequence.tokens
            sequence.table = []
        for req_id, block_ids in cached.new_block_ids.items():
            self._grow(self.live[req_id], block_ids, starts[req_id])
        assert starts.keys() == output.num_scheduled_tokens.keys()
        return starts

    def _grow(self, sequence: Sequence, block_ids: list[int], num_computed: int) -> None:
        """Blocks behind what is computed are the sequence's own, and empty from now on."""
        for block_id in block_ids:
            if len(sequence.table) * self.block_size >= num_computed:
                owners = [one for one in self.live.values() if block_id in one.table]
                assert not owners, f"block {block_id} is another's"
                assert block_id != 0
                self.slots[block_id] = [None] * self.block_size
            sequence.table.append(block_id)

    def _write(self, sequence: Sequence, start: int, end: int) -> None:
        for position in range(start, end):
            block = self.slots[sequence.table[position // self.block_size]]
            offset = position % self.block_size
            assert block[offset] is None, f"position {position} is computed twice"
            block[offset] = sequence.contents[position]
            self.num_computed += 1

    def _read(self, sequence: Sequence, end: int) -> list[int | None]:
        cells = [cell for block_id in sequence.table for cell in self.slots[block_id]]
        return cells[:end]


class Simulation:
    """A scheduler, its worker, and the events between them."""

    def __init__(
        self,
        num_blocks: int = 12,
        block_size: int = 4,
        max_model_len: int = 64,
        prefix_caching: bool = True,
        policy: str = "fcfs",
        seed: int | None = None,
    ) -> None:
        """
        Args:
            seed: of the adversary; ``None``: there is none.
        """
        ADVERSARY.draw.seed(seed)
        config = make_config(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=3,
            max_num_batched_tokens=10,
            max_model_len=max_model_len,
            prefix_caching=prefix_caching,
        )
        changed = msgspec.structs.replace(config.scheduler, policy=policy)
        config = msgspec.structs.replace(config, scheduler=changed)
        self.scheduler = Scheduler(
            VllmConfig.from_engine_config(config),
            num_blocks,
            block_size,
            None if seed is None else adversarial_calls(),
        )
        self.worker = Worker(num_blocks, block_size)
        self.salts: dict[str, str | None] = {}
        self.told: dict[str, list[int]] = {}
        self.num_preempted = self.num_hits = 0

    def submit(
        self, length: int, family: int, max_tokens: int, salt: str | None, priority: int
    ) -> None:
        """Prompts of one family begin alike."""
        name = f"r{len(self.salts)}"
        self.salts[name] = salt
        prompt = [(family * 31 + at) % 90 for at in range(length)]
        message = make_request(name, prompt, max_tokens=max_tokens, cache_salt=salt)
        message = msgspec.structs.replace(message, priority=priority)
        refusal = self.scheduler.add_request(Request(message, time.monotonic()))
        assert (refusal is None) == (length < self.scheduler.max_num_tokens)

    def live(self) -> list[str]:
        return sorted(self.scheduler.requests)

    def step(self, ended: dict[str, str] | None = None, failed: str | None = None) -> None:
        """One step.

        Args:
            ended: reasons by request that ends from outside while the step is computed.
            failed: a request that the worker reports as failed, if it is in the step.
        """
        if not self.scheduler.requests:
            return
        output = self.scheduler.schedule()
        assert 0 < output.total_num_scheduled_tokens <= self.scheduler.max_num_batched_tokens
        sampled = self.worker.run(output, self.salts)
        for name, reason in (ended or {}).items():
            self.scheduler.finish_requests(name, reason)
        req_ids = list(output.num_scheduled_tokens)
        errors = {failed: "failed"} if failed in req_ids else {}
        tokens = [[sampled[name]] if name in sampled else [] for name in req_ids]
        result = ModelRunnerOutput(req_ids, tokens, errors=errors)
        for told in self.scheduler.update_from_output(output, result):
            assert told.request_id not in (ended or {})
            self.told.setdefault(told.request_id, []).extend(told.new_token_ids)
            assert (told.error is not None) == (told.request_id in errors)
        for name, request in self.scheduler.requests.items():
            sequence = self.worker.live.get(name) or self.worker.preempted.get(name)
            assert sequence is None or sequence.tokens == list(request.token_ids), name
        stats = self.scheduler.make_stats(0)
        self.num_preempted += stats.num_preempted_reqs
        self.num_hits += stats.prefix_cache_hits
        self.check()

    def end(self, name: str, reason: str) -> None:
        self.scheduler.finish_requests(name, reason)
        self.check()

    def check(self) -> None:
        self.scheduler.check_integrity()
        blocks: dict[str | None, set[int]] = {salt: set() for salt in SALTS}
        for name, request in self.scheduler.requests.items():
            blocks[self.salts[name]].update(request.block_ids)
        total = sum(len(some) for some in blocks.values())
        assert total == len(set().union(*blocks.values())), "a block of two salts"
        assert total == self.scheduler.kv_cache.pool.num_held

    def finish(self) -> None:
        """Step until nobody is left: then every block is free."""
        for _ in range(10_000):
            if not self.scheduler.requests:
                break
            self.step()
        assert not self.scheduler.requests, "the scheduler does not come to an end"
        self.check()
        assert self.scheduler.make_stats(0).kv_cache_usage == 0.0


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        blocks=st.sampled_from([(12, 4), (1, 4), (3, 1), (12, 4)]),
        max_model_len=st.sampled_from([64, 24]),
        prefix_caching=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority"]),
        seed=st.none() | st.integers(0, 9),
    )
    def start(
        self,
        blocks: tuple[int, int],
        max_model_len: int,
        prefix_caching: bool,
        policy: str,
        seed: int | None,
    ) -> None:
        self.simulation = Simulation(*blocks, max_model_len, prefix_caching, policy, seed)

    @rule(
        length=st.integers(1, 50),
        family=st.integers(0, 2),
        max_tokens=st.integers(1, 30),
        salt=st.sampled_from(SALTS),
        priority=st.integers(0, 2),
    )
    def submit(self, **asked: int) -> None:
        self.simulation.submit(**asked)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()

    @precondition(lambda self: self.simulation.live())
    @rule(data=st.data(), reason=st.sampled_from(["abort", "stop"]))
    def end(self, data: st.DataObject, reason: str) -> None:
        self.simulation.end(data.draw(st.sampled_from(self.simulation.live())), reason)

    @precondition(lambda self: self.simulation.live())
    @rule(data=st.data(), reason=st.sampled_from(["abort", "stop"]))
    def end_within_a_step(self, data: st.DataObject, reason: str) -> None:
        name = data.draw(st.sampled_from(self.simulation.live()))
        self.simulation.step(ended={name: reason})

    @precondition(lambda self: self.simulation.live())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.simulation.step(failed=data.draw(st.sampled_from(self.simulation.live())))

    @rule()
    def forget_prefixes(self) -> None:
        self.simulation.scheduler.reset_prefix_cache()

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.check()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.finish()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=150,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", [None, 5])
def test_after_a_thousand_events_the_gauge_is_where_it_began(seed: int | None) -> None:
    draw = random.Random("events")
    simulation = Simulation(seed=seed)
    before = simulation.scheduler.make_stats(0).kv_cache_usage
    for _ in range(1000):
        event = draw.choice(["submit", "step", "step", "step", "abort", "stop", "crossing"])
        live = simulation.live()
        if event == "submit" or not live:
            simulation.submit(
                draw.randint(1, 45),
                draw.randint(0, 2),
                draw.randint(1, 30),
                draw.choice(SALTS),
                draw.randint(0, 2),
            )
        elif event == "step":
            simulation.step()
        elif event == "crossing":
            simulation.step(ended={draw.choice(live): "stop"})
        elif len(live) > 4:
            simulation.end(draw.choice(live), event)
    simulation.finish()
    assert simulation.scheduler.make_stats(0).kv_cache_usage == before == 0.0
    # All of it happened: requests that were preempted, and prefixes that were found.
    assert simulation.num_preempted > 5
    assert simulation.num_hits > 200
    if seed is not None:
        assert ADVERSARY.num_orders > 100 and ADVERSARY.num_victims > 5
        for name in ("order_waiting", "select_victim"):
            (guard,) = adversarial_calls().hooks[name].guards
            assert guard.errors == 0
