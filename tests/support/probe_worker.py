"""A worker that lets itself be looked into, by ``--worker-cls probe_worker:ProbeWorker``."""

from __future__ import annotations

import torch

from hookserve.engine.worker import Worker


class ProbeWorker(Worker):
    def zero_shard(self, rank: int) -> int:
        """Zero every sharded weight of one rank; how many there were."""
        if self.rank != rank:
            return 0
        sharded = [w for w in self.get_model().parameters() if w.dim() == 2]
        for weight in sharded:
            weight.data.zero_()
        return len(sharded)

    def own_tensor(self) -> torch.Tensor:
        """This rank's part of the first layer's query, key and value weight."""
        weight: torch.Tensor = self.get_model().model.layers[0].self_attn.qkv_proj.weight
        return weight

    def shapes(self) -> dict[str, list[int]]:
        """Of every weight of this rank."""
        return {name: list(w.shape) for name, w in self.get_model().named_parameters()}

    def sequences(self) -> dict[str, list[int]]:
        """The tokens of each live request as this rank knows them."""
        batch = self.runner.input_batch
        return {
            req_id: batch.token_ids[slot, : batch.num_tokens[slot]].tolist()
            for req_id, slot in batch.slots.items()
        }

    def next_random(self) -> int:
        """What the generator that gives seeds to requests without one would give next."""
        state = self.runner._seeds.get_state()
        value = int(torch.randint(0, 2**63 - 1, (), generator=self.runner._seeds))
        self.runner._seeds.set_state(state)
        return value

    def enter_alone(self, rank: int) -> None:
        """One rank adds up, and the others fail instead."""
        if self.rank != rank:
            raise LookupError("nothing to add")
        self.tp_group.all_reduce(torch.ones(3))
