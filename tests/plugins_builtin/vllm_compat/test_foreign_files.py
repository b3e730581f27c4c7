"""Modules that other distributions install under ``vllm/``: what they list, and nothing else."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pkgutil
from pathlib import Path
from typing import Any

import pytest

from hookserve.hookspecs import Host, PluginSettings
from plugin_folder import install_plugin

GENERAL = "vllm.general_plugins"
pytestmark = pytest.mark.usefixtures("vllm_facade")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, files: dict[str, str], body: str = "pass") -> None:
    install_plugin(
        site,
        name,
        {name: f"def register():\n    {body}\n"},
        groups={GENERAL: {name: f"{name}:register"}},
        files=files,
    )


def test_files_without_a_package_of_their_own_are_served(site: Path) -> None:
    files = {
        "vllm/model_security/loader.py": "from vllm import ModelRegistry\nfrom . import keys\n",
        "vllm/model_security/keys/file.py": "",
        "vllm/model_executor/models/secret.py": "name = __name__\n",
        "vllm/whole/__init__.py": "",
        "vllm/whole/inner.py": "value = 6\n",
    }
    body = (
        "from vllm.model_security.loader import keys; import vllm.model_security.keys.file\n"
        "    import vllm.whole.inner; vllm.whole.inner.value = 7"
    )
    install(site, "secure", files, body)
    host = Host(["front", "engine", "worker"], PluginSettings())
    assert host.problems() == []
    report = next(each for each in host.describe() if each.distribution == "secure")
    assert report.patches == [], "of code that is its own"
    assert importlib.import_module("vllm.whole.inner").value == 7
    secret: Any = importlib.import_module("vllm.model_executor.models.secret")
    assert (secret.name, secret.__file__) == (
        "vllm.model_executor.models.secret",
        str(site / "vllm/model_executor/models/secret.py"),
    )
    import vllm

    assert list(vllm.__path__)[1:] == [str(site / "vllm")], "nothing else lies there"
    package = importlib.import_module("vllm.model_security")
    assert [each.name for each in pkgutil.iter_modules(package.__path__)] == ["loader"]


def test_what_nobody_lists_is_not_served_though_it_lies_there(site: Path) -> None:
    install(site, "secure", {"vllm/extra/listed.py": ""})
    for path in ("vllm/extra/stray.py", "vllm/stray.py"):
        (site / path).write_text("raise RuntimeError('not listed')")
    Host(["front"], PluginSettings())
    assert importlib.util.find_spec("vllm.extra.listed") is not None
    assert importlib.util.find_spec("vllm.extra.stray") is None
    assert importlib.util.find_spec("vllm.stray") is None


def test_a_file_of_the_name_of_one_that_is_served_is_refused_by_name(site: Path) -> None:
    install(site, "bold", {"vllm/logger.py": "raise RuntimeError('replaced')"})
    host = Host(["front"], PluginSettings())
    assert (
        "distribution bold installs vllm/logger.py, which would replace the module vllm.logger "
        "that is served here; its file is not used"
    ) in host.warnings
    assert importlib.import_module("vllm.logger").__file__ != str(site / "vllm/logger.py")


def test_one_file_of_two_distributions_is_told(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a_one", "b_two"):
        install(site, name, {"vllm/extra/shared.py": f"owner = {name!r}\n"})
    host = Host(["front"], PluginSettings())
    (line,) = [line for line in host.warnings if "shared.py" in line]
    assert "distributions" in line and "a_one" in line and "b_two" in line
    caplog.set_level(logging.WARNING)
    assert importlib.import_module("vllm.extra.shared").owner == "b_two", "who was installed last"


def test_a_list_of_files_that_cannot_be_read_is_told_and_the_others_are_served(site: Path) -> None:
    for name in ("damaged", "whole"):
        install(site, name, {f"vllm/extra/{name}.py": ""})
    (record,) = site.glob("damaged-*/RECORD")
    record.write_bytes(record.read_bytes() + b"vllm/\xe9.py,,\n")

    host = Host(["front"], PluginSettings())

    (told,) = [line for line in host.warnings if "damaged" in line]
    assert told.startswith(f"what {record.parent} lists cannot be read, and none of it is served")
    assert importlib.import_module("vllm.extra.whole").__file__ == str(site / "vllm/extra/whole.py")
    assert importlib.util.find_spec("vllm.extra.damaged") is None


def test_an_editable_install_lists_none_and_the_error_says_so(site: Path, tmp_path: Path) -> None:
    """What ``pip install -e`` leaves: a line of a ``.pth`` file, and a record without modules."""
    source = tmp_path / "src"
    (source / "vllm" / "extra").mkdir(parents=True)
    (source / "vllm" / "extra" / "mine.py").write_text("")
    install(site, "editable", {}, "import vllm.extra.mine")
    importlib.import_module("sys").path.insert(0, str(source))
    try:
        (problem,) = Host(["front"], PluginSettings()).problems()
    finally:
        importlib.import_module("sys").path.remove(str(source))
    assert "vllm.extra" in problem
    assert f"{source / 'vllm' / 'extra'} is there, but no distribution lists it" in problem
    assert "without -e" in problem
