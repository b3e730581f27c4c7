"""``EngineConfig``: everything the engine needs to know, as frozen plain data.

It is the truth, and the only configuration that crosses processes. The mutable tree with the
ecosystem's names that models and plugins receive is made from it in ``vllm_config``. Flags and
files become these structs in ``engine_args``; this file reads neither them nor the environment.
"""

from __future__ import annotations

from typing import Any

import msgspec


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    """The reference as the operator gave it."""
    path: str
    """A local folder, or a ``.gguf`` file."""
    format: str
    """``"safetensors"`` or ``"gguf"``."""
    served_model_names: tuple[str, ...]
    tokenizer: str
    """Path that the tokenizer is read from: a folder or a ``.gguf`` file."""
    hf_config: dict[str, Any]
    """``config.json`` as a plain dict; for GGUF made from the file's metadata, the same keys."""
    generation_config: dict[str, Any]
    architectures: tuple[str, ...]
    dtype: str
    """``"float32"``, ``"bfloat16"`` or ``"float16"``; ``"auto"`` is already decided."""
    dtype_reason: str
    max_model_len: int
    """Tokens, prompt and output together."""
    vocab_size: int
    seed: int = 0
    chat_template: str | None = None
    """A template that overrides the tokenizer's own."""
    tool_call_parser: str | None = None
    """Name in the registry of tool parsers, or a class path; ``None``: calls are not looked for."""
    reasoning_parser: str | None = None
    """The same for reasoning."""
    io_processor_plugin: str | None = None
    """The same for IO processors; ``None``: the checkpoint may name one."""
    max_logprobs: int = 20
    """Most log-probabilities a token that a request may ask for; -1: no limit."""
    quantization: str | None = None
    """Name in the registry of quantizations, or a class path; ``None``: weights are plain."""
    logits_processors: tuple[str, ...] = ()
    """Class paths, beside what plugins declare."""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int = 16
    """Tokens a block."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True


SCHEDULING_POLICIES: tuple[str, ...] = ("fcfs", "priority")


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 1024
    """Token budget of one step, prompt chunks and decoded tokens together."""
    policy: str = "fcfs"
    """One of ``SCHEDULING_POLICIES``."""
    scheduler_cls: str = "default"
    """Name in the registry of schedulers, or a class path."""


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True):
    tensor_parallel_size: int = 1
    distributed_executor_backend: str = "uni"
    """Name in the registry of executors, or a class path; ``"auto"`` is already decided."""
    executor_reason: str = ""
    worker_cls: str = "auto"
    """Class path; ``"auto"``: the platform fills in its own."""
    worker_extension_cls: str = ""
    """Names in the registry of worker extensions, or class paths, with commas between them."""

    @property
    def workers_are_apart(self) -> bool:
        """Whether each worker is a process of its own, so that the engine needs nothing of theirs.
        An executor of a plugin may do either; then the engine is ready for both."""
        return self.distributed_executor_backend == "mp"


class LoadConfig(msgspec.Struct, frozen=True, kw_only=True):
    load_format: str = "auto"
    """Name in the registry of model loaders; ``"auto"`` goes by the files' format."""
    model_loader_extra_config: dict[str, Any] = {}
    """JSON for a plugin's loader; nobody else looks at it."""


class StructuredOutputsConfig(msgspec.Struct, frozen=True, kw_only=True):
    backend: str = "auto"
    """Name in the registry of grammar backends, or a class path."""
    disable_any_whitespace: bool = False
    """JSON has no white space between its tokens, unless a request gives a pattern for it."""
    disable_additional_properties: bool = False
    """Objects of schemas that say nothing about further properties have none."""


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    platform: str
    """Class path of the platform that was chosen in front."""
    platform_owner: str
    device_type: str = "cpu"


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    load: LoadConfig
    device: DeviceConfig
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    attention_backend: str | None = None
    """Name in the registry of attention backends, or a class path; ``None``: the platform's."""
    enforce_eager: bool = False
    custom_ops: list[str] = []
    """What the operator switched on and off (``hookserve.ops.op_rule``)."""
    ir_op_priority: dict[str, list[str]] = {}
    """Registered name of an op to the names of its providers, the first that works is taken."""
    log_stats: bool = True
    log_level: str = "INFO"
    log_color: bool = False
    additional_config: dict[str, Any] = {}
    instance_id: str = ""
    """Of this engine alone."""
    tree_changes: dict[str, Any] = {}
    """What a platform set in the tree and no field above holds, by dotted path."""
