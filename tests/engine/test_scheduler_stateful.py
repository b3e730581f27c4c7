"""Random submits, aborts, finishes and steps: the books agree after each, and all comes back."""

from __future__ import annotations

import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fake_engine import Collected, continuation, make_config, make_request
from hookserve.engine.core import EngineCore
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap


class EngineMachine(RuleBasedStateMachine):
    """So small that every shortage happens: 12 blocks of 4, 3 places, 10 tokens a step."""

    def __init__(self) -> None:
        super().__init__()
        self.host = bootstrap({"engine", "worker"}, PluginSettings(no_plugins=True))
        self.prompts: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.collected = Collected()

    @initialize(prefix_caching=st.booleans(), policy=st.sampled_from(["fcfs", "priority"]))
    def start(self, prefix_caching: bool, policy: str) -> None:
        config = make_config(
            num_blocks=12,
            block_size=4,
            max_num_seqs=3,
            max_num_batched_tokens=10,
            prefix_caching=prefix_caching,
            policy=policy,
        )
        self.core = EngineCore(VllmConfig.from_engine_config(config), self.host)

    @rule(
        length=st.integers(1, 60),
        shared=st.integers(0, 2),
        max_tokens=st.integers(1, 30),
        salt=st.sampled_from([None, "a"]),
        priority=st.integers(-1, 1),
        prompt_logprobs=st.sampled_from([None, None, 0]),
    )
    def submit(
        self,
        length: int,
        shared: int,
        max_tokens: int,
        salt: str | None,
        priority: int,
        prompt_logprobs: int | None,
    ) -> None:
        name = f"r{len(self.prompts)}"
        # Three families of prompts, so that prefixes are shared within each.
        self.prompts[name] = [(shared * 31 + at) % 90 for at in range(length)]
        self.core.add_request(
            make_request(
                name,
                self.prompts[name],
                max_tokens=max_tokens,
                cache_salt=salt,
                priority=priority,
                prompt_logprobs=prompt_logprobs,
            )
        )

    def _live(self) -> list[str]:
        return [r for r in self.core.scheduler.requests if r not in self.ended]

    @precondition(lambda self: self._live())
    @rule(data=st.data(), reason=st.sampled_from(["abort", "stop"]))
    def end(self, data: st.DataObject, reason: str) -> None:
        name = data.draw(st.sampled_from(sorted(self._live())))
        self.ended.add(name)
        if reason == "abort":
            self.core.abort_requests([name])
        else:
            self.core.finish_request(name, reason)

    @precondition(lambda self: self.core.has_work())
    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.core.has_work():
                self.collected.add(self.core.step().outputs)

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "core"):
            self.core.scheduler.check_integrity()

    @invariant()
    def tokens_are_right(self) -> None:
        for name, tokens in self.collected.tokens.items():
            assert tokens == continuation(self.prompts[name], len(tokens)), name

    def teardown(self) -> None:
        if hasattr(self, "core"):
            deadline = time.monotonic() + 60
            while self.core.has_work():
                assert time.monotonic() < deadline, "the engine does not come to an end"
                self.collected.add(self.core.step().outputs)
                self.core.scheduler.check_integrity()
            report = self.core.report_idle()
            if report is not None:
                self.collected.add(report.outputs)
            for name in self.prompts.keys() - self.ended:
                assert self.collected.last[name].finish_reason is not None, name
            self.core.scheduler.check_integrity()
            assert self.core.scheduler.kv_cache.usage == 0.0
            assert self.core.scheduler.make_stats(0).num_running_reqs == 0
        self.host.close()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
