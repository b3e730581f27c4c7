"""What a worker is asked by the route of ``endpoint``."""

from __future__ import annotations

from typing import Any


class SchedulerConfigExtension:
    def get_scheduler_config(self) -> dict[str, Any]:
        config = self.vllm_config.scheduler_config
        return {"max_num_seqs": config.max_num_seqs, "rank": self.rank}
