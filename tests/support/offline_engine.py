"""An engine core in this process, with its workers wherever the number of ranks puts them.

For what no reply shows: what each rank holds, sends and knows. One at a time, since a process has
one plugin host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import torch

from fake_engine import Collected, make_request
from hookserve.engine.core import EngineCore
from hookserve.engine.engine_args import EngineArgs
from hookserve.engine.vllm_config import VllmConfig
from hookserve.hookspecs import PluginSettings, bootstrap

SUPPORT = str(Path(__file__).parent)


class OfflineEngine:
    """``with OfflineEngine(folder, tensor_parallel_size=2) as engine: engine.generate(...)``."""

    def __init__(
        self,
        model: Path | str,
        plugins: PluginSettings | None = None,
        kv_cache_memory_bytes: int = 8 << 20,
        **engine_args: Any,
    ) -> None:
        """
        Args:
            kv_cache_memory_bytes: of each rank.
            engine_args: further fields of ``EngineArgs``.
        """
        self._threads = torch.get_num_threads()
        args = EngineArgs(
            model=str(model), kv_cache_memory_bytes=kv_cache_memory_bytes, **engine_args
        )
        roles = (
            {"front", "engine"} if args.tensor_parallel_size > 1 else {"front", "engine", "worker"}
        )
        self.host = bootstrap(roles, plugins or PluginSettings(no_plugins=True))
        try:
            config = args.to_engine_config(self.host)
            # Worker classes of the tests are found by the worker processes too.
            with mock.patch.dict(os.environ, PYTHONPATH=SUPPORT):
                self.core = EngineCore(VllmConfig.from_engine_config(config), self.host)
        except BaseException:
            self.host.close()
            raise

    def generate(
        self, prompts: Sequence[list[int]], max_tokens: int = 16, **params: Any
    ) -> list[list[int]]:
        """The tokens after each prompt, all prompts at once; greedy unless ``params`` say else."""
        names = [f"request-{n}" for n in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            given = {"ignore_eos": True, **params}
            self.core.add_request(make_request(name, prompt, max_tokens=max_tokens, **given))
        collected = Collected()
        while self.core.has_work():
            collected.add(self.core.step().outputs)
        return [collected.tokens[name] for name in names]

    def rpc(
        self, method: str, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a method of every worker; one answer a rank."""
        return self.core.collective_rpc(method, list(args), kwargs, timeout)

    def close(self) -> None:
        self.core.shutdown()
        self.host.close()
        torch.set_num_threads(self._threads)

    def __enter__(self) -> OfflineEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
