"""From the engine's outputs of sequences to what a caller gets, with values given by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hookserve.engine.messages import EngineCoreOutput, TokenLogprobs
from hookserve.engine.output_assembler import OutputAssembler
from hookserve.engine.outputs import Logprob
from hookserve.engine.sampling_params import SamplingParams
from hookserve.engine.sampling_rules import RequestOutputKind
from hookserve.engine.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    """A token for each byte."""
    return load_tokenizer(str(tiny_llama))


@pytest.fixture
def assemble(tokenizer: Tokenizer) -> Any:
    def make(**params: Any) -> OutputAssembler:
        return OutputAssembler("r", "ab", [1, 2], SamplingParams(**params), tokenizer)

    return make


def say(tokenizer: Tokenizer, text: str, finish_reason: str | None = None) -> EngineCoreOutput:
    return EngineCoreOutput("x", tokenizer.encode(text, False), finish_reason)


def test_outputs_are_whole_or_new_or_final(assemble: Any, tokenizer: Tokenizer) -> None:
    seen = {}
    for kind in RequestOutputKind:
        assembler = assemble(output_kind=kind, max_tokens=3)
        shown = []
        for text, reason in (("x", None), ("y", None), ("z", "length")):
            assembler.take(0, say(tokenizer, text, reason))
            output = assembler.output(0)
            if output is not None:
                (completion,) = output.outputs
                shown.append((completion.text, len(completion.token_ids), output.finished))
        seen[kind.name] = shown
    assert seen == {
        "CUMULATIVE": [("x", 1, False), ("xy", 2, False), ("xyz", 3, True)],
        "DELTA": [("x", 1, False), ("y", 1, False), ("z", 1, True)],
        "FINAL_ONLY": [("xyz", 3, True)],
    }


def test_a_stop_in_text_ends_the_sequence_and_counts_up_to_it(
    assemble: Any, tokenizer: Tokenizer
) -> None:
    assembler = assemble(stop="yz", max_tokens=9)
    assert not assembler.take(0, say(tokenizer, "xy")).stopped_by_text
    assert assembler.take(0, say(tokenizer, "zw")).stopped_by_text
    assert assembler.is_finished
    assert assembler.num_tokens(0) == 3
    # The engine had computed one more before it heard of it.
    assembler.take(0, say(tokenizer, "v", "length"))
    (completion,) = assembler.final().outputs
    assert (completion.text, completion.finish_reason) == ("x", "stop")
    assert completion.stop_reason == "yz"


def test_logprobs_are_by_token_with_their_ranks_and_summed(
    assemble: Any, tokenizer: Tokenizer
) -> None:
    x, y, z = (tokenizer.encode(each, False)[0] for each in "xyz")
    assembler = assemble(logprobs=2, prompt_logprobs=0, max_tokens=2)
    assembler.take(
        0,
        EngineCoreOutput(
            "x",
            [x, y],
            "length",
            num_cached_tokens=0,
            logprobs=[
                TokenLogprobs([x, z, y], [-3.0, -0.5, -1.0], 7),
                TokenLogprobs([y, y, x], [-0.25, -0.25, -2.0], 1),
            ],
            prompt_logprobs=[None, TokenLogprobs([2], [-1.5], 3)],
        ),
    )
    output = assembler.final()
    (completion,) = output.outputs
    assert completion.logprobs == [
        {x: Logprob(-3.0, 7, "x"), z: Logprob(-0.5, 1, "z"), y: Logprob(-1.0, 2, "y")},
        {y: Logprob(-0.25, 1, "y"), x: Logprob(-2.0, 2, "x")},
    ]
    assert completion.cumulative_logprob == -3.25
    assert output.prompt_logprobs == [None, {2: Logprob(-1.5, 3, tokenizer.decode([2]))}]
    assert output.num_cached_tokens == 0


def test_the_likeliest_of_more_sequences_are_returned_at_the_end(
    assemble: Any, tokenizer: Tokenizer
) -> None:
    """Whoever asked for a choice of the best did not ask for log-probabilities; one that failed
    is the last choice, however likely its beginning was."""
    assembler = assemble(n=2, best_of=4, max_tokens=1)
    assert len(assembler.children) == 4
    for index, (text, logprob) in enumerate((("a", -3.0), ("b", -1.0), ("c", -2.0))):
        said = say(tokenizer, text, "length")
        entry = TokenLogprobs(list(said.new_token_ids), [logprob], 1)
        assembler.take(index, EngineCoreOutput("x", said.new_token_ids, "length", logprobs=[entry]))
        assert assembler.output(index) is None
    assembler.take(3, EngineCoreOutput("x", [], "error", error="No."))
    output = assembler.output(3)
    assert [(each.index, each.text, each.logprobs) for each in output.outputs] == [
        (0, "b", None),
        (1, "c", None),
    ]
    assert [each.cumulative_logprob for each in output.outputs] == [-1.0, -2.0]


def test_a_sequence_that_fails_says_so_in_its_place(assemble: Any, tokenizer: Tokenizer) -> None:
    assembler = assemble(n=2, max_tokens=1, output_kind=RequestOutputKind.FINAL_ONLY)
    assembler.take(1, EngineCoreOutput("x", [], "error", error="No numbers."))
    assert assembler.output(1) is None
    assembler.take(0, say(tokenizer, "a", "length"))
    first, second = assembler.output(0).outputs
    assert (first.text, first.finish_reason, first.error) == ("a", "length", None)
    assert (second.text, second.finish_reason, second.error) == ("", "error", "No numbers.")
