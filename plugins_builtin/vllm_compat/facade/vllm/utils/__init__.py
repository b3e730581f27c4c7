"""Small helpers; those without a module's name are found here as they were in older releases."""

from __future__ import annotations

import uuid

from hookserve.plugins_builtin.vllm_compat.lazy import names_from

_OLDER = {
    ".argparse_utils": ("FlexibleArgumentParser",),
    ".async_utils": ("in_loop", "make_async", "merge_async_iterators"),
    ".collection_utils": (
        "as_list",
        "chunk_list",
        "flatten_2d_lists",
        "full_groupby",
        "is_list_of",
    ),
    ".counter": ("AtomicCounter", "Counter"),
    ".func_utils": ("run_once", "supports_kw"),
    ".hashing": ("get_hash_fn_by_name", "sha256"),
    ".import_utils": (
        "LazyLoader",
        "import_from_path",
        "resolve_obj_by_qualname",
    ),
    ".math_utils": ("cdiv", "next_power_of_2", "prev_power_of_2", "round_down", "round_up"),
    ".mem_constants": ("GB_bytes", "GiB_bytes", "KiB_bytes", "MB_bytes", "MiB_bytes"),
    ".network_utils": (
        "get_distributed_init_method",
        "get_ip",
        "get_open_port",
        "is_valid_ipv6_address",
        "join_host_port",
    ),
    ".platform_utils": ("cuda_is_initialized", "is_pin_memory_available", "is_uva_available"),
    ".system_utils": ("set_env_var", "update_environment_variables"),
    ".torch_utils": (
        "STR_DTYPE_TO_TORCH_DTYPE",
        "current_stream",
        "direct_register_custom_op",
        "get_dtype_size",
        "get_kv_cache_torch_dtype",
        "is_torch_equal_or_newer",
        "kv_cache_dtype_str_to_dtype",
        "make_tensor_with_pad",
        "set_default_torch_dtype",
        "set_random_seed",
        "vllm_lib",
    ),
}
_HOMES = {name: home for home, names in _OLDER.items() for name in names}

__all__ = ["random_uuid", *_HOMES]

__surface__ = {
    "random_uuid": "live: 32 hexadecimal digits",
    **{name: f"live: the older place of vllm.utils{home}" for name, home in _HOMES.items()},
}

__getattr__ = names_from(__name__, _HOMES)


def random_uuid() -> str:
    return uuid.uuid4().hex
