"""``server run --dry-run``: everything that a start would decide, and nothing started.

The plugins of the front are loaded, and the model's files are found (fetched, if they must be) and
read; no engine is started and no port is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hookserve.engine.log import log_host
from hookserve.engine.model_choices import GENERATION_KEYS
from hookserve.engine.platform_calls import import_platform

from .memory_plan import MemoryPlan, plan_memory
from .plugin_table import format_table, rows_of
from .setting_values import Origin
from .settings import Settings, all_specs

if TYPE_CHECKING:
    from hookserve.engine.config import EngineConfig
    from hookserve.hookspecs import Host


def dry_run(settings: Settings) -> int:
    """Print the report on standard output.

    Raises:
        HookserveError, HostError: whatever would stop the start before the engine; that a port is
            taken is no such thing, because the server that it is meant for may run already.
    """
    from .command_run import bootstrap_front
    from .front_config import configure
    from .listen import check_address
    from .platform_options import show_options
    from .runtime import ServerRuntime

    host = bootstrap_front(settings)
    try:
        log_host(host)
        show_options(host)
        settings, config, tokenizer = configure(settings, host)
        plan = plan_memory(config, import_platform(host.platform(), host))
        check_address(settings.server.host, settings.server.uds)
        # Made as for a start: what loggers, routes and templates refuse, it refuses.
        runtime = ServerRuntime(settings.server, host, config, tokenizer)
        runtime.loggers.shutdown()
        for line in report(settings, config, plan, host):
            print(line)
    finally:
        host.close()
    return 0


def report(settings: Settings, config: EngineConfig, plan: MemoryPlan, host: Host) -> Iterator[str]:
    yield from _section("Settings", _setting_lines(settings, config))
    yield from _section("Model", _model_lines(config))
    yield from _section("Memory", [f"KV cache  {plan}", _weights(plan)])
    yield from _section("Plugins", format_table(rows_of(host.describe())).splitlines())
    found = [*host.warnings, *host.problems()]
    yield from _section("To know", dict.fromkeys(found) or ["nothing"])


def _section(title: str, lines: Any) -> Iterator[str]:
    yield title
    for line in lines:
        yield f"  {line}"
    yield ""


def _setting_lines(settings: Settings, config: EngineConfig) -> list[str]:
    """Each value that will act, and where it came from."""
    rows = []
    for spec in all_specs():
        origin = settings.origins[spec.name]
        value, where = _acting(settings, config, spec.name, spec.owner, origin)
        shown = _show_secret(value) if spec.kind == "secret" else _show(value)
        rows.append((spec.key, shown, where))
    widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
    return [
        f"{key:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {where}" for key, value, where in rows
    ]


def _acting(
    settings: Settings, config: EngineConfig, name: str, owner: str, origin: Origin
) -> tuple[Any, str]:
    decided: Mapping[str, tuple[Any, str]] = {
        "model": (config.model.model, str(origin)),
        "served_model_name": (list(config.model.served_model_names), str(origin)),
        "dtype": (config.model.dtype, f"{origin}; {config.model.dtype_reason}"),
        "max_model_len": (
            config.model.max_model_len,
            "the model" if origin.kind == "default" else str(origin),
        ),
        "tokenizer": (
            config.model.tokenizer,
            "the model" if origin.kind == "default" else str(origin),
        ),
        "distributed_executor_backend": (
            config.parallel.distributed_executor_backend,
            f"{origin}; {config.parallel.executor_reason}",
        ),
    }
    if name in decided:
        return decided[name]
    given = settings.values[name]
    if given is None and name == "scheduler_cls":
        given = "default"
    for section in (config.cache, config.scheduler, config.parallel):
        value = getattr(section, name, given)
        if value != given:
            return value, f"{config.device.platform_owner}; {origin}: {given}"
    holder: Any = {"engine": settings.engine_args, "server": settings.server}.get(owner)
    acting = None if holder is None else getattr(holder, name)
    return given if acting is None else acting, str(origin)


def _show_secret(keys: Any) -> str:
    return f"set ({len(keys)})" if keys else "not set"


def _show(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value) or "-"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False) if value else "-"
    return str(value) or "-"


def _model_lines(config: EngineConfig) -> list[str]:
    model, device = config.model, config.device
    known = (*GENERATION_KEYS, "eos_token_id")
    defaults = {k: v for k, v in model.generation_config.items() if k in known}
    return [
        f"files            {model.path} ({model.format})",
        f"architecture     {', '.join(model.architectures)}",
        f"platform         {device.platform} of {device.platform_owner} on {device.device_type}",
        f"request defaults {json.dumps(defaults)}",
    ]


def _weights(plan: MemoryPlan) -> str:
    return f"weights   about {plan.weight_bytes / 2**20:.0f} MiB"
