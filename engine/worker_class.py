"""Which class a worker is, and how one is made of it. What a worker does is ``worker``'s, what
plugins add to it ``worker_extensions``'.
"""

from __future__ import annotations

from typing import Any

from hookserve.hookspecs import current
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.targets import check_path

from .errors import ConfigError
from .vllm_config import VllmConfig
from .worker_extensions import Extensions


def make_worker(vllm_config: VllmConfig, *, rank: int = 0, init_method: str | None = None) -> Any:
    """An instance of ``parallel_config.worker_cls`` with its extensions, without device or model
    yet.

    Args:
        rank: also the number of the device on this machine.
        init_method: where the ranks meet; ``None`` where there is one.

    Raises:
        ConfigError: the class cannot be imported.
        WorkerPluginsError: a plugin's extension cannot be used; everything is to start again
            without the plugin.
    """
    path = vllm_config.parallel_config.worker_cls
    platform = current().platform()
    fault = check_path(path)
    if fault is not None:
        raise ConfigError(
            f"worker class: {fault}; it is what --worker-cls or the platform {platform.owner} "
            "asked for"
        )
    extensions = Extensions(
        current(), f"worker {path}, which --worker-cls or the platform {platform.owner} asked for"
    )
    extensions.find(vllm_config.parallel_config.worker_extension_cls)
    with current().enter(platform.plugin):
        try:
            worker_cls = current().adapters.import_path(path)
        except caught() as error:
            raise ConfigError(
                f"worker class {path} raised {describe_error(error)}; it is what --worker-cls or "
                f"the platform {platform.owner} asked for"
            ) from error
        worker = extensions.extend(worker_cls)(
            vllm_config,
            local_rank=rank,
            rank=rank,
            distributed_init_method=init_method,
            is_driver_worker=rank == 0,
        )
    extensions.check_attributes(worker)
    return worker
