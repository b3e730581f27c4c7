"""The outer application: routes, layers, error handlers. ``create_app`` puts one together for a
runtime; ``build_app`` makes one that brings its own engine, for any ASGI server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.errors import ConfigError, EngineDeadError, RequestError
from hookserve.engine.log import log_host
from hookserve.hookspecs import HostError, bootstrap, current

from .authentication import Authentication
from .errors import ApiError, on_api_error, on_engine_failure, on_http_exception
from .limits import BodyLimits
from .logging_setup import log_settings
from .request_guard import RequestGuard
from .settings import Settings

if TYPE_CHECKING:
    from .runtime import ServerRuntime


def create_app(runtime: ServerRuntime) -> Starlette:
    """The application of a runtime that its caller starts and stops.

    ``app.state`` has ``serving``, ``health``, ``engine_client``, ``vllm_config``, ``credentials``,
    ``plugins`` (the plugin manager) and ``io_processor`` (the chosen one, or ``None``).
    """
    layers = [
        Middleware(RequestGuard, health=runtime.health),
        Middleware(BodyLimits),
        Middleware(
            Authentication, credentials=runtime.credentials, routes=runtime.endpoints.routes
        ),
    ]
    if runtime.layers:
        layers.append(Middleware(runtime.layers.wrap))
    origins = runtime.settings.allowed_origins
    if origins:
        layers.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["*"],
                allow_headers=["*"],
            ),
        )
    app = runtime.endpoints.app
    app.user_middleware = layers
    app.exception_handlers |= {
        ApiError: on_api_error,
        HTTPException: on_http_exception,
        EngineDeadError: on_engine_failure,
        RequestError: on_engine_failure,
    }
    app.router.redirect_slashes = False
    app.state.serving = runtime.serving
    app.state.health = runtime.health
    app.state.engine_client = runtime.serving.prompt_client
    app.state.vllm_config = runtime.vllm_config
    app.state.plugins = runtime.host.pm
    app.state.io_processor = runtime.io_processor
    app.state.credentials = runtime.credentials
    return app


def build_app(
    config: Settings | EngineArgs | str | None = None,
    plugins: Sequence[object] = (),
    *,
    single_process: bool | None = None,
) -> Starlette:
    """An application for any ASGI server; its lifespan starts and stops the engine.

    The engine is a process of its own, unless all is to run in this one. The lifespan must run in
    the main thread of the process, and begins to serve only when the engine is ready; if the engine
    dies later, the application answers 503.

    Args:
        config: resolved ``Settings``, ``EngineArgs``, a model reference, or nothing for the default
            model. Without ``Settings`` the rest comes from the environment.
        plugins: modules or ``.py`` files to load as plugins in every process, as ``--plugin`` does;
            where all is one process, objects as well.
        single_process: as ``--single-process``; without it what the settings say.

    Raises:
        ConfigError: for a plugin that is an object, where it cannot be handed to the engine's
            process; or this process has plugins at work already.
        HookserveError, HostError: whatever stops a start.
    """
    from .front_config import configure
    from .runtime import ServerRuntime

    settings, objects = _as_settings(config, plugins, single_process)
    _check_alone()
    host = bootstrap(settings.roles, settings.plugins, objects=objects)
    try:
        log_settings(settings)
        log_host(host)
        settings, engine_config, tokenizer = configure(settings, host)
        runtime = ServerRuntime(settings.server, host, engine_config, tokenizer)
    except BaseException:
        host.close()
        raise

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        try:
            await runtime.start()
            yield
            await runtime.drain(settings.server.shutdown_timeout)
        finally:
            await runtime.stop()
            host.close()

    runtime.app.router.lifespan_context = lifespan
    return runtime.app


def _check_alone() -> None:
    try:
        current()
    except HostError:
        return
    raise ConfigError(
        "build_app: this process has an application already, and plugins are loaded once in a "
        "process; end the lifespan of the first one before"
    )


def _as_settings(
    config: Settings | EngineArgs | str | None,
    plugins: Sequence[object],
    single_process: bool | None,
) -> tuple[Settings, list[object]]:
    """The settings with the plugins that have names, and those that are objects."""
    import msgspec

    from .settings import resolve_settings

    if isinstance(config, Settings):
        settings = config
    elif isinstance(config, EngineArgs):
        base = resolve_settings({})
        settings = msgspec.structs.replace(base, engine_args=config)
    else:
        settings = resolve_settings({} if config is None else {"model": config})
    if single_process is not None:
        server = msgspec.structs.replace(settings.server, single_process=single_process)
        settings = msgspec.structs.replace(settings, server=server)
    names = [os.fspath(each) for each in plugins if isinstance(each, str | os.PathLike)]
    objects = [each for each in plugins if not isinstance(each, str | os.PathLike)]
    if objects and not settings.server.single_process:
        raise ConfigError(
            f"build_app(plugins=...): {type(objects[0]).__name__} is an object, which cannot be "
            "handed to the engine's process; give the name of its module, or a .py file, or run "
            "all in this process with single_process=True"
        )
    files = (*settings.plugins.files, *map(str, names))
    with_files = msgspec.structs.replace(settings.plugins, files=files)
    return msgspec.structs.replace(settings, plugins=with_files), objects
