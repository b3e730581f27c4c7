"""What a platform is."""

from __future__ import annotations

from hookserve.engine.platform import (
    CpuArchEnum,
    DeviceCapability,
    Platform,
    PlatformEnum,
    UnspecifiedPlatform,
)

__all__ = [
    "CpuArchEnum",
    "DeviceCapability",
    "Platform",
    "PlatformEnum",
    "UnspecifiedPlatform",
]

__surface__ = {
    "CpuArchEnum": "live: what get_cpu_architecture answers",
    "DeviceCapability": "live: what get_device_capability answers of a CUDA device",
    "Platform": "live: base of every platform. Called in front: pre_register_and_update, "
    "log_warnings, verify_model_arch, verify_quantization, check_max_model_len, "
    "apply_config_platform_defaults, check_and_update_config; in workers: import_kernels, "
    "check_if_supports_dtype, get_attn_backend_cls (the arguments of earlier forms by name), "
    "set_device, manual_seed_all, get_device_communicator_cls, get_device_total_memory and "
    "get_current_memory_usage; read: _enum by the predicates, device_type, dist_backend, "
    "supported_dtypes, supported_quantization. Other methods of vLLM's that a class defines are "
    "named once in the log as called by nothing",
    "PlatformEnum": "live: kinds of devices; OOT and is_out_of_tree choose forward_oot of ops",
    "UnspecifiedPlatform": "shape: of no kind; no process has it",
}
