"""A plugin's model class is looked at in a process of its own, refused with what is really wrong,
and remembered for as long as nothing that it is made of has changed."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hookserve.engine import inspector_child
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import EngineStartError, UnknownArchitectureError
from hookserve.engine.inspector import find_sources
from hookserve.engine.inspector_child import InspectorChild
from hookserve.engine.inspector_messages import Inspected, Sources
from hookserve.engine.model_facts import ModelFacts, facts_of, stated_facts
from hookserve.engine.model_facts_cache import FactsCache
from hookserve.engine.model_inspection import inspect_model
from hookserve.hookspecs import Host, PluginError, PluginSettings, bootstrap
from hookserve.plugins_builtin.llama import LlamaForCausalLM
from plugin_folder import install_plugin

OWNER = "inspected-dist:hookserve:inspected"
PLUGIN = """
import os

from hookserve.hookspecs import ModelEntry, hookimpl


@hookimpl
def register_model(ctx):
    how = os.environ.get("INSPECTED_FAILS") if "inspector" in ctx.roles else None
    if how == "raises":
        raise ValueError("not in this role")
    if how == "leaves":
        os._exit(3)
    names = ("good", "pools", "missing", "broken", "killed", "leaves", "stops", "hangs")
    lazy = [ModelEntry(name, f"inspected.{name}:Model") for name in names]
    lazy.append(ModelEntry("shown", "shown_models:Model"))
    return [*lazy, ModelEntry("stated", "nowhere:Model", info={"supports_pp": True})]
"""
SHOWN = """
from hookserve.plugins_builtin.llama import LlamaForCausalLM


class Model(LlamaForCausalLM):
    supports_lora = False
"""
MODELS = {
    "good": """
        from hookserve.plugins_builtin.llama import LlamaForCausalLM
        from .flags import MANY


        class Model(LlamaForCausalLM):
            supports_multimodal = MANY
        """,
    "flags": "MANY = False\n",
    "pools": """
        from torch import nn


        class Model(nn.Module):
            is_pooling_model = True

            def __init__(self, *, vllm_config, prefix=""): ...
            def embed_input_ids(self, input_ids): ...
            def forward(self, input_ids, positions): ...
            def load_weights(self, weights): ...
        """,
    "missing": """
        from torch import nn


        class Model(nn.Module):
            def load_weights(self, weights): ...
        """,
    "broken": "import not_there\n",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "leaves": "import os\nos._exit(0)\n",
    "stops": "raise SystemExit('no')\n",
    "hangs": "import time\ntime.sleep(600)\n",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = tmp_path / "site"
    shows = "from .impl import Model as Model\n"
    sources = {"inspected": PLUGIN, "shown_models": shows}
    entries, files = {"inspected": "inspected"}, {"shown_models/impl.py": SHOWN}
    install_plugin(site, "inspected-dist", sources, entries=entries, files=files)
    for name, source in MODELS.items():
        (site / "inspected" / f"{name}.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site


@pytest.fixture
def front(site: Path) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def start(**settings: Any) -> Host:
        allowed = {"allow": ("inspected",), **settings}
        hosts.append(bootstrap(["front"], PluginSettings(**allowed)))
        return hosts[-1]

    yield start
    for host in hosts:
        host.close()


@pytest.fixture
def num_starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many inspectors have been started."""
    started: list[InspectorChild] = []
    start = InspectorChild.start

    def count() -> InspectorChild:
        started.append(start())
        return started[-1]

    monkeypatch.setattr(InspectorChild, "start", count)
    return lambda: len(started)


@pytest.mark.checklist(32, 45, 49, 50, 51, 52)
def test_facts_are_kept_until_the_module_that_a_package_shows_the_class_of_changes(
    front: Callable[..., Host], site: Path, tmp_path: Path, num_starts: Callable[[], int]
) -> None:
    host, cache = front(), str(tmp_path / "cache")
    first = inspect_model(["unknown", "shown"], host, cache_dir=cache)
    assert (first.architecture, first.is_text_generation_model) == ("shown", True)
    assert (first.supports_lora, first.is_pooling_model) == (False, False)
    assert inspect_model(["shown"], host, cache_dir=cache) == first
    assert num_starts() == 1
    assert "shown_models" not in sys.modules
    impl = site / "shown_models" / "impl.py"
    impl.write_text(SHOWN.replace("False", "True"))
    assert inspect_model(["shown"], host, cache_dir=cache).supports_lora is True
    assert num_starts() == 2


@pytest.mark.parametrize(
    ("name", "stage", "fault"),
    [
        ("broken", "import", "ModuleNotFoundError: No module named 'not_there'"),
        ("killed", "import", "imported inspected.killed:Model was killed by SIGSEGV"),
        ("leaves", "import", "imported inspected.leaves:Model ended with exit code 0"),
        ("stops", "import", "raised SystemExit: no"),
        ("missing", "register", r"forward\(input_ids, positions\), embed_input_ids, compute_logit"),
    ],
)
def test_what_is_wrong_with_a_class_is_told_with_its_owner_and_not_kept(
    front: Callable[..., Host], tmp_path: Path, name: str, stage: str, fault: str
) -> None:
    with pytest.raises(PluginError, match=rf"{OWNER} .*'{stage}'.* '{name}'.*{fault}"):
        inspect_model([name], front(), cache_dir=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_the_traceback_is_in_the_log(
    front: Callable[..., Host], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PluginError, match="not_there"):
        inspect_model(["broken"], front(), cache_dir=str(tmp_path))
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert told.startswith(f"model 'broken' of {OWNER}:\nTraceback")
    assert 'inspected/broken.py", line 1' in told


def test_a_class_that_never_comes_is_given_up(front: Callable[..., Host], tmp_path: Path) -> None:
    host = front(startup_hook_timeout_s=0.3)
    with pytest.raises(PluginError, match=r"imported inspected.hangs:Model took more than 0.3 s"):
        inspect_model(["hangs"], host, cache_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("how", "fault", "starts"),
    [
        ("raises", "ValueError: not in this role", 1),
        ("leaves", "its code ran when the process ended with exit code 3", 2),
    ],
)
def test_a_plugin_that_fails_in_the_inspector_is_out_everywhere(
    front: Callable[..., Host],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_starts: Callable[[], int],
    how: str,
    fault: str,
    starts: int,
) -> None:
    monkeypatch.setenv("INSPECTED_FAILS", how)
    host = front()
    message = rf"'good'\) are not supported for now: .*{OWNER} is out.*{fault}"
    with pytest.raises(UnknownArchitectureError, match=message):
        inspect_model(["good"], host, cache_dir=str(tmp_path))
    (failure,) = host.failures()
    assert (failure.identity, failure.process) == (OWNER, "inspector")
    assert num_starts() == starts


def test_an_inspector_that_does_not_come_up_is_told(
    front: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = InspectorChild.start
    monkeypatch.setattr(InspectorChild, "start", lambda: start(["false"]))
    with pytest.raises(EngineStartError, match="the inspector ended with exit code 1"):
        inspect_model(["good"], front(), cache_dir=str(tmp_path))


def test_stated_facts_start_nothing(
    front: Callable[..., Host], tmp_path: Path, num_starts: Callable[[], int]
) -> None:
    facts = inspect_model(["stated"], front(), cache_dir=str(tmp_path))
    assert facts == ModelFacts(
        architecture="stated", is_text_generation_model=True, supports_pp=True
    )
    assert num_starts() == 0


def test_a_built_in_and_a_plugin_without_the_role_are_not_inspected(
    front: Callable[..., Host], site: Path, tiny_llama: Path, num_starts: Callable[[], int]
) -> None:
    toml = 'roles = ["front", "engine", "worker"]\n'
    (site / "inspected" / "hookserve.toml").write_text(toml)
    host = front()
    args = EngineArgs(model=str(tiny_llama))
    assert args.to_engine_config(host).model.architectures == ("LlamaForCausalLM",)
    args = EngineArgs(model=str(tiny_llama), hf_overrides={"architectures": ["broken"]})
    assert args.to_engine_config(host).model.architectures == ("broken",)
    assert num_starts() == 0


@pytest.mark.checklist(39)
def test_arguments_are_refused_with_the_class_that_they_name(
    front: Callable[..., Host], tiny_llama: Path, tmp_path: Path
) -> None:
    overrides = {"architectures": ["broken"]}
    args = EngineArgs(model=str(tiny_llama), hf_overrides=overrides, cache_dir=str(tmp_path))
    with pytest.raises(PluginError, match=rf"{OWNER} .*'broken'.*No module named 'not_there'"):
        args.to_engine_config(front())


@pytest.mark.checklist(45, 50)
def test_a_model_that_is_not_served_is_known_for_what_it_is_and_refused(
    front: Callable[..., Host], tiny_llama: Path, tmp_path: Path, num_starts: Callable[[], int]
) -> None:
    host, cache = front(), str(tmp_path / "cache")
    facts = inspect_model(["pools"], host, cache_dir=cache)
    assert (facts.is_pooling_model, facts.is_text_generation_model) == (True, False)
    named = {"architectures": ["pools"]}
    args = EngineArgs(model=str(tiny_llama), hf_overrides=named, cache_dir=cache)
    with pytest.raises(PluginError, match=rf"{OWNER} .*lacks compute_logits; it is a pooling mod"):
        args.to_engine_config(host)
    assert num_starts() == 1


def test_an_inspector_that_cannot_be_started_is_told(
    front: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(inspector_child, "spawn", refuse)
    with pytest.raises(EngineStartError, match="no more processes"):
        inspect_model(["good"], front(), cache_dir=str(tmp_path))


# -- the facts -----------------------------------------------------------------------------------


class Pooler(LlamaForCausalLM):
    is_pooling_model = True
    score_type = "cross-encoder"
    supports_encoder_tp_data = True
    supported_video_pruning_methods = ("evs",)


class NoStages(LlamaForCausalLM):
    def forward(self, input_ids: Any, positions: Any) -> Any: ...  # type: ignore[override]


def test_facts_are_what_the_class_says() -> None:
    facts = facts_of("P", Pooler)
    assert (facts.is_pooling_model, facts.is_text_generation_model) == (True, True)
    assert facts.score_type == "cross-encoder"
    assert facts.supports_multimodal_encoder_tp_data
    assert facts.supported_video_pruning_methods == ("evs",)
    assert (facts.attn_type, facts.default_tok_pooling_type) == ("decoder", "ALL")
    assert not facts.supports_multimodal


def test_a_flag_without_what_it_needs_is_none() -> None:
    assert facts_of("L", LlamaForCausalLM).supports_pp
    assert not facts_of("N", NoStages).supports_pp


@pytest.mark.parametrize(
    ("info", "fault"),
    [
        ({"supports_pipeline": True}, "'supports_pipeline', which is no fact; did you mean"),
        ({"supports_pp": "yes"}, r"Expected `bool`, got `str` - at `\$.supports_pp`"),
    ],
)
def test_facts_that_are_stated_wrongly_are_refused(info: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        stated_facts("A", info)


def test_sources_are_the_classs_own_packages_and_what_came_in_besides() -> None:
    before = set(sys.modules) - {"plugin_folder"}
    sources = find_sources(Pooler, before)
    assert sources.packages == (Pooler.__module__.partition(".")[0],)
    assert sys.modules["plugin_folder"].__file__ in sources.files
    assert sys.modules[LlamaForCausalLM.__module__].__file__ in sources.files


# -- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def cache(front: Callable[..., Host], site: Path, tmp_path: Path) -> FactsCache:
    """With an entry that depends on the whole package and on a helper beside it."""
    host = front()
    claim = host.registry("model").get("good")
    assert claim is not None
    (tmp_path / "beside.py").write_text("A = 1\n")
    cache = FactsCache(str(tmp_path / "cache"), claim, host)
    sources = Sources(("inspected",), (str(tmp_path / "beside.py"),))
    cache.write(Inspected(ModelFacts(architecture="good"), sources), time.time_ns())
    return cache


def is_kept(cache: FactsCache) -> bool:
    found = cache.read()
    return found is not None and found.facts.architecture == "good"


def test_an_entry_holds_while_nothing_changes(cache: FactsCache, site: Path) -> None:
    assert is_kept(cache)
    os.utime(site / "inspected" / "good.py")
    (site / "inspected" / "__pycache__").mkdir(exist_ok=True)
    (site / "inspected" / "__pycache__" / "x.pyc").write_text("")
    assert is_kept(cache)


def test_any_file_of_the_package_counts(cache: FactsCache, site: Path) -> None:
    before = (site / "inspected" / "flags.py").stat()
    (site / "inspected" / "flags.py").write_text("MANY = Truly\n")
    os.utime(site / "inspected" / "flags.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_kept(cache)


def test_a_new_file_counts(cache: FactsCache, site: Path) -> None:
    (site / "inspected" / "deeper").mkdir()
    (site / "inspected" / "deeper" / "config.json").write_text("{}")
    assert not is_kept(cache)


def test_a_helper_beside_the_package_counts(cache: FactsCache, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("A = 2\n")
    assert not is_kept(cache)
    (tmp_path / "beside.py").unlink()
    assert not is_kept(cache)


def test_a_package_that_is_gone_is_a_miss(
    cache: FactsCache, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "inspected")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(site)])
    assert not is_kept(cache)


def test_what_changed_while_it_was_looked_at_is_not_kept(cache: FactsCache, site: Path) -> None:
    inspected = cache.read()
    assert inspected is not None
    started_ns = time.time_ns()
    flags = site / "inspected" / "flags.py"
    flags.write_text("MANY = True\n")
    os.utime(flags, ns=(started_ns, started_ns))
    cache.write(inspected, started_ns)
    assert not is_kept(cache)
    cache.write(inspected, started_ns + 1)
    assert is_kept(cache)


@pytest.mark.parametrize("what", ["plugin", "python", "plugins"])
def test_versions_and_the_choice_of_plugins_count(
    cache: FactsCache, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, host = cache._claim, cache._host
    if what == "plugin":
        monkeypatch.setattr(claim.plugin, "version", "2.0")
    elif what == "python":
        monkeypatch.setattr(sys, "version", "4.0")
    else:
        monkeypatch.setattr(host, "plugins", [])
    assert not is_kept(cache)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"digest": 1}', b"[" * 100_000])
def test_what_is_no_entry_is_a_miss(cache: FactsCache, content: bytes) -> None:
    cache.path.write_bytes(content)
    assert cache.read() is None


def test_nobody_waits_for_a_pipe(cache: FactsCache, site: Path) -> None:
    inspected = cache.read()
    assert inspected is not None
    os.mkfifo(site / "inspected" / "pipe")
    cache.write(inspected, time.time_ns())
    assert cache.read() == inspected
    cache.path.unlink()
    os.mkfifo(cache.path)
    assert cache.read() is None
    cache.write(inspected, time.time_ns())
    assert cache.read() == inspected


def test_a_folder_in_its_place_is_a_miss_and_stays(cache: FactsCache) -> None:
    inspected = cache.read()
    assert inspected is not None
    cache.path.unlink()
    cache.path.mkdir()
    (cache.path / "kept").write_text("")
    cache.write(inspected, time.time_ns())
    assert cache.read() is None
    assert [each.name for each in cache.path.parent.iterdir()] == [cache.path.name]


def test_a_cache_that_cannot_be_written_is_no_fault(cache: FactsCache, tmp_path: Path) -> None:
    inspected = cache.read()
    assert inspected is not None
    (tmp_path / "file").write_text("")
    other = FactsCache(str(tmp_path / "file"), cache._claim, cache._host)
    other.write(inspected, time.time_ns())
    assert other.read() is None
