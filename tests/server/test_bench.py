"""``server bench``: what it sends, how it counts, and what it prints."""

from __future__ import annotations

import json

import pytest

from fake_openai import FakeOpenAI
from hookserve.server.cli import main
from hookserve.server.command_bench import (
    WORKLOADS,
    Timing,
    make_jobs,
    summarize,
    table_head,
    table_row,
)


@pytest.mark.parametrize(
    ("name", "requests", "width", "prompt", "out"),
    [
        ("single", 1, 1, {128}, {128}),
        ("batch8", 8, 8, {128}, {128}),
        ("batch32", 32, 32, {128}, {128}),
        ("prefill", 8, 1, {1024}, {1}),
        ("prefix", 16, 1, {1040}, {8}),
    ],
)
def test_the_shapes_of_the_workloads(
    name: str, requests: int, width: int, prompt: set[int], out: set[int]
) -> None:
    jobs, at_once = make_jobs(name, 0, 40000)
    assert (len(jobs), at_once) == (requests, width)
    assert {len(job.prompt) for job in jobs} == prompt
    assert {job.max_tokens for job in jobs} == out


def test_the_mixed_workload_is_the_same_each_time_and_within_its_limits() -> None:
    jobs, at_once = make_jobs("mixed", 0, 40000)
    assert (len(jobs), at_once) == (48, 16)
    assert all(16 <= len(job.prompt) <= 768 and 16 <= job.max_tokens <= 160 for job in jobs)
    assert len({len(job.prompt) for job in jobs}) > 20
    assert make_jobs("mixed", 0, 40000)[0] == jobs


def test_no_prompt_begins_like_another_but_in_the_prefix_workload() -> None:
    heads = [
        tuple(job.prompt[:8])
        for name in WORKLOADS
        for round_number in range(2)
        for job in make_jobs(name, round_number, 40000)[0]
        if name != "prefix"
    ]
    assert len(heads) == len(set(heads))
    shared = [make_jobs("prefix", number, 40000)[0] for number in range(2)]
    for jobs in shared:
        assert len({tuple(job.prompt[:1024]) for job in jobs}) == 1
        assert len({tuple(job.prompt[1024:]) for job in jobs}) == 16
    assert shared[0][0].prompt[:8] != shared[1][0].prompt[:8]


def test_token_ids_stay_below_the_limit() -> None:
    ids = {token for job in make_jobs("batch32", 0, 400)[0] for token in job.prompt}
    assert min(ids) >= 300 and max(ids) < 400


def test_the_figures_by_hand() -> None:
    timings = [Timing(0.1, 1.1, 10, 11), Timing(0.3, 2.3, 10, 21), Timing(0.2, 0.2, 4, 1)]
    figures = summarize(timings, wall_s=2.0)
    assert figures == {
        "requests": 3,
        "wall_s": 2.0,
        "out_tokens": 33,
        "in_tokens": 24,
        "out_tok_s": 16.5,
        "in_tok_s": 12.0,
        "ttft_ms_p50": 200.0,
        "ttft_ms_max": 300.0,
        "tpot_ms_p50": 100.0,
        "latency_s_mean": 1.2,
    }
    assert summarize(timings[2:], 1.0)["tpot_ms_p50"] is None
    assert len(table_row("single", figures)) == len(table_head())


@pytest.mark.parametrize("chunked", [True, False])
def test_a_run_prints_a_table_and_one_line_of_json(
    chunked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeOpenAI(chunked=chunked) as server:
        words = ["bench", "--url", server.url, "--workloads", "single,batch8", "--rounds", "2"]
        assert main([*words, "--api-key", "k"]) == 0
        out = capsys.readouterr().out.splitlines()
        result = json.loads(out[-1])
        assert list(result) == ["single", "batch8"]
        assert result["batch8"]["requests"] == 8
        # Tokens are counted by the server's usage, not by events.
        assert result["batch8"]["out_tokens"] == 8 * 128
        assert result["single"]["in_tokens"] == 128
        assert [line.split()[0] for line in out[:-1]] == ["workload", "single", "batch8"]
        assert 1 < server.most_open <= 8
        warm_up, measured = server.bodies[:9], server.bodies[9:]
        assert len(measured) == 2 * (1 + 8)
        assert {body["max_tokens"] for body in warm_up} == {16}
        for body in measured:
            assert body["model"] == "fake" and body["ignore_eos"] and body["temperature"] == 0
            assert body["stream"] and body["stream_options"] == {"include_usage": True}
        prompts = [tuple(body["prompt"]) for body in server.bodies]
        assert len(set(prompts)) == len(prompts)
        assert all(headers["Authorization"] == "Bearer k" for headers in server.headers)


def test_another_round_has_other_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI() as server:
        words = ["bench", "--url", server.url, "--workloads", "single", "--rounds", "1"]
        main(words)
        main([*words, "--first-round", "1"])
    assert server.bodies[9]["prompt"] != server.bodies[19]["prompt"]
    assert len(server.bodies) == 20


def test_an_error_of_the_server_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI(error=(400, "no ids here")) as server:
        assert main(["bench", "--url", server.url, "--model", "m"]) == 1
    assert "400: no ids here" in capsys.readouterr().err


def test_a_stream_that_breaks_is_not_taken_for_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI(cut=True) as server:
        assert main(["bench", "--url", server.url, "--model", "m"]) == 69
    assert "broke" in capsys.readouterr().err


def test_a_stream_without_a_token_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI(pieces=("", "")) as server:
        assert main(["bench", "--url", server.url, "--model", "m"]) == 1
    assert "without a token" in capsys.readouterr().err


def test_no_server_is_69(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeOpenAI() as server:
        url = server.url
    assert main(["bench", "--url", url]) == 69
    assert url in capsys.readouterr().err
