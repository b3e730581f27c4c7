"""Which endpoints a host opens, and which platform it chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from declared import HEADER, declared
from hookserve.hookspecs import (
    Endpoint,
    PluginConflictError,
    PluginSelectionError,
    RequiredPluginError,
    UnknownNameError,
    hookimpl,
)
from plugin_folder import install_plugin

# -- endpoints ----------------------------------------------------------------------------------

ENDPOINT = HEADER + '@hookimpl\ndef endpoint():\n    return Endpoint("extra", "a.b:Routes")\n'


@pytest.mark.parametrize(
    ("entries", "opened"),
    [
        ((), False),
        (("extra",), True),
        ((" ep-dist/host_ep ",), True),
        (("host_ep",), True),
        (("ep-dist:hookserve:host_ep",), True),
    ],
)
def test_a_third_partys_endpoint_is_closed_until_it_is_opened(
    entries: tuple[str, ...], opened: bool, site: Path, make_host: Any
) -> None:
    install_plugin(site, "ep-dist", {"host_ep": ENDPOINT})
    host = make_host(enable_endpoints=entries)
    identity = "ep-dist:hookserve:host_ep"
    assert declared(host, identity) == {"endpoint:extra": "active" if opened else "closed"}
    assert host.registry("endpoint").names() == (["extra"] if opened else [])
    hint = f"endpoint 'extra' of {identity} is closed; open it with --enable-endpoints extra"
    assert host.warnings == ([] if opened else [hint])


def test_a_closed_endpoint_whose_name_another_has_is_opened_by_its_plugin(
    site: Path, make_host: Any
) -> None:
    for dist in ("ep-a", "ep-b"):
        install_plugin(site, dist, {"host_" + dist[-1]: ENDPOINT})
    host = make_host()
    assert [said.rpartition(" ")[2] for said in host.warnings] == [
        "ep-a:hookserve:host_a",
        "ep-b:hookserve:host_b",
    ]
    host = make_host(enable_endpoints=("ep-b:hookserve:host_b",))
    assert host.registry("endpoint").get("extra").owner == "ep-b:hookserve:host_b"


def test_a_closed_endpoint_overrides_nothing(site: Path, make_host: Any, add_builtin: Any) -> None:
    class Core:
        @hookimpl
        def endpoint(self) -> Endpoint:
            return Endpoint("extra", "core:Routes")

    add_builtin("core", Core())
    install_plugin(site, "ep-dist", {"host_ep": ENDPOINT})
    claim = make_host().registry("endpoint").get("extra")
    assert claim.owner == "hookserve:builtin:core"
    opened = make_host(enable_endpoints=("host_ep",)).registry("endpoint").get("extra")
    assert (opened.owner, opened.overrides) == ("ep-dist:hookserve:host_ep", claim.owner)


def test_a_file_opens_its_own_endpoints(tmp_path: Path, site: Path, make_host: Any) -> None:
    (tmp_path / "host_file.py").write_text(ENDPOINT)
    host = make_host(files=[str(tmp_path / "host_file.py")])
    assert host.registry("endpoint").names() == ["extra"]


def test_opening_what_is_not_there_gives_the_nearest(site: Path, make_host: Any) -> None:
    install_plugin(site, "ep-dist", {"host_ep": ENDPOINT})
    with pytest.raises(PluginSelectionError, match=r"'host_pe'; did you mean host_ep"):
        make_host(enable_endpoints=("host_pe",))
    assert make_host(roles=["engine"], enable_endpoints=("host_pe",)).problems() == []


def test_the_endpoint_of_a_plugin_that_failed_does_not_stop_the_start(
    site: Path, make_host: Any
) -> None:
    install_plugin(site, "bad-dist", {"host_bad_ep": "raise OSError('no')"})
    host = make_host(enable_endpoints=("extra",))
    (line,) = host.warnings
    assert "no endpoint is called 'extra'" in line
    assert "bad-dist:hookserve:host_bad_ep, which failed" in line


@pytest.mark.parametrize(
    "settings", [{"deny": ("host_ep",)}, {"allow": ()}, {"no_plugins": True}], ids=str
)
def test_the_endpoint_of_a_plugin_that_is_blocked_does_not_stop_the_start(
    settings: dict[str, Any], site: Path, make_host: Any
) -> None:
    install_plugin(site, "ep-dist", {"host_ep": ENDPOINT})
    (line,) = make_host(enable_endpoints=("extra",), **settings).warnings
    assert "no endpoint is called 'extra'; perhaps it is one of ep-dist:hookserve:host_ep" in line
    assert line.endswith("which is blocked")


def test_who_says_that_it_has_no_endpoint_is_not_suspected(site: Path, make_host: Any) -> None:
    toml = "hooks = ['register_model']"
    install_plugin(site, "ep-dist", {"host_ep": "raise OSError('no')"}, toml=toml)
    with pytest.raises(PluginSelectionError, match="no plugin is called 'extra'"):
        make_host(enable_endpoints=("extra",))


def test_nobody_is_told_how_to_open_the_endpoint_of_a_plugin_that_failed(
    site: Path, make_host: Any
) -> None:
    source = ENDPOINT + "@hookimpl\ndef model_source():\n    raise OSError('no')\n"
    install_plugin(site, "half-dist", {"host_half": source})
    host = make_host()
    assert len(host.problems()) == 1
    assert host.warnings == []


# -- platforms ----------------------------------------------------------------------------------


def platform(name: str, answer: str | None = "p.q:Platform") -> object:
    @hookimpl
    def offer(self: Any) -> str | None:
        if answer == "raise":
            raise OSError("no driver")
        return answer

    offer.hookserve_impl["specname"] = "platform"  # type: ignore[attr-defined]
    return type(name, (), {"offer": offer})()


def test_a_third_partys_platform_beats_the_built_in_one(make_host: Any, add_builtin: Any) -> None:
    add_builtin("cpu", platform("Cpu", "core:Cpu"))
    assert make_host(platform("Npu", None)).platform().name == "cpu"
    host = make_host(platform("Npu"))
    assert host.platform().name == "Npu"
    line = "platform 'Npu': object:Npu overrides built-in hookserve:builtin:cpu"
    assert host.warnings == [line]
    assert declared(host, "hookserve:builtin:cpu") == {"platform:cpu": "overridden by object:Npu"}
    named = make_host(platform("Npu"), platform="cpu")
    assert named.platform().target == "core:Cpu"
    assert declared(named, "object:Npu") == {"platform:Npu": "yielded to hookserve:builtin:cpu"}


def test_two_third_party_platforms_need_a_choice(make_host: Any) -> None:
    host = make_host(platform("Npu"), platform("Xpu"))
    with pytest.raises(PluginConflictError, match=r"object:Npu .* object:Xpu .* --platform"):
        host.platform()
    assert make_host(platform("Npu"), platform("Xpu"), platform=" Xpu ").platform().name == "Xpu"


def test_a_platform_that_did_not_answer_cannot_be_chosen(make_host: Any) -> None:
    with pytest.raises(UnknownNameError, match="'Xpu' did not answer on this machine"):
        make_host(platform("Npu"), platform="Xpu").platform()
    with pytest.raises(UnknownNameError, match="no platform answered"):
        make_host().platform()


def test_an_exception_in_a_platform_hook_stops_the_start_unless_another_is_named(
    make_host: Any, add_builtin: Any
) -> None:
    add_builtin("cpu", platform("Cpu", "core:Cpu"))
    with pytest.raises(RequiredPluginError, match=r"object:Npu .*no driver.*--platform NAME"):
        make_host(platform("Npu", "raise"))
    with pytest.raises(RequiredPluginError):
        make_host(platform("Npu", "raise"), platform="Npu")
    host = make_host(platform("Npu", "raise"), platform="cpu")
    assert host.platform().name == "cpu"
    assert host.problems()[0].startswith("object:Npu is out")
