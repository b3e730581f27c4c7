"""The toy package for vLLM in real servers: model, op, stat logger and endpoint, each doing its job
in the processes that need it, on a folder and a GGUF file. With two ranks: ``test_vllm_ranks_e2e``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import RunningServer, run_command
from vllm_tour import (
    MODEL_MODULE,
    NUM_TOKENS,
    RENAMED,
    SMALL,
    Tour,
    check_tokens_are_logged,
    complete,
    lines_with,
    op_in,
    say_plainly,
)

SMOLLM2_LAYERS = 30
TEXTS = ("The capital of France is", "Once upon a time", "1, 2, 3,")
TOY = "vllm-toy-plugin:vllm.general_plugins:toy_register"


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory, source_root: Path) -> Tour:
    toy = source_root / "tests" / "toys" / "vllm_toy_plugin"
    return Tour(tmp_path_factory.mktemp("tour"), toy)


@pytest.fixture(scope="module")
def smollm2_says(smollm2_f32: Path) -> list[str]:
    return say_plainly(smollm2_f32, list(TEXTS))


@pytest.mark.checklist(
    2, 13, 15, 38, 42, 46, 47, 49, 51, 54, 55, 56, 75, 77, 86, 87, 89, 91, 97, 98, 110, 111, 112
)
def test_1_a_folder_is_served_by_all_parts_of_the_toy(
    tour: Tour, smollm2_f32: Path, smollm2_says: list[str]
) -> None:
    args = [str(smollm2_f32), *RENAMED, "--compilation-config", '{"custom_ops": ["+RMSNorm"]}']
    with RunningServer([*args, *SMALL], env=tour.environment("folder")) as server:
        assert complete(server, list(TEXTS)) == smollm2_says
        hello = server.get("/v1/toy/hello")
        assert (hello.status_code, hello.json()) == (200, {"hello": "from the toy"})
        (norm,) = op_in(server, "rms_norm").values()
        check_tokens_are_logged(server, NUM_TOKENS * len(TEXTS))
        (model,) = tour.trace("folder", "model")
        assert model["pid"] == server.engine_pid
    count = 2 * SMOLLM2_LAYERS + 1
    assert model["class"] == f"{MODEL_MODULE}:ToyLlamaForCausalLM"
    assert (model["norms"], model["marked"]) == (count, count)
    assert (norm["implementation"], norm["owner"]) == ("vllm_toy_plugin.ops:ToyRMSNorm", TOY)
    assert norm["built"] == count and norm["calls"] >= count * NUM_TOKENS
    # One process is both engine and worker.
    assert tour.registered("folder") == ["front", "inspector", "process"]
    assert tour.importers("folder", MODEL_MODULE) == ["inspector", "process"]


@pytest.mark.checklist(32, 48, 50, 52, 67, 73)
def test_2_a_gguf_file_too_and_the_op_by_its_other_name(
    tour: Tour, smollm2_gguf: Path, smollm2_says: list[str]
) -> None:
    """Nothing but that op is on; and what the inspector has found before is known. In float32,
    where a norm by torch and one by a compiled kernel are the same."""
    args = [str(smollm2_gguf), "--dtype", "float32", *RENAMED, *SMALL]
    args += ["--compilation-config", '{"custom_ops": ["none", "+rms_norm"]}']
    with RunningServer(args, env=tour.environment("gguf")) as server:
        assert complete(server, list(TEXTS)) == smollm2_says
        assert server.get("/v1/toy/hello").status_code == 200
        (norm,) = op_in(server, "rms_norm").values()
        (line,) = lines_with(server, "overrides forward_cuda of rms_norm (RMSNorm)")
    (model,) = tour.trace("gguf", "model")
    count = 2 * SMOLLM2_LAYERS + 1
    assert model["class"] == f"{MODEL_MODULE}:ToyLlamaForCausalLM"
    assert model["marked"] == norm["built"] == count
    assert " WARNING " in line and "the platform 'cpu' does not call" in line
    assert tour.registered("gguf") == ["front", "process"]
    assert tour.importers("gguf", MODEL_MODULE) == ["process"]


@pytest.mark.checklist(35, 47, 110, 113)
def test_a_space_in_the_list_is_told_by_name_and_what_it_leaves_out_is_missing(
    tour: Tour, tiny_llama: Path
) -> None:
    listed = tour.environment("space", "toy_stat_logger, toy_endpoint, toy_register")
    done = run_command(["run", str(tiny_llama), *RENAMED], env=listed)
    assert done.returncode == 78
    for entry in ("toy_endpoint", "toy_register"):
        (line,) = [each for each in done.stderr.splitlines() if f"the entry ' {entry}'" in each]
        assert " WARNING " in line and f"write '{entry}'" in line
    last = done.stderr.splitlines()[-1]
    assert "ToyLlamaForCausalLM" in last and "are not supported for now" in last
    assert f"{TOY} is blocked by VLLM_PLUGINS" in last


@pytest.mark.checklist(68, 69)
def test_an_op_that_is_switched_on_and_off_is_an_error(tiny_llama: Path) -> None:
    listed = json.dumps({"custom_ops": ["+RMSNorm", "-rms_norm"]})
    done = run_command(["run", str(tiny_llama), "--compilation-config", listed])
    assert done.returncode == 78
    last = done.stderr.splitlines()[-1]
    assert "custom_ops has both +RMSNorm and -rms_norm; expected one of them" in last
