"""The variables of the environment that the package knows, each read when it is asked for.

Only those that this server obeys or that plugins ask for, with vLLM's defaults where nobody set
them. A plugin that sets one reaches what reads it later alone: the settings of a server are read
before plugins are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hookserve.engine.environment import variable


def _text(name: str, default: str | None = None) -> Callable[[], str | None]:
    return lambda: default if (found := variable(name)) is None else found


def _switch(name: str, *, default: bool | None = False) -> Callable[[], bool | None]:
    words = ("1", "true")
    return lambda: default if (found := variable(name)) is None else found.lower() in words


def _whole(name: str, default: int | None) -> Callable[[], int | None]:
    return lambda: default if (found := variable(name)) is None else int(found)


def _number(name: str, default: float) -> Callable[[], float]:
    return lambda: default if (found := variable(name)) is None else float(found)


def _names(name: str, default: list[str] | None) -> Callable[[], list[str] | None]:
    return lambda: default if (found := variable(name)) is None else found.split(",")


def _folder(name: str, parent: str, base: str) -> Callable[[], str]:
    def read() -> str:
        default = os.path.join(variable(parent) or base, "vllm")
        return os.path.expanduser(variable(name) or default)

    return read


def _interval() -> float:
    """Not above 0 means the default."""
    found = _number("VLLM_LOG_STATS_INTERVAL", 10.0)()
    return found if found > 0 else 10.0


environment_variables: dict[str, Callable[[], Any]] = {
    "CUDA_VISIBLE_DEVICES": _text("CUDA_VISIBLE_DEVICES"),
    "LOCAL_RANK": _whole("LOCAL_RANK", 0),
    "VLLM_ALLOW_INSECURE_SERIALIZATION": _switch("VLLM_ALLOW_INSECURE_SERIALIZATION"),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": _switch("VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
    "VLLM_API_KEY": _text("VLLM_API_KEY"),
    "VLLM_BATCH_INVARIANT": _switch("VLLM_BATCH_INVARIANT"),
    "VLLM_CACHE_ROOT": _folder("VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "~/.cache"),
    "VLLM_COMPUTE_NANS_IN_LOGITS": _switch("VLLM_COMPUTE_NANS_IN_LOGITS"),
    "VLLM_CONFIGURE_LOGGING": _switch("VLLM_CONFIGURE_LOGGING", default=True),
    "VLLM_CONFIG_ROOT": _folder("VLLM_CONFIG_ROOT", "XDG_CONFIG_HOME", "~/.config"),
    "VLLM_DISABLED_KERNELS": _names("VLLM_DISABLED_KERNELS", []),
    "VLLM_DISABLE_LOG_LOGO": _switch("VLLM_DISABLE_LOG_LOGO"),
    "VLLM_DP_RANK": _whole("VLLM_DP_RANK", 0),
    "VLLM_DP_SIZE": _whole("VLLM_DP_SIZE", 1),
    "VLLM_ENABLE_V1_MULTIPROCESSING": _switch("VLLM_ENABLE_V1_MULTIPROCESSING", default=True),
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": _switch("VLLM_ENFORCE_STRICT_TOOL_CALLING", default=True),
    "VLLM_ENGINE_READY_TIMEOUT_S": _whole("VLLM_ENGINE_READY_TIMEOUT_S", 600),
    "VLLM_HOST_IP": _text("VLLM_HOST_IP", ""),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": _whole("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", 5),
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": _switch("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"),
    "VLLM_LOGGING_COLOR": _text("VLLM_LOGGING_COLOR", "auto"),
    "VLLM_LOGGING_CONFIG_PATH": _text("VLLM_LOGGING_CONFIG_PATH"),
    "VLLM_LOGGING_LEVEL": _text("VLLM_LOGGING_LEVEL", "INFO"),
    "VLLM_LOGGING_PREFIX": _text("VLLM_LOGGING_PREFIX", ""),
    "VLLM_LOGGING_STREAM": _text("VLLM_LOGGING_STREAM", "ext://sys.stdout"),
    "VLLM_LOG_BATCHSIZE_INTERVAL": _number("VLLM_LOG_BATCHSIZE_INTERVAL", -1.0),
    "VLLM_LOG_MODEL_INSPECTION": _switch("VLLM_LOG_MODEL_INSPECTION"),
    "VLLM_LOG_STATS_INTERVAL": _interval,
    "VLLM_LORA_RESOLVER_CACHE_DIR": _text("VLLM_LORA_RESOLVER_CACHE_DIR"),
    "VLLM_LORA_RESOLVER_HF_REPO_LIST": _text("VLLM_LORA_RESOLVER_HF_REPO_LIST"),
    "VLLM_MEDIA_CONNECTOR": _text("VLLM_MEDIA_CONNECTOR", "http"),
    "VLLM_MLA_DISABLE": _switch("VLLM_MLA_DISABLE"),
    "VLLM_NO_USAGE_STATS": _switch("VLLM_NO_USAGE_STATS"),
    "VLLM_PLUGINS": _names("VLLM_PLUGINS", None),
    "VLLM_PORT": _whole("VLLM_PORT", None),
    "VLLM_RPC_TIMEOUT": _whole("VLLM_RPC_TIMEOUT", 10000),
    "VLLM_SERVER_DEV_MODE": _switch("VLLM_SERVER_DEV_MODE"),
    "VLLM_SKIP_MODEL_NAME_VALIDATION": _switch("VLLM_SKIP_MODEL_NAME_VALIDATION"),
    "VLLM_TARGET_DEVICE": _text("VLLM_TARGET_DEVICE", "cuda"),
    "VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS": _whole("VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS", 1),
    "VLLM_TRACE_FUNCTION": _whole("VLLM_TRACE_FUNCTION", 0),
    "VLLM_USAGE_SOURCE": _text("VLLM_USAGE_SOURCE", "production"),
    "VLLM_USE_MODELSCOPE": _switch("VLLM_USE_MODELSCOPE"),
    "VLLM_USE_V1": _switch("VLLM_USE_V1", default=True),
    "VLLM_USE_V2_MODEL_RUNNER": _switch("VLLM_USE_V2_MODEL_RUNNER", default=None),
    "VLLM_WORKER_MULTIPROC_METHOD": _text("VLLM_WORKER_MULTIPROC_METHOD", "fork"),
}
"""Each variable to what reads it."""

_LIVE = {
    "CUDA_VISIBLE_DEVICES": "live: torch obeys it",
    "VLLM_API_KEY": "live: a key of the server where neither --api-key nor HOOKSERVE_API_KEY is",
    "VLLM_LOGGING_LEVEL": "live: the server's --log-level where neither that nor "
    "HOOKSERVE_LOG_LEVEL is, and that of a program under vllm_python and of its engines; of all "
    "loggers, vllm.* too",
    "VLLM_LOG_STATS_INTERVAL": "live: the server's --log-stats-interval where neither that nor "
    "HOOKSERVE_LOG_STATS_INTERVAL is; not above 0 means 10",
    "VLLM_PLUGINS": "live: which plugins of these groups are loaded",
}

__all__ = ["environment_variables", "is_set", *environment_variables]

__surface__ = {
    "environment_variables": "live: what reads each variable, by its name",
    "is_set": "live: whether a variable is set, to anything",
    **{
        name: _LIVE.get(name, "shape: what it says can be read; this server does not obey it")
        for name in environment_variables
    },
}


def __getattr__(name: str) -> Any:
    if name in environment_variables:
        return environment_variables[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def is_set(name: str) -> bool:
    """
    Raises:
        AttributeError: a variable that the package does not know.
    """
    if name not in environment_variables:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return variable(name) is not None
