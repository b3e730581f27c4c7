"""The statistics of a real engine as a plugin's stat logger gets them: once for each step."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import RunningServer, wait_until

PLUGIN = """
import json

from hookserve.hookspecs import hookimpl


class Writer:
    def __init__(self, config, engine_index=0):
        self.file = open("records.jsonl", "a", buffering=1)

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        entry = {"engine": engine_idx, "step": None, "computed": False, "tokens": 0, "ends": []}
        if scheduler_stats is not None:
            entry["step"] = scheduler_stats.step_counter
            entry["computed"] = scheduler_stats.iteration_details is not None
            entry["running"] = scheduler_stats.num_running_reqs
        if iteration_stats is not None:
            entry["tokens"] = iteration_stats.num_generation_tokens
            entry["ends"] = [each.finish_reason for each in iteration_stats.finished_requests]
        print(json.dumps(entry), file=self.file)

    def log(self):
        pass

    def log_engine_initialized(self):
        pass

    def shutdown(self):
        self.file.close()


@hookimpl
def stat_logger():
    return [Writer]
"""


def test_a_stat_logger_is_called_once_for_each_step(
    tiny_llama: Path, tmp_path: Path, running_server: Callable[..., RunningServer]
) -> None:
    (tmp_path / "writer.py").write_text(PLUGIN)
    args = [str(tiny_llama), "--plugin", "./writer.py", "--log-stats-interval", "1"]
    server = running_server(args, cwd=tmp_path)
    bodies: list[dict[str, Any]] = [
        {"prompt": [1, 2, at], "max_tokens": 4 + 3 * at, "temperature": 0, "ignore_eos": True}
        for at in range(4)
    ]
    bodies.append({"prompt": "ab", "max_tokens": 12, "seed": 1, "n": 2})
    with ThreadPoolExecutor(len(bodies)) as pool:
        replies = list(pool.map(lambda body: server.post("/v1/completions", body), bodies))
    usages = [reply.json()["usage"]["completion_tokens"] for reply in replies]

    def records() -> list[dict[str, Any]]:
        lines = (tmp_path / "records.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    wait_until(lambda: sum(len(each["ends"]) for each in records()) == 6, 10, "six ends")
    seen = records()
    assert {each["engine"] for each in seen} == {0}
    steps = [each["step"] for each in seen if each["computed"]]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert sum(each["tokens"] for each in seen) == sum(usages)
    assert {each["running"] for each in seen[-1:]} == {0}
    metrics = server.get("/metrics").text
    counted = re.search(r"hookserve_iteration_tokens_total_count\{.*\} ([0-9.]+)", metrics)
    assert counted is not None and float(counted[1]) == len(steps)
    wait_until(lambda: "Avg generation throughput" in server.stderr, 10, "the line of statistics")
