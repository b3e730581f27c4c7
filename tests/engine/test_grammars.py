"""Requests whose text must have a form, in a whole engine: what they may say, how they end, and
that nobody else waits or fails for them."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import toy_grammars
from fake_engine import VOCAB, Collected, continuation, make_request, next_token
from harness import wait_until
from hookserve.engine import grammar_compiler, grammars
from hookserve.engine.messages import AddRequest
from hookserve.engine.structured_outputs import MAX_SPEC_BYTES, StructuredOutputsParams
from hookserve.hookspecs.grammar_types import GrammarVocabulary

EOS = 95
STEPS = [[1, 2], [50, 60, 70], [3], [9, 19, 29, 39, 49, 59, 69, 79, 89]]


@pytest.fixture(autouse=True)
def toy_vocabulary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There is no tokenizer behind the fake model."""

    def read(path: str, vocab_size: int) -> GrammarVocabulary:
        return GrammarVocabulary([b"%d " % i for i in range(vocab_size)], lambda text: [])

    monkeypatch.setattr(grammar_compiler, "read_vocabulary", read)
    monkeypatch.setattr(toy_grammars, "compiled", [])
    toy_grammars.may_go_on.clear()
    yield
    toy_grammars.may_go_on.set()  # no thread of a test's waits any more


def form(**wanted: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(grammar=json.dumps({"steps": STEPS, **wanted}))


def formed(
    name: str, prompt: list[int], params: dict[str, Any] | None = None, **wanted: Any
) -> AddRequest:
    given = {"max_tokens": 12, "eos_token_ids": [EOS], **(params or {})}
    return make_request(name, prompt, structured_outputs=form(**wanted), **given)


def held_to(prompt: Sequence[int], steps: Sequence[Sequence[int]]) -> list[int]:
    """The greedy tokens after the prompt, each one of its step's."""
    context = list(prompt)
    for allowed in steps:
        best = next_token(context)
        context.append(min(sorted(allowed), key=lambda token: abs(token - best)))
    return context[len(prompt) :]


def run(core: Any, collected: Collected | None = None) -> Collected:
    """Step until no request is left, the ones that wait for grammars included."""
    collected = collected or Collected()
    for _ in range(10_000):
        if core.has_work():
            collected.add(core.step().outputs)
            core.scheduler.check_integrity()
        elif core.grammars.waiting:
            core.wait_for_grammars()
            core.take_ready()
        else:
            report = core.report_idle()
            collected.add([] if report is None else report.outputs)
            assert not core.grammars.followed, "all have ended"
            assert core.scheduler.kv_cache.usage == 0.0
            return collected
    raise AssertionError("the engine does not come to an end")


def ends(collected: Collected) -> dict[str, str | None]:
    return {name: output.finish_reason for name, output in collected.last.items()}


# -- what may be said ----------------------------------------------------------------------------


def test_a_text_keeps_to_its_form_and_ends_with_it_and_others_are_as_ever(make_core):
    core = make_core()
    core.add_request(make_request("free", [4, 5], max_tokens=9))
    core.add_request(formed("held", [4, 5]))
    core.add_request(formed("other", [6], steps=[[8], [18]]))
    collected = run(core)
    assert collected.tokens == {
        "free": continuation([4, 5], 9),
        "held": held_to([4, 5], STEPS),
        "other": [8, 18],
    }
    assert ends(collected) == {"free": "length", "held": "stop", "other": "stop"}
    assert collected.last["held"].stop_reason is None


def test_random_tokens_keep_to_it_too(make_core):
    core = make_core()
    for seed in range(8):
        hot = {"temperature": 5.0, "seed": seed, "top_k": 3, "top_p": 0.9}
        core.add_request(formed(f"r{seed}", [4, 5, seed], hot))
    collected = run(core)
    for tokens in collected.tokens.values():
        assert all(token in step for token, step in zip(tokens, STEPS, strict=True))
    assert len({tuple(tokens) for tokens in collected.tokens.values()}) > 1


def test_an_end_token_may_come_where_the_text_is_whole_and_nowhere_else(make_core):
    core = make_core()
    towards = {"logit_bias": {EOS: 100.0}}
    core.add_request(formed("ends", [4, 5], towards, steps=[[1, 2]], loop=True, least=3))
    core.add_request(formed("never", [4, 5], {"ignore_eos": True}, steps=[[1]], loop=True, least=3))
    later = {**towards, "min_tokens": 6}
    core.add_request(formed("later", [4, 5], later, steps=[[1, 2]], loop=True, least=3))
    collected = run(core)
    assert collected.tokens["ends"] == [*held_to([4, 5], [[1, 2]] * 3), EOS]
    assert collected.tokens["never"] == [1] * 12
    assert len(collected.tokens["later"]) == 7, "min_tokens hold the end token back"
    assert ends(collected) == {"ends": "stop", "never": "length", "later": "stop"}


def test_a_whole_text_ends_whatever_min_tokens_and_ignore_eos_say(make_core):
    core = make_core()
    core.add_request(formed("min", [4, 5], {"min_tokens": 10}))
    core.add_request(formed("eos", [4, 5], {"ignore_eos": True}))
    core.add_request(formed("exact", [4, 5], {"max_tokens": len(STEPS)}))
    core.add_request(formed("short", [4, 5], {"max_tokens": len(STEPS) - 1}))
    collected = run(core)
    for name in ("min", "eos", "exact"):
        assert collected.tokens[name] == held_to([4, 5], STEPS), name
    assert collected.tokens["short"] == held_to([4, 5], STEPS[:-1])
    assert ends(collected) == {"min": "stop", "eos": "stop", "exact": "stop", "short": "length"}


def test_what_may_be_chosen_is_what_all_limits_allow(make_core):
    core = make_core()
    both = {"allowed_token_ids": [1, 3, 70, 89], "logit_bias": {1: -100.0, 2: 100.0}}
    core.add_request(formed("both", [4, 5], both))
    core.add_request(formed("nothing", [4, 5], {"allowed_token_ids": [1, 2, 4]}))
    core.add_request(make_request("free", [4, 5]))
    collected = run(core)
    assert collected.tokens["both"] == [1, 70, 3, 89]
    assert collected.tokens["nothing"] == held_to([4, 5], STEPS[:1])
    last = collected.last["nothing"]
    assert last.finish_reason == "error" and last.is_refusal
    assert last.error.startswith("No token is left to choose for this request: the form of the")
    assert collected.tokens["free"] == continuation([4, 5], 4)


def test_it_holds_behind_plugins_processors(make_core):
    core = make_core(logits_processors=("processors:RowForcer",))
    core.add_request(formed("held", [4, 5]))
    core.add_request(formed("nothing", [4, 5], {"allowed_token_ids": [4]}))
    core.add_request(make_request("free", [4, 5]))
    collected = run(core)
    assert collected.tokens["held"] == held_to([4, 5], STEPS)
    assert "No token is left" in collected.last["nothing"].error
    assert collected.tokens["free"] == continuation([4, 5], 4)


def test_chunks_preemption_and_slots_change_nothing(make_core):
    core = make_core(num_blocks=14, max_num_seqs=3, max_num_batched_tokens=5)
    steps = [STEPS[at % len(STEPS)] for at in range(18)]
    prompts = {f"r{at}": [at + 2] * (6 + at) for at in range(6)}
    for name, prompt in prompts.items():
        core.add_request(formed(name, prompt, {"max_tokens": 30}, steps=steps))
    collected = run(core)
    for name, prompt in prompts.items():
        assert collected.tokens[name] == held_to(prompt, steps), name
    assert sum(output.num_preemptions for output in collected.last.values()) > 0
    assert len(toy_grammars.compiled) == 1, "equal forms share one grammar"


# -- who waits, and who fails --------------------------------------------------------------------


def test_nobody_waits_for_anothers_grammar(make_core):
    core = make_core()
    core.add_request(formed("slow", [4, 5], wait=True))
    core.add_request(formed("quick", [4, 5]))
    core.add_request(make_request("free", [4, 5], max_tokens=20))
    collected = Collected()
    while core.has_work():
        collected.add(core.step().outputs)
    assert ends(collected) == {"free": "length"}
    assert list(core.grammars.waiting) == ["slow", "quick"], "one grammar is made at a time"
    stats = core.step().scheduler_stats
    assert (stats.num_waiting_reqs, stats.num_skipped_waiting_reqs) == (0, 2)
    toy_grammars.may_go_on.set()
    run(core, collected)
    assert collected.tokens["slow"] == collected.tokens["quick"] == held_to([4, 5], STEPS)


def test_who_is_aborted_is_forgotten_waiting_or_not(make_core):
    core = make_core()
    core.add_request(formed("followed", [4, 5]))
    while not core.grammars.followed:
        core.wait_for_grammars()
        core.take_ready()
    core.step()
    core.add_request(formed("waits", [4, 5], wait=True))
    core.add_request(formed("waits too", [4, 5], wait=True))
    core.abort_requests(["waits", "followed"])
    assert list(core.grammars.waiting) == ["waits too"]
    assert core.grammars.timeout_s() is not None, "its grammar is still made"
    core.abort_requests(["waits too"])
    assert not core.grammars._compiler._under_way, "nothing is kept for nobody"
    assert not core.grammars.waiting and not core.grammars.followed
    assert not core.has_work()
    core.add_request(formed("text", [4, 5]))
    core.step()
    core.finish_request("text", "stop")
    assert not core.grammars.followed
    assert core.scheduler.kv_cache.usage == 0.0


def test_a_grammar_that_takes_too_long_is_refused_and_the_next_ones_are_told(
    make_core, monkeypatch
):
    monkeypatch.setattr(grammar_compiler, "MAX_WAIT_S", 0.05)
    core = make_core()
    core.add_request(formed("a", [4, 5], wait=True))
    core.add_request(formed("b", [4, 5], wait=True))
    collected = run(core)
    for name in ("a", "b"):
        last = collected.last[name]
        assert last.error == "structured_outputs.grammar: Its grammar was not made within 0.05 s."
        assert last.is_refusal
    core.add_request(formed("c", [4, 5]))
    collected = run(core)
    assert "Grammars are not made at the moment" in collected.last["c"].error
    assert not collected.last["c"].is_refusal
    toy_grammars.may_go_on.set()
    wait_until(
        lambda: not core.grammars._compiler._thread.is_stuck, 10, "the call that was given up"
    )
    core.add_request(formed("d", [4, 5]))
    assert run(core).tokens["d"] == held_to([4, 5], STEPS)


@pytest.mark.parametrize("method", ["compile", "matcher", "fill_mask", "accept"])
@pytest.mark.parametrize("error", ["ValueError", "RuntimeError"])
def test_what_a_backend_raises_fails_its_request_alone(make_core, method, error):
    core = make_core()
    core.add_request(make_request("free", [4, 5]))
    core.add_request(formed("held", [4, 5]))
    core.add_request(formed("bad", [4, 5], fail=method, error=error))
    collected = run(core)
    last = collected.last["bad"]
    assert last.finish_reason == "error"
    if error == "ValueError":
        assert "as it was told" in last.error and last.is_refusal
    else:
        assert "as it was told" not in last.error, "it may hold internals"
        assert "toy_grammars:ToyBackend failed." in last.error and not last.is_refusal
    assert collected.tokens["free"] == continuation([4, 5], 4)
    assert collected.tokens["held"] == held_to([4, 5], STEPS)


def test_a_token_that_takes_too_long_to_find_is_its_requests_last(make_core):
    core = make_core()
    core.grammars._budget_s = 0.0
    core.add_request(formed("slow", [4, 5]))
    core.add_request(make_request("free", [4, 5]))
    collected = run(core)
    last = collected.last["slow"]
    assert last.error.startswith("The grammar backend toy_grammars:ToyBackend took ")
    assert last.finish_reason == "error" and not last.is_refusal
    assert collected.tokens["free"] == continuation([4, 5], 4)


def test_a_step_does_not_wait_for_many_sequences_of_one_slow_grammar(make_core, monkeypatch):
    """Each takes less than the time of one; together they take more than a step has."""
    now = [0.0]
    asked = []
    fill = toy_grammars.ToyMatcher.fill_mask

    def fill_slowly(self: Any, mask: Any) -> None:
        if self.wanted.get("loop"):
            asked.append(self)
            now[0] += 0.1
        fill(self, mask)

    core = make_core()
    core.grammars._budget_s = 1.0
    monkeypatch.setattr(toy_grammars.ToyMatcher, "fill_mask", fill_slowly)
    monkeypatch.setattr(grammars, "perf_counter", lambda: now[0])
    for n in range(8):
        core.add_request(formed(f"slow{n}", [4, 5], loop=True))
    core.add_request(formed("quick", [4, 5]))
    while core.grammars.waiting:
        core.wait_for_grammars()
        core.take_ready()
    collected = Collected()
    collected.add(core.step().outputs)
    assert len(asked) == 3, "what is left of the step's time is looked at before each"
    refused = [name for name, output in collected.last.items() if output.error]
    assert refused == [f"slow{n}" for n in range(3, 8)]
    assert "of other sequences with this grammar" in collected.last["slow4"].error
    assert run(core, collected).tokens["quick"] == held_to([4, 5], STEPS)


def test_a_form_that_is_too_large_never_reaches_the_backend(make_core):
    core = make_core()
    too_large = StructuredOutputsParams(grammar="x" * (MAX_SPEC_BYTES + 1))
    core.add_request(make_request("large", [4, 5], structured_outputs=too_large))
    collected = run(core)
    assert collected.last["large"].error.startswith("structured_outputs.grammar: ")
    assert collected.last["large"].is_refusal
    assert not toy_grammars.compiled


def test_a_refusal_of_the_scheduler_is_no_ones_grammar(make_core):
    core = make_core()
    core.add_request(formed("beyond", [VOCAB]))
    collected = run(core)
    assert "outside of the vocabulary" in collected.last["beyond"].error


def test_grammars_are_kept_up_to_their_memory_and_the_oldest_goes_first(make_core, monkeypatch):
    monkeypatch.setattr(grammar_compiler, "MAX_CACHE_BYTES", 3_000)
    core = make_core()
    for least in (1, 2, 1, 3, 1, 2):
        core.add_request(formed("r", [4, 5], least=least, num_bytes=1_000))
        run(core)
    made = [json.loads(text)["least"] for text in toy_grammars.compiled]
    assert made == [1, 2, 3, 2]
    core.add_request(formed("r", [4, 5], num_bytes=10_000))
    run(core)
    assert core.grammars._compiler._kept_bytes == 0, "one that is too large is used, and not kept"


def test_a_grammar_too_large_to_be_kept_is_made_once_for_all_that_wait(make_core, monkeypatch):
    monkeypatch.setattr(grammar_compiler, "MAX_CACHE_BYTES", 0)
    core = make_core()
    core.add_request(formed("a", [4, 5], wait=True))
    core.add_request(formed("b", [4, 5], wait=True))
    toy_grammars.may_go_on.set()
    select.select(core.grammars.watched_fds(), [], [], 30)
    core.add_request(formed("c", [4, 5], wait=True))
    assert list(core.grammars.waiting) == ["a", "b", "c"]
    collected = run(core)
    assert all(collected.tokens[name] == held_to([4, 5], STEPS) for name in "abc")
    assert len(toy_grammars.compiled) == 1
