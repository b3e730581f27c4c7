"""A package for vLLM that wraps the making of the configuration, in a server of real processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import RunningServer
from plugin_folder import install_plugin

SOURCE = """
from vllm.logger import init_logger

logger = init_logger("vllm.deciding")


def register():
    from vllm.config import get_current_vllm_config_or_none
    from vllm.engine.arg_utils import EngineArgs

    logger.info("registered, without a model: %s", get_current_vllm_config_or_none())
    make = EngineArgs.create_engine_config

    def create_engine_config(self, *args, **kwargs):
        self.enforce_eager = True
        config = make(self, *args, **kwargs)
        config.scheduler_config.scheduler_cls = "deciding_scheduler.DecidingScheduler"
        config.additional_config["mark"] = 7
        return config

    EngineArgs.create_engine_config = create_engine_config
"""
SCHEDULER = """
from vllm.v1.core.sched.scheduler import Scheduler

from deciding import logger


class DecidingScheduler(Scheduler):
    def __init__(self, vllm_config, *args, **kwargs):
        super().__init__(vllm_config, *args, **kwargs)
        logger.info("scheduling with mark %s", vllm_config.additional_config["mark"])
"""
OWNER = "deciding:vllm.general_plugins:deciding"


@pytest.mark.checklist(14, 91)
def test_what_a_wrapper_decides_is_what_every_process_does(
    running_server: Callable[..., RunningServer], tmp_path: Path, tiny_llama: Path
) -> None:
    groups = {"vllm.general_plugins": {"deciding": "deciding:register"}}
    install_plugin(tmp_path, "deciding", {"deciding": SOURCE}, groups=groups)
    (tmp_path / "deciding_scheduler.py").write_text(SCHEDULER)
    args = [str(tiny_llama), "--tensor-parallel-size", "2", "--max-model-len", "64"]
    server = running_server(args, env={"PYTHONPATH": str(tmp_path)})

    body = {"model": str(tiny_llama), "prompt": [1, 2, 3], "max_tokens": 2, "temperature": 0}
    answer = server.post("/v1/completions", body)

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 2
    log = server.output()
    head = rf"^\((\w+(?: \d)?) pid=\d+\) INFO .{{14}} \[\w+\.py:\d+\] plugin {OWNER} says: "
    registered = re.findall(head + "registered, without a model: None$", log, re.MULTILINE)
    assert sorted(registered) == ["Engine", "Front", "Worker 0", "Worker 1"]
    assert re.findall(r"^\((\w+) .* scheduling with mark 7$", log, re.MULTILINE) == ["Engine"]
    assert f"plugin {OWNER} set enforce_eager to True (it was False)" in log
    assert f"{OWNER} changed scheduler_config.scheduler_cls from 'default' to" in log
