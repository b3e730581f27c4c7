"""The server's settings, and where every value of every setting comes from.

Precedence: flag, environment, configuration file, the model's own files (for what the engine
arguments leave open), default. No other file of the server reads the environment. The text of
flags is cut into values by ``setting_values``, files are read by ``config_file``, and the command
line is ``arguments``'.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_type_hints

import msgspec

from hookserve.engine.engine_args import AsyncEngineArgs, EngineArgs
from hookserve.engine.environment import VLLM_PLUGINS, adapter_lists, default_cache_dir, in_home
from hookserve.engine.errors import ConfigError, UsageError
from hookserve.engine.setting import Setting
from hookserve.engine.vllm_flags import find_flag
from hookserve.hookspecs.deprecated import deprecated
from hookserve.hookspecs.settings import PluginSettings
from hookserve.hookspecs.stability import unstable
from hookserve.hookspecs.types import Role

from .config_file import read_config_file
from .secret import Secret
from .setting_values import Origin, Spec, check_value, derive_kind, read_text

_NOT_ABOVE_0 = re.compile(r"-.*|[0.]+")
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the front process needs to know beside the engine and the plugins."""

    host: Annotated[str, Setting("address to listen at", group="Server")] = "127.0.0.1"
    port: Annotated[
        int, Setting("port to listen at; 0: a free one", group="Server", minimum=0, maximum=65535)
    ] = 8000
    uds: Annotated[
        str | None,
        Setting("Unix socket to listen at, in place of host and port", group="Server", unset=("",)),
    ] = None
    root_path: Annotated[
        str, Setting("path under which a proxy publishes the server", group="Server")
    ] = ""
    allowed_origins: Annotated[
        tuple[str, ...],
        Setting("origins whose pages may call the server; * is all", group="Server"),
    ] = ()
    api_key: Annotated[
        tuple[Secret, ...],
        Setting(
            "a key for the scope inference; may be repeated",
            group="Server",
            kind="secret",
            metavar="KEY",
            other_envs=("VLLM_API_KEY",),
        ),
    ] = ()
    admin_key: Annotated[
        tuple[Secret, ...],
        Setting(
            "a key for the scopes inference and admin; may be repeated",
            group="Server",
            kind="secret",
            metavar="KEY",
        ),
    ] = ()
    authenticator: Annotated[
        str | None,
        Setting(
            "who says who sends a request: a plugin's authenticator, or a class path",
            group="Server",
            metavar="NAME|MODULE:CLASS",
        ),
    ] = None
    middleware: Annotated[
        tuple[str, ...],
        Setting(
            "ASGI middleware, or a function of request and call_next, inside the server's limits "
            "and behind its keys; the last one is the outermost",
            group="Server",
            metavar="MODULE:ATTRIBUTE",
        ),
    ] = ()
    disable_fastapi_docs: Annotated[
        bool, Setting("serve neither /openapi.json nor the page /docs", group="Server")
    ] = False
    enable_auto_tool_choice: Annotated[
        bool,
        Setting(
            "let models decide whether they call a tool; needs --tool-call-parser", group="Server"
        ),
    ] = False
    exclude_tools_when_tool_choice_none: Annotated[
        bool,
        Setting("do not show templates the tools of a request that must call none", group="Server"),
    ] = False
    shutdown_timeout: Annotated[
        float,
        Setting(
            "seconds that open requests get to end at a stop; 0: they are aborted",
            group="Server",
            minimum=0,
        ),
    ] = 0.0
    single_process: Annotated[
        bool,
        Setting(
            "run the engine and its worker in this process too, so that a debugger sees them",
            group="Server",
        ),
    ] = False
    log_level: Annotated[
        str,
        Setting(
            "least level that is logged",
            group="Logging",
            choices=_LOG_LEVELS,
            other_envs=("VLLM_LOGGING_LEVEL",),
        ),
    ] = "INFO"
    disable_log_stats: Annotated[
        bool, Setting("log no statistics of the engine", group="Logging")
    ] = False
    log_stats_interval: Annotated[
        float,
        Setting(
            "seconds between two lines of statistics",
            group="Logging",
            minimum=0.1,
            other_envs=("VLLM_LOG_STATS_INTERVAL",),
        ),
    ] = 10.0
    config: Annotated[
        str | None,
        Setting("TOML file (or YAML, with PyYAML) with any of these keys", group="Settings"),
    ] = None
    dry_run: Annotated[
        bool,
        Setting(
            "print every value with where it came from, the memory plan and the plugins; "
            "start nothing",
            group="Settings",
        ),
    ] = False


class PluginFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's word on plugins, under the names of the flags."""

    plugins: Annotated[
        tuple[str, ...] | None,
        Setting("the only third-party plugins to load; empty: none", group="Plugins"),
    ] = None
    disable_plugins: Annotated[
        tuple[str, ...], Setting("plugins not to load; wins over the others", group="Plugins")
    ] = ()
    require_plugins: Annotated[
        tuple[str, ...], Setting("plugins whose failure stops the start", group="Plugins")
    ] = ()
    enable_endpoints: Annotated[
        tuple[str, ...],
        Setting(
            "plugins or endpoints whose routes are opened",
            group="Plugins",
            env="HOOKSERVE_ENDPOINTS",
        ),
    ] = ()
    no_plugins: Annotated[bool, Setting("load built-in plugins alone", group="Plugins")] = False
    plugin: Annotated[
        tuple[str, ...],
        Setting(
            "load this file or module as a plugin in every process",
            group="Plugins",
            metavar="FILE.py|MODULE",
        ),
    ] = ()
    tool_parser_plugin: Annotated[
        tuple[str, ...],
        Setting(
            "as --plugin, for a parser of tool calls", group="Plugins", metavar="FILE.py|MODULE"
        ),
    ] = ()
    reasoning_parser_plugin: Annotated[
        tuple[str, ...],
        Setting(
            "as --plugin, for a parser of reasoning", group="Plugins", metavar="FILE.py|MODULE"
        ),
    ] = ()
    prefer: Annotated[
        tuple[str, ...],
        Setting(
            "decide between two plugins that claim one name",
            group="Plugins",
            metavar="KIND:NAME=IDENTITY",
        ),
    ] = ()
    plugin_config: Annotated[
        dict[str, Any],
        Setting(
            "configuration of plugins: JSON, or @FILE, with a section for each", group="Plugins"
        ),
    ] = {}
    platform: Annotated[
        str | None,
        Setting(
            "name or class path of the platform to run on; without it automatic", group="Plugins"
        ),
    ] = None
    front_hook_timeout: Annotated[
        float,
        Setting(
            "seconds that one call of a plugin's hook has in the front",
            group="Plugins",
            minimum=0.001,
        ),
    ] = 5.0
    step_hook_timeout: Annotated[
        float,
        Setting(
            "seconds that one call of a plugin's hook has in an engine or a worker",
            group="Plugins",
            minimum=0.001,
        ),
    ] = 1.0
    startup_hook_timeout: Annotated[
        float,
        Setting(
            "seconds that a plugin's import, or one hook of the start, has",
            group="Plugins",
            minimum=0.001,
        ),
    ] = 60.0
    trace_hooks: Annotated[
        str | None,
        Setting(
            "log each call of the hooks, or of the plugins, that this pattern fits; without one of "
            "all",
            group="Plugins",
            metavar="PATTERN",
            bare="*",
            unset=("",),
        ),
    ] = None

    def to_plugin_settings(self, cache_dir: str, lists: dict[str, str]) -> PluginSettings:
        return PluginSettings(
            allow=self.plugins,
            deny=self.disable_plugins,
            require=self.require_plugins,
            enable_endpoints=self.enable_endpoints,
            adapter_lists=lists,
            no_plugins=self.no_plugins,
            files=tuple(
                dict.fromkeys(
                    (*self.plugin, *self.tool_parser_plugin, *self.reasoning_parser_plugin)
                )
            ),
            prefer=self.prefer,
            platform=self.platform,
            config=self.plugin_config,
            cache_dir=cache_dir,
            front_hook_timeout_s=self.front_hook_timeout,
            step_hook_timeout_s=self.step_hook_timeout,
            startup_hook_timeout_s=self.startup_hook_timeout,
            trace_hooks=self.trace_hooks,
        )


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, resolved once.

    ``values`` and ``origins`` have an entry for each setting by its field name; ``notes`` are
    lines to log at INFO and ``warnings`` at WARNING, once there is a log.
    """

    server: ServerSettings
    engine_args: EngineArgs
    plugins: PluginSettings
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    color: bool = False
    """Whether the environment lets the log be coloured; a terminal is needed too."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Those of the front's process."""
        return ("front", "engine", "worker") if self.server.single_process else ("front",)


MORE = "+"
"""At the end of a key in a flag's JSON: the list gets longer."""
GROUPS: tuple[str, ...] = ("Model", "Engine", "Server", "Plugins", "Logging", "Settings")
EXTRA_ENVIRONMENT: Mapping[str, str] = {
    VLLM_PLUGINS: "the entry points of vLLM's groups to load, by name and with commas between "
    "them; not set: all but endpoints",
    "NO_COLOR": "set to anything: no colour in the log",
    "XDG_CACHE_HOME": "parent folder of the cache where HOOKSERVE_CACHE is not set",
}


@functools.cache
def all_specs() -> tuple[Spec, ...]:
    """Every setting, in the order of ``--help``."""
    found = [
        spec
        for owner, struct in (
            ("engine", EngineArgs),
            ("server", ServerSettings),
            ("plugins", PluginFlags),
        )
        for spec in _specs_of(owner, struct)
    ]
    return tuple(sorted(found, key=lambda spec: GROUPS.index(spec.setting.group)))


def _specs_of(owner: str, struct: Any) -> Iterable[Spec]:
    defaults = _defaults(struct)
    for name, hint in get_type_hints(struct, include_extras=True).items():
        for setting in getattr(hint, "__metadata__", ()):
            if isinstance(setting, Setting):
                yield Spec(
                    name=name,
                    owner=owner,
                    setting=setting,
                    kind=setting.kind or derive_kind(hint.__origin__),
                    default=defaults[name],
                )


def _defaults(struct: Any) -> dict[str, Any]:
    if struct is EngineArgs:
        return {
            f.name: f.default if f.default_factory is MISSING else f.default_factory()
            for f in fields(EngineArgs)
        }
    return {name: getattr(struct(), name) for name in struct.__struct_fields__}


def environment_with(spec: Spec, text: str) -> dict[str, str]:
    """The environment of this process, for a command in which one setting is said otherwise."""
    return {**os.environ, spec.env: text}


def resolve_settings(
    given: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    *,
    notes: Iterable[str] = (),
) -> Settings:
    """Resolve every setting.

    Args:
        given: raw texts of the flags by field name: a string, a list of strings for what may be
            repeated, or a boolean for a switch.
        environ: in place of the process' environment.
        notes: lines about flags without effect, found on the command line.

    Raises:
        UsageError: a flag's value; exit code 2.
        ConfigError: a value, or a key, of the environment or the file; exit code 78.
    """
    env = os.environ if environ is None else environ
    values: dict[str, Any] = {spec.name: spec.default for spec in all_specs()}
    origins = {spec.name: Origin("default") for spec in all_specs()}
    variables = {spec.name: name for spec in all_specs() if (name := _variable(spec, env))}
    by_env = {
        spec.name: read_text(
            spec, env[variables[spec.name]], Origin("environment", variables[spec.name])
        )
        for spec in all_specs()
        if spec.name in variables
    }
    by_flag = {
        spec.name: _read_flag(spec, given[spec.name]) for spec in all_specs() if spec.name in given
    }
    path = by_flag.get("config", by_env.get("config"))
    by_file, file_notes = _read_file(path) if path else ({}, ())
    for kind, layer in (("file", by_file), ("environment", by_env), ("flag", by_flag)):
        for spec in all_specs():
            if spec.name in layer:
                values[spec.name] = layer[spec.name]
                variable = variables.get(spec.name)
                key = {"file": path, "environment": variable, "flag": spec.flag}[kind]
                origins[spec.name] = Origin(kind, str(key))
    given_dir = values["cache_dir"]
    values["cache_dir"] = in_home(given_dir) if given_dir else default_cache_dir(env)
    return Settings(
        server=ServerSettings(**_of(ServerSettings, values)),
        engine_args=AsyncEngineArgs.from_cli_settings(
            {**values, "log_color": False},
            {name: str(o) for name, o in origins.items() if o.kind != "default"},
        ),
        plugins=PluginFlags(**_of(PluginFlags, values)).to_plugin_settings(
            values["cache_dir"], adapter_lists(env)
        ),
        values=values,
        origins=origins,
        notes=(*notes, *file_notes, *_unsteady(origins)),
        warnings=(*_environment_warnings(env), *_outgoing(origins)),
        color=not env.get("NO_COLOR"),
    )


def _of(struct: type[msgspec.Struct], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in struct.__struct_fields__}


def _variable(spec: Spec, env: Mapping[str, str]) -> str | None:
    """The variable that says something of this setting: the ecosystem's where our own does not,
    and there a number that is not above 0 says nothing."""
    if spec.env in env:
        return spec.env
    for name in spec.setting.other_envs:
        text = env.get(name, "").strip()
        if text and not (spec.kind == "number" and _NOT_ABOVE_0.fullmatch(text)):
            return name
    return None


def _read_flag(spec: Spec, raw: Any) -> Any:
    origin = Origin("flag", spec.flag)
    if isinstance(raw, bool):
        return raw
    if not isinstance(raw, list):
        return read_text(spec, raw, origin)
    parts = [read_text(spec, text, origin) for text in raw]
    if spec.kind == "json":
        merged: dict[str, Any] = {}
        for part in parts:
            _merge_into(merged, part)
        return merged
    if spec.kind in ("list", "secret"):
        return tuple(dict.fromkeys(item for part in parts for item in part))
    return parts[-1]


def _merge_into(target: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        old = target.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge_into(old, value)
        elif isinstance(value, dict):
            target[key] = {}
            _merge_into(target[key], value)
        elif key.endswith(MORE) and isinstance(value, list):
            held = target.get(key.removesuffix(MORE), [])
            target[key.removesuffix(MORE)] = [*(held if isinstance(held, list) else [held]), *value]
        else:
            target[key] = value


def _read_file(path: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values and notes of the configuration file; keys may have hyphens or underscores."""
    specs = {spec.key: spec for spec in all_specs() if spec.name not in ("config", "dry_run")}
    values: dict[str, Any] = {}
    notes: list[str] = []
    written: dict[str, str] = {}
    for raw_key, value in read_config_file(path).items():
        key = raw_key.replace("_", "-")
        if key in written:
            raise ConfigError(f"{path}: {written[key]!r} and {raw_key!r} are one key; give one")
        written[key] = raw_key
        spec = specs.get(key)
        if spec is not None:
            values[spec.name] = check_value(spec, value, Origin("file", path))
            continue
        flag = find_flag("--" + key)
        if flag is None or flag.verdict == "works":
            raise ConfigError(f"{path}: unknown key {raw_key!r}{suggest(key, specs)}")
        if flag.verdict == "no effect":
            notes.append(f"{raw_key} in {path} has no effect, because {flag.reason}")
        elif not (value is False or str(value) in flag.neutral):
            raise UsageError(f"{raw_key} in {path} is refused, because {flag.reason}")
    return values, tuple(notes)


def _unsteady(origins: Mapping[str, Origin]) -> Iterable[str]:
    """A line for each setting that was given and may change in any release."""
    flags = {spec.flag: origins[spec.name] for spec in all_specs()}
    given = [flag for flag, origin in flags.items() if origin.kind != "default"]
    for flag in unstable("flag", given):
        yield f"{flag} (from {flags[flag]}) is unstable: it may change in any release"


def _outgoing(origins: Mapping[str, Origin]) -> Iterable[str]:
    """A line for each setting that was given and is about to go."""
    for spec in all_specs():
        item = deprecated("flag", spec.flag)
        if item is not None and origins[spec.name].kind != "default":
            yield item.text()


def _environment_warnings(env: Mapping[str, str]) -> Iterable[str]:
    known = [spec.env for spec in all_specs()]
    for name in env:
        if name.startswith("HOOKSERVE_") and name not in known:
            yield f"unknown environment variable {name} is ignored{suggest(name, known)}"


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` with the nearest of ``known``, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
