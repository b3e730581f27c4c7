"""Scripts that use the engine without a server: those of the documentation, and one in which an
event loop runs and threads ask."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import START_TIMEOUT_S, clean_environment


def run_script(source: str, folder: Path, *args: str) -> str:
    """What a script of its own file prints; it must end well and complain of nothing."""
    script = folder / "script.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script), *args],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def blocks(source_root: Path, smollm2_gguf: Path) -> list[str]:
    """The scripts of the page; the default model is there already."""
    page = (source_root / "docs" / "offline.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def test_the_pages_scripts_say_what_they_should(
    blocks: list[str], source_root: Path, tmp_path: Path
) -> None:
    first, batch, stream = blocks
    assert first in (source_root / "README.md").read_text()
    assert "Paris" in run_script(first, tmp_path)
    lines = run_script(batch, tmp_path).splitlines()
    assert "Paris" in lines[0] and lines[0].endswith(" stop")
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert "token id 999999999 is not in the vocabulary" in lines[4]
    assert "Paris" in run_script(stream, tmp_path)


LOOP_AND_THREADS = """
import asyncio, sys, threading

from hookserve.engine import LLM, SamplingParams

params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def ask(model, answers, ranks=1):
    with LLM(model, max_model_len=128, tensor_parallel_size=ranks) as llm:
        (output,) = llm.generate("abc", params, use_tqdm=False)
        told = [report.process for report in llm.plugins.describe(all_processes=True)]
        assert told == ["front", *[f"worker {rank}" for rank in range(ranks) if ranks > 1]]
        answers.append(output.outputs[0].token_ids)


async def as_in_a_notebook():
    answers = []
    ask(sys.argv[1], answers)  # a cell runs inside of the loop
    threads = [threading.Thread(target=ask, args=(sys.argv[1], answers, n)) for n in (1, 2)]
    for thread in threads:
        thread.start()
        thread.join()
    print(len(answers), len(set(map(tuple, answers))), len(answers[0]))


asyncio.run(as_in_a_notebook())
llm = LLM(sys.argv[1], max_model_len=128)
# Nobody ends this one: the process does.
"""


def test_a_running_loop_and_threads_are_no_obstacle(tiny_llama: Path, tmp_path: Path) -> None:
    assert run_script(LOOP_AND_THREADS, tmp_path, str(tiny_llama)).split() == ["3", "1", "5"]
