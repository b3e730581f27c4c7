"""``server run``: from a command line to a serving front process.

It resolves the settings, starts the log, bootstraps the plugins, builds the engine's
configuration, says in a few lines what will run, and hands over to ``serve``.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hookserve.engine.errors import HookserveError, UsageError
from hookserve.engine.log import log_host
from hookserve.hookspecs.errors import HostError

from .arguments import add_settings
from .logging_setup import start_logging, use_color
from .settings import Settings, all_specs, resolve_settings

if TYPE_CHECKING:
    from hookserve.engine.config import EngineConfig
    from hookserve.hookspecs import Host

    from .front_config import FrontConfig

logger = logging.getLogger(__name__)

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM before there is a server to stop. As an interrupt it passes the guards around
    plugins, and ends a download under way."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_reference",
        nargs="?",
        metavar="MODEL",
        help="the same as --model",
    )
    add_settings(parser)
    parser.usage = "server run [MODEL] [flags]"
    parser.epilog = (
        "Each setting may also be given as an environment variable (HOOKSERVE_ and its name in "
        "capitals) or as a key of the --config file; a flag wins over the environment, and the "
        "environment over the file. Hyphens and underscores are the same."
    )


def given_flags(found: argparse.Namespace) -> dict[str, Any]:
    """The raw texts of the settings that stand on the command line, MODEL among them."""
    names = {spec.name for spec in all_specs()}
    given = {name: value for name, value in vars(found).items() if name in names}
    positional = getattr(found, "model_reference", None)
    if positional is not None:
        if given.get("model", positional) != positional:
            raise UsageError(
                f"MODEL {positional!r} and --model {given['model']!r} differ; give one of them"
            )
        given["model"] = positional
    elif "model" not in given:
        _check_swallowed_model(given.get("served_model_name", []))
    return given


def _check_swallowed_model(names: list[str]) -> None:
    """``--served-model-name`` takes every word after it; one that is clearly a model is told."""
    if len(names) > 1 and (os.path.exists(names[-1]) or names[-1].startswith("pypi:")):
        raise UsageError(
            f"--served-model-name took {names[-1]!r} as a name; write MODEL before the flags, "
            f"or --model {names[-1]}"
        )


def run(found: argparse.Namespace) -> int:
    settings = resolve_settings(given_flags(found), notes=found.notes)
    settings = found.plugin_options.apply(settings, found)
    settings.engine_args.log_color = use_color(settings)
    start_logging(settings)
    if not faulthandler.is_enabled():
        faulthandler.enable()  # nobody else would say whose code was it that crashed this process
    try:
        with _sigterm_interrupts():
            if settings.server.dry_run:
                from .dry_run import dry_run

                return dry_run(settings)
            return serve_model(settings)
    except Terminated:
        return EXIT_TERMINATED
    except (HookserveError, HostError):
        logger.debug("the start failed", exc_info=True)
        raise
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """``serve`` has its own handler while it runs. Without one the first process of a container
    would not see the signal at all."""

    def interrupt(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def serve_model(settings: Settings) -> int:
    """Bootstrap, configure, and serve until told to stop.

    Returns: the exit code.
    """
    from .event_loop import leave_if_stuck
    from .front_config import configure
    from .platform_options import show_options

    host = bootstrap_front(settings)
    try:
        log_host(host)
        show_options(host)
        config = configure(settings, host)
        for line in banner(config.settings, config.engine, host):
            logger.info("%s", line)
        code = _serve(config, host)
    finally:
        host.close()
    leave_if_stuck(code)
    return code


def bootstrap_front(settings: Settings) -> Host:
    """The plugins of this process; what became of them is kept for ``plugins list``."""
    import msgspec

    from hookserve.hookspecs import bootstrap

    from .load_cache import results_of, write_results

    host = bootstrap(settings.roles, settings.plugins)
    if settings.engine_args.cache_dir:
        reports = [msgspec.to_builtins(report) for report in host.describe()]
        write_results(settings.engine_args.cache_dir, results_of(reports))
    return host


def _serve(config: FrontConfig, host: Host) -> int:
    from .event_loop import run_to_end
    from .serve import serve

    return run_to_end(serve(config.settings, host, config.engine, config.tokenizer))


def banner(settings: Settings, config: EngineConfig, host: Host) -> list[str]:
    """A few lines on what is about to run."""
    from hookserve.engine.platform_calls import import_platform

    from .memory_plan import plan_memory
    from .plugin_table import summarize

    model, parallel = config.model, config.parallel
    plan = plan_memory(config, import_platform(host.platform(), host))
    return [
        f"model     {', '.join(model.served_model_names)} ({model.model}; "
        f"{', '.join(model.architectures)}, {model.format}, {model.max_model_len} tokens)",
        f"dtype     {model.dtype}: {model.dtype_reason}",
        f"executor  {parallel.distributed_executor_backend}: {parallel.executor_reason}",
        f"KV cache  {plan}",
        f"plugins   {summarize(host.describe())}",
        f"address   {address(settings)}",
    ]


def address(settings: Settings) -> str:
    """Where the server will listen, as an operator writes it."""
    server = settings.server
    if server.uds:
        return f"unix:{server.uds}"
    shown = f"[{server.host}]" if ":" in server.host else server.host
    port = str(server.port) if server.port else "(a free port)"
    return f"http://{shown}:{port}{server.root_path}"
