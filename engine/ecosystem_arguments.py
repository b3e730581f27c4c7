"""Arguments of an engine that the ecosystem (vLLM) has and this one has not: which are passed over
with a word, which are refused, and which can at least be read. Why stands in ``vllm_flags``.
"""

from __future__ import annotations

import copy
import difflib
import functools
import logging
from dataclasses import fields
from typing import Any, TypeVar

from .config_sections import PART_OF_FREE_MEMORY
from .errors import ConfigError, NotServedError
from .vllm_flags import Flag, find_flag

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=type[Any])


def taking_others(kind: C) -> C:
    """Decorates a dataclass whose constructor is given arguments of the ecosystem's, too.

    The constructor raises:
        TypeError: an argument that is none, with the nearest one that is.
        ConfigError: one of the ecosystem's that is refused, with the reason.
    """
    make = kind.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        known = [each.name for each in fields(self)]
        others = {name: given.pop(name) for name in OTHERS if name in given}
        for name in [name for name in given if name not in known]:
            if not without_effect(name, given.pop(name)):
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"unexpected keyword argument {name!r}{hint}")
        make(self, *args, **given)
        for name, value in others.items():
            setattr(self, name, value)

    kind.__init__ = __init__
    return kind


def without_effect(name: str, value: Any) -> bool:
    """Whether it is one of the ecosystem's that may be given here and changes nothing.

    Raises:
        ConfigError: it would have to change something.
    """
    flag = _flag_of(name)
    if flag is None or flag.verdict == "works":
        return False
    if flag.verdict == "no effect":
        logger.info("%s has no effect, because %s", name, flag.reason)
    elif not _is_neutral(flag, value):
        raise ConfigError(_refusal(name, value, flag))
    return True


def expect_none(method: str, **given: Any) -> None:
    """
    Raises:
        NotServedError: an argument of the ecosystem's for what no engine here has.
    """
    for name, value in given.items():
        if value is not None:
            raise NotServedError(
                f"{method}: {name} has no meaning for this engine; expected None", param=name
            )


class FixedArgumentError(ConfigError):
    """Something was to be set that stands fast."""


class OtherArgument:
    """An argument of the ecosystem's that this engine has not: what it is can be read. It may be
    set where that changes nothing, which is said unless it stays what it is.

    Args:
        value: what it is without being given.
        reason: why it cannot be another, for one that is no flag.
    """

    def __init__(self, value: Any, reason: str = "") -> None:
        self._value = value
        self._reason = reason
        self._name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        return (
            self._value
            if instance is None
            else given_others(instance).get(self._name, copy.deepcopy(self._value))
        )

    def __set__(self, instance: Any, value: Any) -> None:
        """
        Raises:
            FixedArgumentError: it would have to change something.
        """
        if value is None or value == self._value:
            given = {key: it for key, it in given_others(instance).items() if key != self._name}
            give_others(instance, given)
            return
        flag = _flag_of(self._name) or Flag(self._name, "refused", self._reason)
        if flag.verdict == "no effect":
            logger.info("%s has no effect, because %s", self._name, flag.reason)
        elif not _is_neutral(flag, value):
            raise FixedArgumentError(_refusal(self._name, value, flag))
        give_others(instance, {**given_others(instance), self._name: value})


_OTHERS = "_other_arguments"


def given_others(args: Any) -> dict[str, Any]:
    """What was given or set of arguments that this engine has not, by name."""
    found: dict[str, Any] = vars(args).get(_OTHERS, {})
    return found


def give_others(args: Any, values: dict[str, Any]) -> None:
    """Have these in place of what was given of arguments that this engine has not."""
    vars(args)[_OTHERS] = values


class OtherArguments:
    """What the arguments of an engine have beside their fields: the ecosystem's others, at what
    they come to here."""

    @property
    def download_dir(self) -> Any:
        """The ecosystem's name of ``cache_dir``."""
        return vars(self)["cache_dir"]

    @download_dir.setter
    def download_dir(self, value: Any) -> None:
        setattr(self, "cache_dir", value)  # noqa: B010  (a field of the class that derives)

    aggregate_engine_logging = OtherArgument(False)
    all2all_backend = OtherArgument("allgather_reducescatter")
    allowed_local_media_path = OtherArgument("")
    allowed_media_domains = OtherArgument(None)
    async_scheduling = OtherArgument(False)
    attention_config = OtherArgument(None)
    code_revision = OtherArgument(None)
    collect_detailed_traces = OtherArgument(None)
    config_format = OtherArgument("auto")
    convert = OtherArgument("auto")
    cpu_offload_gb = OtherArgument(0)
    cudagraph_capture_sizes = OtherArgument(None)
    custom_histogram_buckets = OtherArgument(None)
    data_parallel_address = OtherArgument(None)
    data_parallel_backend = OtherArgument("mp")
    data_parallel_external_lb = OtherArgument(False)
    data_parallel_hybrid_lb = OtherArgument(False)
    data_parallel_rank = OtherArgument(None)
    data_parallel_rpc_port = OtherArgument(None)
    data_parallel_size = OtherArgument(1)
    data_parallel_size_local = OtherArgument(None)
    disable_custom_all_reduce = OtherArgument(False)
    ec_manager_config = OtherArgument(None)
    ec_transfer_config = OtherArgument(None)
    enable_chunked_prefill = OtherArgument(True)
    enable_eplb = OtherArgument(False)
    enable_expert_parallel = OtherArgument(False)
    enable_lora = OtherArgument(False)
    enable_mfu_metrics = OtherArgument(False)
    enable_prompt_embeds = OtherArgument(False)
    enable_sleep_mode = OtherArgument(False)
    fail_on_environ_validation = OtherArgument(False)
    gpu_memory_utilization = OtherArgument(PART_OF_FREE_MEMORY)
    hf_config_path = OtherArgument(None)
    kernel_config = OtherArgument(None)
    kv_cache_dtype = OtherArgument("auto")
    kv_cache_metrics = OtherArgument(False)
    kv_events_config = OtherArgument(None)
    kv_offloading_backend = OtherArgument("native")
    kv_offloading_size = OtherArgument(None)
    kv_transfer_config = OtherArgument(None)
    limit_mm_per_prompt = OtherArgument({})
    linear_backend = OtherArgument("auto")
    logprobs_mode = OtherArgument("raw_logprobs")
    master_addr = OtherArgument("127.0.0.1")
    master_port = OtherArgument(29501)
    max_cpu_loras = OtherArgument(None)
    max_cudagraph_capture_size = OtherArgument(None)
    max_lora_rank = OtherArgument(16)
    max_loras = OtherArgument(1)
    max_num_queued_reqs = OtherArgument(None)
    max_num_queued_tokens = OtherArgument(None)
    media_io_kwargs = OtherArgument({})
    mm_processor_cache_gb = OtherArgument(4)
    mm_processor_kwargs = OtherArgument(None)
    model_class_overrides = OtherArgument({})
    model_impl = OtherArgument("auto")
    moe_backend = OtherArgument("auto")
    nnodes = OtherArgument(1)
    node_rank = OtherArgument(0)
    optimization_level = OtherArgument(0)
    otlp_traces_endpoint = OtherArgument(None)
    performance_mode = OtherArgument("balanced")
    pipeline_parallel_size = OtherArgument(1)
    pooler_config = OtherArgument(None)
    prefix_caching_hash_algo = OtherArgument("sha256")
    profiler_config = OtherArgument(None)
    quantization_config = OtherArgument(None)
    reasoning_config = OtherArgument(None)
    runner = OtherArgument("auto")
    show_hidden_metrics_for_version = OtherArgument(None)
    skip_tokenizer_init = OtherArgument(False)
    spec_method = OtherArgument(None)
    spec_model = OtherArgument(None)
    spec_tokens = OtherArgument(None)
    speculative_config = OtherArgument(None)
    stream_interval = OtherArgument(1)
    tokenizer_mode = OtherArgument("auto")
    tokenizer_revision = OtherArgument(None)
    trust_remote_code = OtherArgument(False)
    weight_transfer_config = OtherArgument(None)
    model_weights = OtherArgument("", "weights are read from where the model is")


OTHERS = tuple(
    name for name, it in vars(OtherArguments).items() if isinstance(it, OtherArgument | property)
)
"""Their names."""


def _flag_of(name: str) -> Flag | None:
    return find_flag("--" + name.replace("_", "-"))


def _is_neutral(flag: Flag, value: Any) -> bool:
    return value is None or value is False or value == {} or str(value) in flag.neutral


def _refusal(name: str, value: Any, flag: Flag) -> str:
    return f"{name}={value!r:.120} is refused, because {flag.reason}"
