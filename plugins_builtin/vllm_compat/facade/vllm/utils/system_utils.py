"""The environment of this process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

from hookserve.engine.environment import set_variable, variable

__all__ = ["set_env_var", "update_environment_variables"]

__surface__ = {
    "decorate_logs": "refused: every line of the log has its process and id already",
    "get_mp_context": "refused: processes are the executor's; declare one by the hook executor, or "
    "name a class by --distributed-executor-backend",
    "kill_process_tree": "refused: processes are ended by who started them",
    "set_env_var": "live: sets one variable for a block",
    "update_environment_variables": "live: sets variables, and warns where one changes",
}

logger = logging.getLogger(__name__)


def update_environment_variables(envs: Mapping[str, str]) -> None:
    for name, value in envs.items():
        before = variable(name)
        if before is not None and before != value:
            logger.warning("%s changes from %r to %r", name, before, value)
        set_variable(name, value)


@contextlib.contextmanager
def set_env_var(key: str, value: str) -> Iterator[None]:
    before = variable(key)
    set_variable(key, value)
    try:
        yield
    finally:
        set_variable(key, before)
