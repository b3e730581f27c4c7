"""``python -m hookserve.server.vllm_python``: a program written for vLLM, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugin_folder import install_package, install_plugin

PROGRAM = "hookserve.server.vllm_python"
QUICK_CHECK = """
from vllm import ModelRegistry
from vllm.model_executor.custom_op import op_registry_oot
from vllm.plugins import load_general_plugins
from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories

for _ in range(2):
    load_general_plugins()
    print("ToyLlamaForCausalLM" in ModelRegistry.get_supported_archs())
    print(op_registry_oot)
    print(load_stat_logger_plugin_factories())
"""
EXPECTED = """\
True
{'RMSNorm': <class 'vllm_toy_plugin.ops.ToyRMSNorm'>}
[<class 'vllm_toy_plugin.stat_logger.ToyStatLogger'>]
"""


def run(site: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site), "HOME": str(site), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.checklist(2, 26, 27, 123, 124, 125)
def test_the_quick_check_prints_what_authors_expect(tmp_path: Path, source_root: Path) -> None:
    install_package(tmp_path, source_root / "tests" / "toys" / "vllm_toy_plugin")
    (tmp_path / "check.py").write_text(QUICK_CHECK)
    trace = tmp_path / "trace"

    ended = run(tmp_path, "-m", PROGRAM, "check.py", TOY_PLUGIN_TRACE=str(trace))

    assert (ended.returncode, ended.stdout) == (0, EXPECTED * 2), ended.stderr
    assert trace.read_text().count('"event": "register"') == 1


@pytest.mark.checklist(18, 29, 121, 122, 142)
def test_a_program_runs_as_under_python(tmp_path: Path) -> None:
    """Arguments, ``__main__``, its own registrations, the log, an error as Python shows it."""
    install_plugin(
        tmp_path,
        "twice",
        {"twice": "count = 0\ndef register():\n    global count\n    count += 1"},
        groups={"vllm.general_plugins": {"twice": "twice:register"}},
    )
    (tmp_path / "program.py").write_text(
        """import subprocess
import sys
from vllm import ModelRegistry
import twice

if __name__ == "__main__":
    twice.register()
    ModelRegistry.register_model("Mine", "program:Mine")
    print(sys.argv, __file__, sys.path[0] == sys.argv[2], twice.count)
    print("Mine" in ModelRegistry.get_supported_archs(), sys.modules["__main__"].__name__)
    words = [sys.executable, "-m", "hookserve.server.vllm_python", "child.py"]
    print(subprocess.run(words, capture_output=True, text=True).stdout.strip())
    print(1 / 0)
"""
    )

    (tmp_path / "child.py").write_text(
        """from vllm import ModelRegistry
import twice

print("Mine" in ModelRegistry.get_supported_archs(), twice.count)
"""
    )

    ended = run(
        tmp_path, "-m", PROGRAM, "program.py", "--flag", str(tmp_path), VLLM_LOGGING_LEVEL="DEBUG"
    )

    assert ended.returncode == 1
    assert ended.stdout.splitlines() == [
        f"['program.py', '--flag', '{tmp_path}'] {tmp_path}/program.py True 2",
        "True __main__",
        "False 1",  # of a child, which has what entry points register, and that alone
    ]
    error = ended.stderr[ended.stderr.index("Traceback") :].splitlines()
    assert [error[1].strip(), error[-1]] == [
        f'File "{tmp_path}/program.py", line 13, in <module>',
        "ZeroDivisionError: division by zero",
    ]
    identity = "plugin twice:vllm.general_plugins:twice"
    steps = ("discovered", "loaded in", "active")
    assert [ended.stderr.index(f"{identity}: {step}") for step in steps] == sorted(
        ended.stderr.index(f"{identity}: {step}") for step in steps
    )


def test_modules_exit_codes_and_usage_are_as_python_has_them(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import sys, vllm\nprint(sys.argv[1:], __name__)\nsys.exit(7)\n"
    )

    ended = run(tmp_path, "-m", PROGRAM, "-m", "leaves", "--now")
    nothing = run(tmp_path, "-m", PROGRAM, "nowhere.py")
    plain = run(tmp_path, "-c", "import hookserve.server.vllm_python, vllm")

    assert (ended.returncode, ended.stdout) == (7, "['--now'] __main__\n")
    assert nothing.returncode == 2
    assert "can't open file 'nowhere.py': No such file or directory" in nothing.stderr
    assert "No module named 'vllm'" in plain.stderr
