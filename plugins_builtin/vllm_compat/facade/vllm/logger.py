"""``init_logger``, and what the log is like for whoever configures one of the same kind."""

from __future__ import annotations

from typing import Any

from hookserve.engine.once_logger import init_logger

__all__ = ["DEFAULT_LOGGING_CONFIG", "init_logger"]

__surface__ = {
    "DEFAULT_LOGGING_CONFIG": "shape: for logging.config.dictConfig; its handler writes nothing, "
    "as lines of vllm.* go to the log of the process by themselves",
    "init_logger": "live: lines of loggers named vllm.* are shown from INFO on in every process; "
    "of others, what is said while plugins' code runs or by a logger named for their package",
}

DEFAULT_LOGGING_CONFIG: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"vllm": {"format": "%(message)s"}},
    "handlers": {"vllm": {"class": "logging.NullHandler", "formatter": "vllm"}},
    "loggers": {"vllm": {"handlers": ["vllm"], "propagate": True}},
}
