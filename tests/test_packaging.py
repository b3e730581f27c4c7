"""The wheel holds every file of the five folders, each under one name; nothing heavy is imported
where it must not be. The command line and the servers that tests start rely on it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDERS = ("hookspecs", "ops", "engine", "server", "plugins_builtin")
BESIDE = ("pyproject.toml", "README.md", "LICENSE")

BLOCK_TENSORS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "triton"):
            raise ImportError(f"{name} is blocked here")

sys.meta_path.insert(0, Blocked())
"""


def shipped_files(root: Path) -> set[str]:
    """Every file of the five folders, by the name that it has below ``hookserve``."""
    return {
        path.relative_to(root).as_posix()
        for folder in FOLDERS
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def module_names(root: Path) -> list[str]:
    names = []
    for file in sorted(shipped_files(root)):
        if file.endswith(".py"):
            parts = Path(file).with_suffix("").parts
            names.append(".".join(("hookserve", *parts)).removesuffix(".__init__"))
    return names


def run_python(
    code: str, *args: str, cwd: Path, safe_path: bool = True
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    if safe_path:
        env["PYTHONSAFEPATH"] = "1"
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def wheel_files(source_root: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel that is built, offline, from a copy of the source tree."""
    base = tmp_path_factory.mktemp("wheel")
    copy = base / "source"
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source_root / folder, copy / folder, ignore=ignored)
    for name in BESIDE:
        shutil.copy(source_root / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(base), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=base)
    assert built.returncode == 0, built.stderr
    (wheel,) = base.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_file_of_the_five_folders_is_in_the_wheel(
    source_root: Path, wheel_files: set[str]
) -> None:
    packaged = {
        name.removeprefix("hookserve/") for name in wheel_files if name.startswith("hookserve/")
    }
    assert packaged == shipped_files(source_root)


def test_the_wheel_adds_no_other_top_level_name(wheel_files: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel_files}
    version = importlib.metadata.version("hookserve")
    assert tops == {"hookserve", f"hookserve-{version}.dist-info"}


def test_the_installed_distribution_is_this_source(source_root: Path) -> None:
    distribution = importlib.metadata.distribution("hookserve")
    url = json.loads(distribution.read_text("direct_url.json") or "{}")
    if url.get("dir_info", {}).get("editable"):
        import hookserve.engine

        assert Path(hookserve.engine.__file__).resolve().parent == source_root / "engine"
        return
    installed = {
        file.as_posix().removeprefix("hookserve/"): file
        for file in distribution.files or ()
        if file.as_posix().startswith("hookserve/") and "__pycache__" not in file.parts
    }
    assert set(installed) == shipped_files(source_root)
    for name, file in installed.items():
        assert Path(str(file.locate())).read_bytes() == (source_root / name).read_bytes(), name


def test_each_folder_tells_type_checkers_that_it_is_typed(wheel_files: set[str]) -> None:
    assert {f"hookserve/{folder}/py.typed" for folder in FOLDERS} <= wheel_files


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_cannot_be_imported_under_its_bare_name(folder: str, source_root: Path) -> None:
    """Two copies of one class would not be the same class."""
    done = run_python(f"import {folder}", cwd=source_root, safe_path=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError:"), done.stderr
    assert f"import hookserve.{folder}" in last


def test_no_file_is_loaded_under_two_names(source_root: Path, tmp_path: Path) -> None:
    code = """
import collections, importlib, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
seen = collections.defaultdict(list)
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name.partition(".")[0] != "__main__":
        seen[os.path.realpath(file)].append(name)
ours = [names for names in seen.values() if any(n.startswith("hookserve.") for n in names)]
assert len(ours) == len(sys.argv) - 1, (len(ours), len(sys.argv))
twice = [names for names in ours if len(names) > 1]
assert not twice, twice
"""
    done = run_python(code, *module_names(source_root), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "prefix",
    [
        "hookserve.hookspecs",
        "hookserve.engine.text",
        "hookserve.engine.config",
        "hookserve.engine.messages",
        "hookserve.engine.async_llm",
        "hookserve.engine.llm_engine",
        "hookserve.server",
    ],
)
def test_it_imports_with_torch_blocked(prefix: str, source_root: Path, tmp_path: Path) -> None:
    names = [
        name
        for name in module_names(source_root)
        if name == prefix or name.startswith(f"{prefix}.")
    ]
    assert names, prefix
    code = BLOCK_TENSORS + "import importlib\nfor n in sys.argv[1:]: importlib.import_module(n)"
    done = run_python(code, *names, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_is_for_use_in_python_is_found_without_torch(tmp_path: Path) -> None:
    code = BLOCK_TENSORS + (
        "import hookserve.engine as engine\n"
        "assert not [n for n in sys.modules if n.startswith('hookserve.engine.')]\n"
        "for name in engine.__all__: print(name, getattr(engine, name).__name__)\n"
    )
    done = run_python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert all(asked == name for asked, name in found)
    assert {"LLM", "AsyncLLM", "EngineArgs", "SamplingParams"} <= {name for name, _ in found}


def test_the_links_for_type_checkers_lead_to_the_folders(source_root: Path) -> None:
    links = source_root / ".typing" / "hookserve"
    assert sorted(link.name for link in links.iterdir()) == sorted(FOLDERS)
    for folder in FOLDERS:
        assert os.readlink(links / folder) == f"../../{folder}"
        assert (links / folder).resolve() == (source_root / folder).resolve()


def test_the_pins_cover_every_declared_dependency(source_root: Path) -> None:
    """A dependency without a pin would make two installs of one release differ."""
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    pins: dict[str, Version] = {}
    for line in (source_root / "constraints.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = Version(version)
    project = tomllib.loads((source_root / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in ("test", "dev", "hub"):
        wanted += project["optional-dependencies"][extra]
    for text in wanted:
        requirement = Requirement(text)
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} has no pin"
        assert requirement.specifier.contains(pin), f"the pin {pin} is outside {text}"
