"""Logits processors in an engine: each acts on its own requests alone, whatever happens to rows and
slots meanwhile, and what goes wrong in one fails no more than it must."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from fake_engine import VOCAB, Collected, continuation, make_config, make_request, next_token
from hookserve.engine.core import EngineCore
from hookserve.engine.errors import ConfigError, InvalidRequestError, WorkerPluginsError
from hookserve.engine.parallel_sampling import fan_out
from hookserve.engine.processor_classes import processor_paths
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.structured_outputs import StructuredOutputsParams
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import Named, PluginSettings, bootstrap, hookimpl
from hookserve.hookspecs.errors import RequiredPluginError
from hookserve.ops.op_function import OpFunction
from hookserve.ops.op_references import REFERENCES
from hookserve.ops.op_table import OpRow
from processors import FORCERS, Counter, Seen

SHAPES = ("RowForcer", "Counter", "SlotForcer")
NEW_TOKENS = 22


def forced(prompt, count, at, token):
    """The greedy tokens where the ``at``-th one is forced."""
    context = list(prompt)
    for n in range(1, count + 1):
        context.append(token if n == at else next_token(context))
    return context[len(prompt) :]


def run(core):
    collected = Collected()
    num_preemptions = max_running = 0
    while core.has_work():
        report = core.step()
        num_preemptions += report.scheduler_stats.num_preempted_reqs
        max_running = max(max_running, report.scheduler_stats.num_running_reqs)
        collected.add(report.outputs)
        core.scheduler.check_integrity()
    return collected, num_preemptions, max_running


class Declares:
    """A plugin with these processors."""

    def __init__(self, *classes):
        self.classes = classes

    @hookimpl
    def logits_processor(self):
        return [Named(cls.rpartition(":")[2], cls) for cls in self.classes]


@pytest.fixture
def make_plugged():
    """``make_plugged(class paths, **settings)``: an engine with one plugin that declares them."""
    hosts = []
    threads = torch.get_num_threads()

    def make(*classes, **settings):
        host = bootstrap(
            {"front", "engine", "worker"},
            PluginSettings(allow=(), **settings),
            objects=[Declares(*classes)],
        )
        hosts.append(host)
        core = EngineCore(VllmConfig.from_engine_config(make_config()), host)
        torch.set_num_threads(1)
        return core

    yield make
    for host in hosts:
        host.close()
    torch.set_num_threads(threads)


# -- who acts on whom -----------------------------------------------------------------------------


def mixed_requests():
    """Eight: each shape greedy, each shape with a seed, and two of nobody."""
    for at in range(8):
        # The longer ones are computed in several chunks.
        prompt = [(11 * at + 5 * n + n * n) % 90 for n in range(3 + 2 * at)]
        shape = (*SHAPES, None)[at % 4]
        sampling = {} if at < 4 else {"temperature": 1.3, "seed": at, "top_p": 0.95, "logprobs": 1}
        extra = {"by": shape, "at": 15 + at % 3, "token": 60 + at, "prompt": prompt}
        yield prompt, {**sampling, "extra_args": extra if shape else None}


def test_three_shapes_act_on_their_own_requests_in_one_batch_that_is_preempted(make_core):
    def engine(num_blocks):
        return make_core(
            num_blocks=num_blocks,
            max_model_len=48,
            max_num_batched_tokens=24,
            logits_processors=FORCERS,
        )

    alone = {}
    single, plain = engine(64), make_core(num_blocks=64)
    for at, (prompt, params) in enumerate(mixed_requests()):
        name = str(at)
        single.add_request(make_request(name, prompt, max_tokens=NEW_TOKENS, **params))
        alone[name] = run(single)[0].tokens[name]
        extra = params["extra_args"]
        if extra is None:
            plain.add_request(make_request(name, prompt, max_tokens=NEW_TOKENS, **params))
            assert alone[name] == run(plain)[0].tokens[name]
        else:
            assert alone[name][extra["at"] - 1] == extra["token"]
        if extra is not None and at < 4:
            assert alone[name] == forced(prompt, NEW_TOKENS, extra["at"], extra["token"])
    # Fewer blocks than eight such requests need together.
    crowded = engine(34)
    for at, (prompt, params) in enumerate(mixed_requests()):
        crowded.add_request(make_request(str(at), prompt, max_tokens=NEW_TOKENS, **params))
    together, num_preemptions, max_running = run(crowded)
    assert max_running == 8
    assert num_preemptions >= 3
    assert {output.error for output in together.last.values()} == {None}
    assert together.tokens == alone


@pytest.mark.parametrize("shape", SHAPES)
def test_a_count_of_tokens_survives_chunks_and_preemption(make_core, shape):
    core = make_core(
        num_blocks=22, max_model_len=40, max_num_batched_tokens=8, logits_processors=FORCERS
    )
    extra = {"by": shape, "at": 7, "token": 3}
    prompts = [[at, *range(20)] for at in range(6)]
    for at, prompt in enumerate(prompts):
        core.add_request(make_request(str(at), prompt, max_tokens=12, extra_args=extra))
    said, num_preemptions, _ = run(core)
    assert num_preemptions > 0
    for at, prompt in enumerate(prompts):
        assert said.tokens[str(at)] == forced(prompt, 12, 7, 3)


def test_an_aborted_request_leaves_its_row_and_slot_to_others(make_core):
    core = make_core(logits_processors=FORCERS, max_num_seqs=3)
    for at, shape in enumerate(SHAPES):
        extra = {"by": shape, "at": 5, "token": 1}
        core.add_request(make_request(f"gone-{at}", [1, at], max_tokens=30, extra_args=extra))
    for _ in range(3):
        core.step()
    core.abort_requests(["gone-0", "gone-2"])
    core.finish_request("gone-1", "stop")
    for at, shape in enumerate((None, *SHAPES)):
        extra = {"by": shape, "at": 2, "token": 9} if shape else None
        core.add_request(make_request(str(at), [2, at], max_tokens=6, extra_args=extra))
    said, *_ = run(core)
    assert said.tokens.pop("0") == continuation([2, 0], 6)
    assert said.tokens == {str(at): forced([2, at], 6, 2, 9) for at in (1, 2, 3)}


def test_sequences_of_one_prompt_have_arguments_and_states_of_their_own(make_core):
    core = make_core(logits_processors=FORCERS)
    given = {"by": "Counter", "at": 3, "token": 8}
    params = SamplingParams(n=3, temperature=1.5, seed=4, max_tokens=6, extra_args=given)
    for at, child in enumerate(fan_out(params)):
        request = make_request(str(at), [5, 6])
        core.add_request(type(request)(str(at), [5, 6], child, request.arrival_time))
    said, *_ = run(core)
    assert [said.tokens[name][2] for name in "012"] == [8, 8, 8]
    assert len({tuple(tokens) for tokens in said.tokens.values()}) == 3


def test_nobody_pays_where_there_is_no_processor(make_core):
    core = make_core()
    runner = core.executor.worker.model_runner
    assert runner.processors is None
    core.add_request(make_request("a", [1, 2], extra_args={"by": "RowForcer"}))
    core.step()
    assert runner.requests["a"].processed is None


# -- the order ------------------------------------------------------------------------------------


def test_each_stage_sees_what_the_ones_before_it_made(make_core):
    paths = tuple(f"processors:{name}" for name in ("SeesLate", "SeesSlots", "SeesEarly"))
    core = make_core(logits_processors=paths)
    context = [1, 2, 3]
    params = {"temperature": 0.5, "seed": 1, "logit_bias": {20: 7.0}, "presence_penalty": 1.5}
    core.add_request(make_request("a", context, max_tokens=3, top_k=1, **params))
    Seen.rows.clear()
    first = core.step().outputs[0].new_token_ids[0]
    core.step()
    best = next_token([*context, first])
    logits = -((torch.arange(VOCAB).float() - best).abs() ** 0.5)
    logits[20] += 7.0
    torch.testing.assert_close(Seen.rows["SeesEarly"], logits)
    logits[first] -= 1.5
    torch.testing.assert_close(Seen.rows["SeesSlots"], logits)
    torch.testing.assert_close(Seen.rows["SeesLate"], (logits - logits.max()) / 0.5)


def test_one_that_keeps_the_best_token_is_not_asked_where_all_are_greedy(make_core):
    core = make_core(logits_processors=("processors:SeesLate",))
    Seen.rows.clear()
    core.add_request(make_request("a", [1, 2]))
    run(core)
    assert "SeesLate" not in Seen.rows


def test_a_provider_of_sampling_gets_what_processors_have_left(make_core):
    def tokens_by(op):
        core = make_core(logits_processors=(*FORCERS, "processors:SeesLate"), num_blocks=64)
        core.executor.worker.runner.sampler.op = op
        for name, (prompt, params) in enumerate(mixed_requests()):
            core.add_request(make_request(str(name), prompt, max_tokens=NEW_TOKENS, **params))
        return run(core)[0].tokens

    def provided(*given):
        seen.extend(given[1].tolist())
        calls.append(1)
        return REFERENCES["sampling"](*given)

    seen, calls = [], []
    op = OpFunction(OpRow("sampling", "", "mine", "dist:hookserve:me", "wanted"), provided)
    assert tokens_by(op) == tokens_by(None)
    assert op.row.calls == len(calls) >= NEW_TOKENS
    assert set(seen) == {0.0, 1.0}, "what a late one was given is divided already"


def test_logprobs_stay_the_models_own(make_core):
    core = make_core(logits_processors=FORCERS)
    extra = {"by": "RowForcer", "at": 1, "token": 50}
    core.add_request(make_request("a", [1, 2], max_tokens=1, logprobs=1, extra_args=extra))
    entry = core.step().outputs[0].logprobs[0]
    logits = -((torch.arange(VOCAB).float() - next_token([1, 2])).abs() ** 0.5)
    assert entry.token_ids == [50, next_token([1, 2])]
    assert entry.logprobs[0] == pytest.approx(logits.log_softmax(-1)[50].item(), abs=1e-5)


# -- what goes wrong ------------------------------------------------------------------------------

ALL, OWN = "all", "own"
STEP_FAULTS = [
    ("FaultyRows", "update_state", "raise", ALL, "ZeroDivisionError"),
    ("FaultyRows", "apply", "exit", ALL, "SystemExit"),
    ("FaultyRows", "", "shape", ALL, "TypeError"),
    ("FaultyRows", "", "in place", ALL, "TypeError"),
    ("FaultyRows", "", "whole", ALL, "TypeError"),
    ("FaultyRows", "", "nothing", ALL, "TypeError"),
    ("FaultyRows", "", "ban", OWN, "No token is left to choose"),
    ("FaultyCounter", "new", "raise", OWN, "ZeroDivisionError"),
    ("FaultyCounter", "apply", "exit", OWN, "SystemExit"),
    ("FaultyCounter", "", "shape", OWN, "TypeError"),
    ("FaultySlots", "add_request", "raise", OWN, "ZeroDivisionError"),
    ("FaultySlots", "apply_staged_writes", "raise", OWN, "ZeroDivisionError"),
    ("FaultySlots", "apply", "raise", OWN, "ZeroDivisionError"),
    ("StrayRows", "", "none", ALL, "IndexError"),
    ("OddLogits", "", "none", ALL, "NotImplementedError"),
    ("HostileSlots", "", "none", OWN, "RuntimeError"),
]


@pytest.mark.parametrize(("name", "when", "fault", "who", "said"), STEP_FAULTS)
def test_a_failure_fails_the_requests_concerned_and_names_the_processor(
    make_core, caplog, name, when, fault, who, said
):
    core = make_core(logits_processors=(f"processors:{name}",))
    core.add_request(make_request("good", [4, 5], max_tokens=6))
    core.step()
    extra = {"when": when, "fault": fault}
    core.add_request(make_request("bad", [1, 2, 3], max_tokens=6, extra_args=extra))
    collected, *_ = run(core)
    bad, good = collected.last["bad"], collected.last["good"]
    assert (bad.finish_reason, bad.is_refusal) == ("error", False)
    assert said in bad.error and name in bad.error and "secret" not in bad.error
    assert good.finish_reason == ("error" if who == ALL else "length")
    if who == OWN:
        assert collected.tokens["good"] == continuation([4, 5], 6)[1:]
    assert fault == "ban" or name in caplog.text
    core.add_request(make_request("next", [7], max_tokens=4))
    assert run(core)[0].tokens["next"] == continuation([7], 4)


def test_a_prompt_in_chunks_whose_writes_failed_never_gets_a_token(make_core):
    core = make_core(logits_processors=("processors:FaultySlots",), max_num_batched_tokens=8)
    extra = {"when": "apply_staged_writes", "fault": "raise"}
    core.add_request(make_request("bad", [*range(20)], extra_args=extra))
    collected, *_ = run(core)
    assert (collected.tokens["bad"], collected.last["bad"].finish_reason) == ([], "error")


def test_one_that_goes_on_failing_is_switched_off_and_its_requests_fail(make_plugged, caplog):
    core = make_plugged("processors:FaultyRows")
    extra = {"when": "apply", "fault": "raise"}
    for at in range(5):
        core.add_request(make_request(f"bad-{at}", [1, at], extra_args=extra))
        assert run(core)[0].last[f"bad-{at}"].finish_reason == "error"
    assert "is switched off: 5 failures in 60 s" in caplog.text
    core.add_request(make_request("its own", [3], extra_args={"any": 1}))
    core.add_request(make_request("good", [4, 5], max_tokens=6))
    collected, *_ = run(core)
    assert "switched off" in collected.last["its own"].error
    assert collected.tokens["good"] == continuation([4, 5], 6)


def test_where_the_operator_asked_for_it_nothing_goes_on_without_it(make_core):
    core = make_core(logits_processors=("processors:FaultySlots",))
    extra = {"when": "apply", "fault": "raise"}
    for at in range(5):
        core.add_request(make_request(f"bad-{at}", [1, at], extra_args=extra))
        run(core)
    core.add_request(make_request("good", [4, 5]))
    assert "switched off" in run(core)[0].last["good"].error


def test_requests_of_others_cannot_have_an_adapter_switched_off(make_plugged):
    core = make_plugged("processors:FaultyCounter")
    for at in range(6):
        extra = {"when": "apply", "fault": "raise"}
        core.add_request(make_request(f"bad-{at}", [1, at], extra_args=extra))
    assert {each.finish_reason for each in run(core)[0].last.values()} == {"error"}
    core.add_request(make_request("its own", [3, 1], extra_args={"fault": "none"}))
    assert run(core)[0].tokens["its own"] == continuation([3, 1], 4)


def test_one_that_takes_too_long_is_switched_off_and_costs_no_text(make_plugged, caplog):
    core = make_plugged("processors:FaultyRows", step_hook_timeout_s=0.4)
    core.add_request(make_request("good", [4, 5], max_tokens=6))
    core.step()
    assert "switched off" not in caplog.text
    extra = {"when": "apply", "fault": "sleep"}
    core.add_request(make_request("slow", [1, 2], max_tokens=6, extra_args=extra))
    collected, *_ = run(core)
    assert collected.tokens["good"] == continuation([4, 5], 6)[1:]
    assert "switched off" in collected.last["slow"].error
    assert "FaultyRows of plugin" in caplog.text and "; it has 0.4 s" in caplog.text


# -- which classes there are ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("processors:Missing", "has no attribute 'Missing'"),
        ("processors:force", "is not a subclass of hookserve.engine.logits_processor"),
        ("no_such_module:X", "No module named 'no_such_module'"),
        (
            "processors:Unbuildable",
            r"could not be built as Unbuildable\(vllm_config, device, is_pin_memory\): OSError: no",
        ),
    ],
)
def test_a_class_that_the_operator_named_and_cannot_be_used_stops_the_start(make_core, path, said):
    with pytest.raises(ConfigError, match=f"(?s)logits.processor.* ?{path}.*{said}"):
        make_core(logits_processors=(path,))


@pytest.mark.parametrize("name", ["Missing", "force", "Unbuildable"])
def test_a_plugins_class_that_cannot_be_used_puts_the_plugin_out(make_plugged, name):
    with pytest.raises(WorkerPluginsError, match=f"Declares.*{name}"):
        make_plugged(f"processors:{name}")


def test_a_required_plugins_class_that_cannot_be_used_stops_the_start(make_plugged):
    with pytest.raises(
        RequiredPluginError,
        match=r"Unbuildable of plugin object:Declares could not be built.*required",
    ):
        make_plugged("processors:Unbuildable", require=("Declares",))


def test_classes_are_used_once_each_and_by_their_paths(make_core, caplog):
    caplog.set_level(logging.INFO)
    make_core(logits_processors=(FORCERS[0], "processors.RowForcer", FORCERS[0]))
    assert caplog.text.count("is used") == 1
    assert processor_paths([Counter, FORCERS[0]]) == ("processors:Counter", FORCERS[0])

    class Local(Counter): ...

    for odd, said in ((Local, "top of a module"), ("words", "not of the form"), (3, "expected a")):
        with pytest.raises(ConfigError, match=said):
            processor_paths([odd])


# -- offline --------------------------------------------------------------------------------------


def test_an_offline_engine_takes_classes_and_lets_them_look_at_parameters(make_fake_llm):
    llm = make_fake_llm(logits_processors=[Counter], plugins=[Declares("processors:Unbuildable")])
    assert "out" in [report.state for report in llm.plugins.describe()]
    given = {"by": "Counter", "at": 2, "token": 5, "any": [1, {"k": True, "x": None}]}
    params = SamplingParams(temperature=0, max_tokens=4, extra_args=given, ignore_eos=True)
    (output,) = llm.generate({"prompt_token_ids": [1, 2]}, params, use_tqdm=False)
    assert list(output.outputs[0].token_ids) == forced([1, 2], 4, 2, 5)
    assert params.extra_args == given
    with pytest.raises(InvalidRequestError, match="extra_args: at: 'x' is no number") as raised:
        refused = SamplingParams(extra_args={"by": "Counter", "at": "x"})
        llm.generate({"prompt_token_ids": [1, 2]}, refused, use_tqdm=False)
    assert raised.value.param == "extra_args"


def test_a_schema_too_deep_to_be_copied_is_no_fault_of_a_processors(make_fake_llm):
    llm = make_fake_llm(logits_processors=[Counter])
    schema: dict = {}
    for _ in range(2000):
        schema = {"not": schema}
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
    with pytest.raises(ValueError) as raised:
        llm.generate({"prompt_token_ids": [1, 2]}, params, use_tqdm=False)
    assert "a schema of 64 levels at most" in str(raised.value)


@pytest.mark.parametrize(
    "odd", [{"a": object()}, {1: 2}, {"a": 2**64}, {"a": "\ud800"}, {"a": {1}}, [1], "a"]
)
def test_arguments_that_no_process_could_be_sent_are_refused(odd):
    with pytest.raises(ValueError, match=r"extra_args: .* is not an object of JSON values"):
        SamplingParams(extra_args=odd)
    nested: object = math.inf
    for _ in range(31):
        nested = [nested]
    assert SamplingParams(extra_args={"a": nested}).clone().extra_args == {"a": nested}
    with pytest.raises(ValueError, match="32 deep"):
        SamplingParams(extra_args={"a": [nested]})
