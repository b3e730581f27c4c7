"""What a worker does with the communicator that its platform named."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import pytest

from hookserve.engine.worker import Worker
from hookserve.hookspecs import PluginError, PluginSettings, bootstrap
from hookserve.ops.context import TensorParallelGroup


class Stuck:
    def destroy(self) -> None:
        raise OSError("still in use")


def test_one_that_fails_at_the_end_is_told_as_its_platforms() -> None:
    worker = Worker.__new__(Worker)
    compilation = SimpleNamespace(static_forward_context={}, ops=None)
    worker.vllm_config = SimpleNamespace(compilation_config=compilation)  # type: ignore[assignment]
    worker.tp_group = TensorParallelGroup(0, 2, communicator=Stuck())  # type: ignore[arg-type]
    with closing(bootstrap({"worker"}, PluginSettings(no_plugins=True))) as host:
        worker.platform_owner = host.platform().plugin
        told = "the device communicator raised OSError: still in use"
        with pytest.raises(PluginError, match=told) as caught:
            worker.shutdown()
    assert caught.value.identity == worker.platform_owner.identity
