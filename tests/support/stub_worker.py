"""A worker without torch or model, for what passes between engine and workers: starts at once.

By ``worker_cls="stub_worker:StubWorker"``; the other classes fail where their names say.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from hookserve.engine.errors import ModelFileError
from hookserve.engine.step import ModelRunnerOutput, SchedulerOutput
from hookserve.engine.vllm_config import VllmConfig
from hookserve.ops.errors import PeerLostError


class StubWorker:
    def __init__(self, vllm_config: VllmConfig, **place: Any) -> None:
        self.vllm_config = vllm_config
        self.place = place
        self.rank = int(place["rank"])
        self.calls: list[str] = []
        self.fault = ""
        self.woke = 0.0

    def init_device(self) -> None:
        self.calls.append("init_device")

    def load_model(self) -> None:
        self.calls.append("load_model")

    def shutdown(self) -> None: ...

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Answers with what it was sent, as far as that shows."""
        if self.fault == "raise":
            raise ValueError("the left half is missing")
        if self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "lose":
            raise RuntimeError("the model failed") from PeerLostError("nobody answers")
        new = scheduler_output.scheduled_new_reqs
        return ModelRunnerOutput(
            req_ids=[each.req_id for each in new],
            sampled_token_ids=[[*each.prompt_token_ids, *each.block_ids] for each in new],
            errors={key: str(list(ids)) for key, ids in _resumed(scheduler_output)},
        )

    # -- what tests call --------------------------------------------------------------------------

    def where(self) -> list[Any]:
        """Rank, driver or not, roles, pid, calls so far, torch here or not."""
        config = self.vllm_config
        return [
            self.rank,
            self.place["is_driver_worker"],
            config.parallel_config.rank,
            os.getpid(),
            self.calls,
            "torch" in sys.modules,
        ]

    def echo(self, value: Any, times: int = 1) -> list[Any]:
        return [value, *[self.rank] * times]

    def odd(self) -> Any:
        """Rank 1 alone answers with what cannot cross."""
        return self if self.rank else "plain"

    def complain(self, rank: int) -> int:
        if self.rank == rank:
            raise LookupError(f"rank {rank} has nothing")
        return self.rank

    def sleep(self, rank: int, seconds: float) -> int:
        if self.rank == rank:
            time.sleep(seconds)
        return self.rank

    def complain_or_sleep(self, rank: int, seconds: float) -> None:
        """One rank fails at once, the others take their time."""
        self.complain(rank)
        time.sleep(seconds)
        self.woke = time.monotonic()

    def woke_at(self) -> list[float]:
        """When this rank had slept, and now."""
        return [self.woke, time.monotonic()]

    def fail_next(self, faults: list[str]) -> None:
        """What happens in this rank's next step."""
        self.fault = faults[self.rank]


def _resumed(scheduler_output: SchedulerOutput) -> list[tuple[str, Any]]:
    return list(scheduler_output.scheduled_cached_reqs.all_token_ids.items())


class UnreadableWorker(StubWorker):
    def load_model(self) -> None:
        if self.rank == 1:
            raise ModelFileError("/m/model.safetensors: tensor 'w' ends behind the file's end")


class MeetingWorker(StubWorker):
    def init_device(self) -> None:
        found = os.stat(self.place["distributed_init_method"].removeprefix("file://"))
        self.meeting = [found.st_nlink, found.st_dev, found.st_ino]

    def met_by(self) -> list[int]:
        """Names, device and number of the file by which the ranks find each other."""
        return self.meeting


class BrokenWorker(StubWorker):
    def init_device(self) -> None:
        raise OSError("no driver")


class ExitingWorker(StubWorker):
    def load_model(self) -> None:
        if self.rank == 0:
            os._exit(3)
        time.sleep(60)


class DeafWorker(StubWorker):
    def shutdown(self) -> None:
        time.sleep(60)
