"""Packages that wrap ``build_app``: their wrappers run when the server makes its application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from hookserve.hookspecs import Host, PluginSettings
from hookserve.plugins_builtin.vllm_compat.general import GeneralPlugin
from hookserve.plugins_builtin.vllm_compat.wrapped_app import WrappedApp, build_app
from scripted_engine import say

pytestmark = pytest.mark.usefixtures("vllm_facade")


def wrapping(around: Callable[..., Any], module: str) -> Callable[[], None]:
    """A general plugin's function that puts ``around(original)`` in the place of ``build_app``."""

    def register() -> None:
        import importlib

        found = importlib.import_module(module)
        found.build_app = around(found.build_app)  # type: ignore[attr-defined]

    return register


@pytest.fixture(autouse=True)
def restored(vllm_facade: None) -> Iterator[None]:
    """Registered once in a process: what the functions are called for is forgotten afterwards."""
    from hookserve.hookspecs.self_registration import forget_call

    yield
    forget_call("object:GeneralPlugin")


def adding(original: Callable[..., Any]) -> Callable[..., FastAPI]:
    def build(args: Any, tasks: Any = None) -> FastAPI:
        app: FastAPI = original(args, tasks)
        app.add_api_route("/v1/wrapped", lambda: [args.port, list(tasks)])
        return app

    return build


@pytest.mark.parametrize(
    "module", ["vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.app"]
)
def test_a_wrapper_adds_routes_that_are_its_plugins(serve_script: Any, module: str) -> None:
    async def run() -> None:
        plugin = GeneralPlugin("mod:register", wrapping(adding, module))
        async with serve_script(say("ab"), plugins=[plugin], settings={"port": 7}) as served:
            assert (await served.http.get("/v1/wrapped")).json() == [7, ["generate"]]
            document = (await served.http.get("/openapi.json")).json()
            owner = document["paths"]["/v1/wrapped"]["get"]["x-hookserve-plugin"]
            assert owner == "object:GeneralPlugin"
            assert (await served.http.get("/v1/models")).status_code == 200

    asyncio.run(run())


def test_one_that_returns_another_application_is_out(serve_script: Any) -> None:
    async def run() -> None:
        around = wrapping(lambda original: lambda args: FastAPI(), "vllm.entrypoints.launchers.app")
        plugin = GeneralPlugin("mod:register", around)
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            assert (await served.http.get("/v1/models")).status_code == 200
            (line,) = served.runtime.host.problems()
        assert "its build_app returned a FastAPI; expected the application that" in line

    asyncio.run(run())


def test_one_that_is_taken_away_again_is_told() -> None:
    with pytest.raises(RuntimeError, match="what wrapped build_app was taken away again"):
        WrappedApp().attach(FastAPI(), None)


def test_without_fastapi_it_is_out_and_what_to_install_is_said(
    serve_script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "fastapi" else find(name, *a)
    )

    async def run() -> None:
        plugin = GeneralPlugin("mod:register", wrapping(adding, "vllm.entrypoints.launchers.app"))
        async with serve_script(say("ab"), plugins=[plugin]) as served:
            assert (await served.http.get("/v1/models")).status_code == 200
            (line,) = served.runtime.host.problems()
        assert line.endswith("pip install hookserve[vllm-compat]")

    asyncio.run(run())


def test_nobody_else_gets_an_application_of_it() -> None:
    with pytest.raises(RuntimeError, match="the server makes its application itself"):
        build_app(None)  # type: ignore[arg-type]


def test_what_is_installed_is_closed_until_the_operator_opens_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As endpoints of any third party, also where a plugin declares one by a call."""
    from plugin_folder import install_plugin

    source = """
        def register():
            import vllm.entrypoints.openai.api_server as server
            original = server.build_app
            def build_app(*args):
                return original(*args)
            server.build_app = build_app
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    groups = {"vllm.general_plugins": {"wraps": "wraps_app:register"}}
    install_plugin(tmp_path, "wraps-app", {"wraps_app": source}, groups=groups)
    for opened in ((), ("vllm:build_app",)):
        host = Host(["front"], PluginSettings(allow=(), enable_endpoints=opened))
        (claim,) = (c for c in host.registry("endpoint").all_claims() if "vllm" in c.name)
        assert claim.owner == "wraps-app:vllm.general_plugins:wraps"
        assert (claim.state == "closed") == (not opened)
        said = "endpoint 'vllm:build_app' of wraps-app:vllm.general_plugins:wraps is closed"
        assert any(said in line for line in host.warnings) == (not opened)
        host.close()
