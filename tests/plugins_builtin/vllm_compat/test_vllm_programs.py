"""Programs written for vLLM that make an ``LLM``, and what their loggers show."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hookserve.engine import LLM, SamplingParams

PROGRAM = """
import json
import logging
import sys

from vllm import LLM, EngineArgs, SamplingParams
from vllm.config import get_layers_from_vllm_config
from vllm.inputs import TokensPrompt
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

if __name__ == "__main__":
    logger = init_logger("vllm.my_program")
    for _ in range(2):
        logger.info_once("said once by %s", "me", scope="global")
    logger.debug("a detail")
    logging.getLogger("vllm.other").info("said by a plain logger")
    init_logger("elsewhere").info("said by another, of this program's")
    logging.getLogger("elsewhere").debug_once("said with a name that it has from then on")
    llm = LLM(model=sys.argv[1], max_model_len=64, enforce_eager=True, seed=0)
    params = SamplingParams(temperature=0.0, max_tokens=5)
    outputs = llm.generate([TokensPrompt(prompt_token_ids=[1, 2, 3]), "hello"], params)
    chat = llm.chat([{"role": "user", "content": "hello"}], params)
    config = llm.llm_engine.vllm_config
    print(json.dumps({
        "texts": [list(each.outputs[0].token_ids) for each in [*outputs, *chat]],
        "class": config.model_config.architecture,
        "length": config.model_config.max_model_len,
        "layers": sorted(get_layers_from_vllm_config(config, Attention)),
        "model": llm.apply_model(lambda model: type(model).__name__),
        "eager": config.model_config.enforce_eager,
        "levels": [config.engine_config.log_level, EngineArgs(log_level="ERROR").log_level],
    }))
"""


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path
) -> subprocess.CompletedProcess[str]:
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.py").write_text(PROGRAM)
    command = ["-m", "hookserve.server.vllm_python", "program.py", str(tiny_llama)]
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "DEBUG", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_program_generates_as_with_our_own_names(
    ended: subprocess.CompletedProcess[str], tiny_llama: Path
) -> None:
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    params = SamplingParams(temperature=0.0, max_tokens=5)
    with LLM(str(tiny_llama), max_model_len=64, enforce_eager=True) as llm:
        outputs = llm.generate([[1, 2, 3], "hello"], params)
        outputs += llm.chat([{"role": "user", "content": "hello"}], params)
        layers = sorted(llm.llm_engine.vllm_config.compilation_config.static_forward_context)
    assert told == {
        "texts": [list(each.outputs[0].token_ids) for each in outputs],
        "class": "LlamaForCausalLM",
        "length": 64,
        "layers": layers,
        "model": ["LlamaForCausalLM"],
        "eager": True,
        "levels": ["DEBUG", "ERROR"],
    }
    assert len(layers) == 2 and len(told["texts"]) == 3


@pytest.mark.checklist(91, 92, 121)
def test_lines_of_the_packages_loggers_show_and_of_the_programs_own(
    ended: subprocess.CompletedProcess[str],
) -> None:
    head = r"^\(Program pid=\d+\) (\w+) \d\d-\d\d \d\d:\d\d:\d\d \[program\.py:\d+\] "
    said = re.findall(head + r"(?:plugin \S+ says: )?(.*)$", ended.stderr, re.MULTILINE)
    assert said == [
        ("INFO", "said once by me"),
        ("DEBUG", "a detail"),
        ("INFO", "said by a plain logger"),
        ("INFO", "said by another, of this program's"),
        ("DEBUG", "said with a name that it has from then on"),
    ]
