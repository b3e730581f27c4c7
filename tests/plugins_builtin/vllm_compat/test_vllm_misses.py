"""What a plugin is told of names that are not served, and who may ask without being told."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from hookserve.hookspecs import Host, PluginError, PluginSettings
from hookserve.plugins_builtin.vllm_compat import finder
from plugin_folder import install_plugin

GENERAL = "vllm.general_plugins"
PAGE = "see docs/vllm-plugins.md"
pytestmark = pytest.mark.usefixtures("vllm_facade")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, body: str, name: str = "probing", **files: str) -> str:
    install_plugin(
        site,
        name,
        {name: body},
        groups={GENERAL: {name: f"{name}:register"}},
        files={f"{name}/{each}.py": text for each, text in files.items()},
    )
    return f"{name}:{GENERAL}:{name}"


MISSING = {
    "module": ("import vllm.no_such", "vllm.no_such is not served here"),
    "name": ("from vllm.logger import no_such", "vllm.logger:no_such is not served here"),
    "attribute": ("import vllm; vllm.NoSuch", "vllm:NoSuch is not served here"),
    "of a module": ("import vllm.logger; vllm.logger.x", "vllm.logger:x is not served here"),
    "refused": (
        "from vllm import initialize_ray_cluster",
        "vllm:initialize_ray_cluster is not served here: there is no Ray executor",
    ),
    "of a class": (
        "from vllm import SamplingParams; SamplingParams.no_such",
        "vllm:SamplingParams.no_such is not served here",
    ),
    "of an object": (
        "from vllm import SamplingParams; SamplingParams().no_such",
        "vllm:SamplingParams.no_such is not served here",
    ),
    "of a class of the plugin's": (
        "from vllm.v1.metrics.loggers import StatLoggerBase as B; type('A', (B,), {}).x",
        "; if it is vLLM's, vllm.v1.metrics.loggers:StatLoggerBase.x is not served here",
    ),
    "raised anew": (
        "try: import vllm.no_such\n    except ImportError as e: raise RuntimeError('x') from e",
        "RuntimeError: x; vllm.no_such is not served here",
    ),
}


@pytest.mark.parametrize("statement", MISSING)
def test_where_the_host_entered_the_plugin_it_is_told_who_what_and_where(
    statement: str, site: Path
) -> None:
    code, told = MISSING[statement]
    identity = install(site, f"def register():\n    {code}\n")
    host = Host(["front"], PluginSettings())
    (plugin,) = [each for each in host.plugins if each.adapter]
    (problem,) = host.problems()
    assert problem.startswith(f"{identity} is out, failed at stage 'run': hook register_by_call")
    assert told in problem and PAGE in problem
    assert f"({site / 'probing' / '__init__.py'}:2)" in problem
    assert isinstance(plugin.exception, ImportError | AttributeError | RuntimeError)


def test_an_import_at_the_top_of_the_module_is_told_with_the_line_of_the_module_that_has_it(
    site: Path,
) -> None:
    install(site, "from . import inner\ndef register(): pass", inner="\n\nimport vllm.no_such\n")
    (problem,) = Host(["front"], PluginSettings()).problems()
    assert "stage 'import': ModuleNotFoundError: No module named 'vllm.no_such'" in problem
    assert f"vllm.no_such is not served here ({site / 'probing' / 'inner.py'}:3)" in problem


def test_a_target_that_is_imported_late_is_told_too(site: Path) -> None:
    body = (
        "def register():\n    from vllm import ModelRegistry\n"
        "    ModelRegistry.register_model('Toy', 'probing.inner:Toy')"
    )
    install(site, body, inner="from vllm.logger import no_such")
    host = Host(["engine", "worker"], PluginSettings())
    with pytest.raises(PluginError) as raised:
        host.registry("model").resolve("Toy")
    assert f"vllm.logger:no_such is not served here ({site / 'probing' / 'inner.py'}:1)" in str(
        raised.value
    )


def test_an_error_of_the_plugins_own_is_left_as_it_is(site: Path) -> None:
    install(site, "def register():\n    import not_there")
    (problem,) = Host(["front"], PluginSettings()).problems()
    assert "No module named 'not_there'" in problem and "served" not in problem


PROBES = """
import importlib.util
import vllm
import vllm.logger

def register():
    assert importlib.util.find_spec("vllm.no_such") is None
    assert not hasattr(vllm, "NoSuch") and getattr(vllm, "NoSuch", 7) == 7
    try:
        from vllm.no_such.deeper import Thing
    except ModuleNotFoundError as error:
        assert error.name == "vllm.no_such"
    try:
        from vllm.logger import NoSuch
    except ImportError as error:
        assert error.name == "vllm.logger"
        assert str(error).startswith("cannot import name 'NoSuch' from 'vllm.logger'")
    try:
        vllm.logger.NoSuch
    except AttributeError as error:
        assert (error.name, error.obj) == ("NoSuch", vllm.logger)
"""


def test_who_only_asks_is_told_nothing_and_noted(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    identity = install(site, PROBES)
    host = Host(["front"], PluginSettings())
    assert host.problems() == []
    assert not [
        record
        for record in caplog.records
        if "NoSuch" in record.getMessage() and record.levelno > logging.DEBUG
    ]
    found = finder.installed()
    assert found is not None
    file = sys.modules["probing"].__file__
    assert {miss.symbol: miss.where for miss in found.misses.of(identity)} == {
        "vllm.no_such": f"{file}:7",
        "vllm:NoSuch": f"{file}:8",
        "vllm.logger:NoSuch": f"{file}:14",
    }
    assert f"{identity} asked for vllm.no_such at {file}:7, which is not served" in caplog.messages


@pytest.mark.checklist(17, 28)
def test_a_plugin_that_imports_host_modules_before_it_is_asked(site: Path) -> None:
    body = (
        "import vllm.v1.metrics.loggers, vllm.logger\n"
        "from vllm import ModelRegistry, SamplingParams\n"
        "logger = vllm.logger.init_logger(__name__)\n"
        "known = ModelRegistry.get_supported_archs()\n"
        "def register():\n    ModelRegistry.register_model('Early', 'probing:Early')"
    )
    install(site, body)
    host = Host(["front", "engine", "worker"], PluginSettings())
    assert host.problems() == []
    assert host.registry("model").get("Early").owner == f"probing:{GENERAL}:probing"


def test_registrations_of_a_module_that_is_imported_late_and_of_one_too_late(site: Path) -> None:
    body = (
        "def register():\n    from vllm import ModelRegistry\n"
        "    ModelRegistry.register_model('Toy', 'probing.inner:Toy')"
    )
    inner = (
        "from vllm import ModelRegistry\nfrom vllm.model_executor.layers.layernorm import RMSNorm\n"
        "@RMSNorm.register_oot\nclass Mine(RMSNorm): pass\n"
        "class Toy: pass\n"
    )
    late = "from vllm import ModelRegistry\nModelRegistry.register_model('Late', 'probing:Late')\n"
    identity = install(site, body, inner=inner, late=late)
    host = Host(["engine", "worker"], PluginSettings())
    assert host.registry("oot_op").claims() == []
    host.registry("model").resolve("Toy")
    (claim,) = host.registry("oot_op").claims()
    assert (claim.owner, claim.late) == (identity, True)
    plugin = next(each for each in host.plugins if each.identity == identity)
    with host.enter(plugin), pytest.raises(PluginError) as raised:
        __import__("probing.late")
    assert "registers model 'Late' too late: the table was read at" in str(raised.value)
    assert raised.value.identity == identity


def test_what_a_plugin_that_fails_did_to_served_modules_is_undone(site: Path) -> None:
    body = (
        "import vllm, vllm.logger, logging\nfrom vllm import SamplingParams\n"
        "def register():\n"
        "    vllm.LLM = vllm.added = vllm.logger.init_logger = 1\n"
        "    SamplingParams.clone = SamplingParams.added = len\n"
        "    logging.getLogger('vllm').setLevel(7)\n"
        "    if {fails}: raise ValueError('no')\n"
    )
    identity = install(site, body.format(fails=True))
    host = Host(["front"], PluginSettings())
    report = next(each for each in host.describe() if each.identity == identity)
    assert (report.state, report.patches) == ("out", [])
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.logger import init_logger

    assert (LLM.__name__, init_logger.__name__) == ("LLM", "init_logger")
    assert not hasattr(vllm, "added") and not hasattr(SamplingParams, "added")
    assert logging.getLogger("vllm").level != 7


def test_what_a_plugin_that_works_did_to_served_modules_stays_and_is_told(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm.sampling_params
    from vllm import SamplingParams
    from vllm.logger import init_logger

    monkeypatch.setattr(SamplingParams, "clone", SamplingParams.clone)  # put back in the end
    body = (
        "import vllm, vllm.logger\nfrom vllm import SamplingParams, LLM\n"
        "before = SamplingParams.clone\n"
        "def register():\n"
        "    vllm.logger.init_logger = lambda name: name\n"
        "    SamplingParams.clone = lambda self: before(self)\n"
    )
    identity = install(site, body)
    host = Host(["front"], PluginSettings())
    report = next(each for each in host.describe() if each.identity == identity)
    named = f"{SamplingParams.__module__}:SamplingParams.clone"
    assert sorted(report.patches) == sorted([named, "vllm.logger:init_logger"])
    SamplingParams().clone()
    report = next(each for each in host.describe() if each.identity == identity)
    assert report.uncalled_patches == ["vllm.logger:init_logger"]
    assert init_logger is not vllm.logger.init_logger
