"""The ranks that share a model."""

from __future__ import annotations

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

__all__ = [
    "GroupCoordinator",
    "divide",
    "ensure_model_parallel_initialized",
    "get_dp_group",
    "get_pp_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_world_size",
    "get_tp_group",
    "get_world_group",
    "init_distributed_environment",
    "initialize_model_parallel",
    "model_parallel_is_initialized",
    "split_tensor_along_last_dim",
    "tensor_model_parallel_all_gather",
    "tensor_model_parallel_all_reduce",
    "tensor_model_parallel_gather",
    "tensor_model_parallel_reduce_scatter",
]

__surface__ = {
    "get_tensor_model_parallel_rank": "live: this rank among those that share the model",
    "get_tensor_model_parallel_world_size": "live: how many ranks share the model",
    "get_tp_group": (
        "live: the ranks that share the model; its all_reduce may overwrite what it is given"
    ),
    "get_pp_group": "live: the stages of the pipeline, of which there is one",
    "get_world_group": "live: all ranks, which share the model",
    "get_dp_group": "live: the copies of the model, of which there is one",
    "GroupCoordinator": (
        "live: the class of these groups; made by the worker alone. It has rank, rank_in_group, "
        "ranks, world_size, is_first_rank, is_last_rank, device_group, all_reduce and all_gather, "
        "and nothing else: torch.distributed does the rest, by device_group"
    ),
    "model_parallel_is_initialized": (
        "live: true, as a worker's ranks have met before its model is built"
    ),
    "init_distributed_environment": (
        "live: says whether the ranks that met are those that are asked for; they meet by "
        "themselves"
    ),
    "ensure_model_parallel_initialized": "live: says whether the ranks that met are split as asked",
    "initialize_model_parallel": "live: the same",
    "get_ep_group": "refused: no architecture with experts is served",
    "init_model_parallel_group": "refused: one group of ranks is made, by the worker",
    "destroy_model_parallel": "refused: the worker parts from the others at its end",
    "destroy_distributed_environment": "refused: the worker parts from the others at its end",
    "graph_capture": "refused: no graphs are captured",
    "tensor_model_parallel_all_reduce": "live: the sum over the ranks, in a tensor of its own",
    "tensor_model_parallel_all_gather": "live: the ranks' parts joined",
    "tensor_model_parallel_gather": "live: the ranks' parts joined, on one of them",
    "tensor_model_parallel_reduce_scatter": "live: this rank's part of the sum",
    "ec_transfer": "refused: no model with an encoder is served, so there is no cache of one",
    "weight_transfer": "refused: weights are not exchanged while serving; start the server again "
    "with others",
    "broadcast_tensor_dict": "refused: every worker is told each step by the engine",
    "divide": "live: a division that must leave nothing over",
    "split_tensor_along_last_dim": "live: equal parts of a tensor",
}

__getattr__ = names_from(
    __name__,
    {
        "get_tensor_model_parallel_rank": ".parallel_state",
        "get_tensor_model_parallel_world_size": ".parallel_state",
        "get_tp_group": ".parallel_state",
        "get_pp_group": ".parallel_state",
        "get_world_group": ".parallel_state",
        "get_dp_group": ".parallel_state",
        "GroupCoordinator": ".parallel_state",
        "model_parallel_is_initialized": ".parallel_state",
        "init_distributed_environment": ".parallel_state",
        "ensure_model_parallel_initialized": ".parallel_state",
        "initialize_model_parallel": ".parallel_state",
        "tensor_model_parallel_all_reduce": ".communication_op",
        "tensor_model_parallel_all_gather": ".communication_op",
        "tensor_model_parallel_gather": ".communication_op",
        "tensor_model_parallel_reduce_scatter": ".communication_op",
        "divide": ".utils",
        "split_tensor_along_last_dim": ".utils",
    },
)
