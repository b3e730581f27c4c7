"""The table of every flag that ``vllm serve`` has, and what becomes of it here.

One row a flag: it works; it is accepted without effect, because ...; or it is refused, because
.... The working ones are defined by the settings structs (a test compares the two); this file
parses nothing. ``docs/cli.md`` is made from it, and arguments in Python are told by it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["works", "no effect", "refused"]
Arity = Literal["one", "none", "many"]


@dataclass(frozen=True)
class Flag:
    """Args:
    name: with hyphens, without dashes.
    reason: ends the sentence "... because REASON"; empty for a flag that works.
    arity: how many values it takes; ``none`` for a switch, which has a ``--no-`` twin.
    neutral: values at which a refused flag changes nothing, so that they are accepted.
    aliases: other option strings, with their dashes.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    arity: Arity = "one"
    neutral: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        return ("--" + self.name, *self.aliases)


def _works(*names: str) -> tuple[Flag, ...]:
    return tuple(Flag(name, "works") for name in names)


def _rows(
    verdict: Verdict, reason: str, *names: str, arity: Arity = "one", neutral: tuple[str, ...] = ()
) -> tuple[Flag, ...]:
    return tuple(Flag(name, verdict, reason, arity, neutral) for name in names)


def _refused(
    reason: str, *names: str, arity: Arity = "one", neutral: tuple[str, ...] = ()
) -> tuple[Flag, ...]:
    return _rows("refused", reason, *names, arity=arity, neutral=neutral)


def _no_effect(reason: str, *names: str, arity: Arity = "one") -> tuple[Flag, ...]:
    return _rows("no effect", reason, *names, arity=arity)


_SERVER = (
    *_works("host", "port", "uds", "root-path", "allowed-origins", "shutdown-timeout"),
    *_works("api-key", "middleware"),
    *_refused("one front process serves all requests", "api-server-count", neutral=("1",)),
    *_refused("an engine runs beside its own front only", "headless", arity="none"),
    *_refused("the server speaks HTTP alone", "grpc", arity="none"),
    *_refused("the server speaks HTTP alone", "grpc-port"),
    *_refused(
        "cross-origin rules are set by --allowed-origins alone",
        "allowed-methods",
        "allowed-headers",
        neutral=("*", '["*"]'),
    ),
    *_refused(
        "cross-origin rules are set by --allowed-origins alone", "allow-credentials", arity="none"
    ),
    *_refused(
        "there is no TLS yet; put a proxy in front",
        "ssl-keyfile",
        "ssl-certfile",
        "ssl-ca-certs",
    ),
    *_refused("there is no TLS yet; put a proxy in front", "ssl-cert-reqs", neutral=("0",)),
    *_refused("there is no TLS yet", "enable-ssl-refresh", arity="none"),
    *_no_effect("every reply has X-Request-Id", "enable-request-id-headers", arity="none"),
    *_works("disable-fastapi-docs"),
    *_no_effect("/docs needs no other host", "enable-offline-docs", arity="none"),
    *_no_effect("--log-level rules every line of the log", "uvicorn-log-level"),
    *_no_effect(
        "requests are not logged one by one",
        "disable-uvicorn-access-log",
        arity="none",
    ),
    *_no_effect("requests are not logged one by one", "disable-access-log-for-endpoints"),
    *_no_effect(
        "requests are parsed by httptools, within the server's own limits",
        "h11-max-incomplete-event-size",
        "h11-max-header-count",
    ),
    *_refused("the load is read at /metrics", "enable-server-load-tracking", arity="none"),
    *_refused(
        "requests are not logged one by one",
        "enable-log-requests",
        "enable-log-outputs",
        arity="none",
    ),
    *_no_effect("requests are not logged one by one", "max-log-len"),
    *_refused("tracebacks are logged at --log-level DEBUG", "log-error-stack", arity="none"),
    *_refused("there are no disaggregated routes", "tokens-only", "enable-scale-out", arity="none"),
    *_refused("there is no tokenizer route yet", "enable-tokenizer-info-endpoint", arity="none"),
    *_refused("streams carry no comments yet", "sse-keep-alive-interval", neutral=("0",)),
    *_refused("replies carry no system_fingerprint yet", "fingerprint-mode", "fingerprint-value"),
)

_CHAT = (
    *_works("chat-template"),
    *_refused(
        "the template's own needs are found out", "chat-template-content-format", neutral=("auto",)
    ),
    *_refused(
        "a request must not bring code of its own",
        "trust-request-chat-template",
        "trust-request-mm-kwargs",
        arity="none",
    ),
    *_refused(
        "templates take no further arguments yet", "default-chat-template-kwargs", neutral=("{}",)
    ),
    *_refused("replies have the role assistant", "response-role", neutral=("assistant",)),
    *_works("enable-auto-tool-choice", "tool-call-parser", "tool-parser-plugin"),
    *_works("exclude-tools-when-tool-choice-none", "reasoning-parser", "reasoning-parser-plugin"),
    *_refused(
        "calls that must be made are always held to their schemas",
        "tool-strict-level",
        neutral=("auto",),
    ),
    *_refused("there is no tool server", "tool-server"),
    *_refused("a model's thoughts have no limit of their own", "reasoning-config"),
    *_no_effect(
        "usage always has prompt_tokens_details", "enable-prompt-tokens-details", arity="none"
    ),
    *_refused(
        "a stream has usage where the request asks for it",
        "enable-force-include-usage",
        arity="none",
    ),
    *_refused(
        "replies carry no metrics of their request", "enable-per-request-metrics", arity="none"
    ),
    *_refused(
        "a request asks for them with return_tokens_as_token_ids",
        "return-tokens-as-token-ids",
        arity="none",
    ),
    *_works("structured-outputs-config"),
)

_MODEL = (
    *_works(
        "model",
        "served-model-name",
        "tokenizer",
        "dtype",
        "max-model-len",
        "load-format",
        "model-loader-extra-config",
        "download-dir",
        "revision",
        "hf-overrides",
        "generation-config",
        "override-generation-config",
        "max-logprobs",
        "seed",
        "enforce-eager",
        "quantization",
    ),
    *_refused("only text generation is served", "runner", neutral=("auto", "generate")),
    *_refused("only text generation is served", "convert", neutral=("auto", "none")),
    *_refused(
        "models come through the hook register_model alone",
        "model-impl",
        neutral=("auto", "vllm"),
    ),
    *_refused("one kind of tokenizer is read", "tokenizer-mode", neutral=("auto", "hf")),
    *_refused("text needs a tokenizer", "skip-tokenizer-init", arity="none"),
    *_refused("a checkpoint's code is never run", "trust-remote-code", arity="none"),
    *_refused("a quantization's configuration is the checkpoint's own", "quantization-config"),
    *_refused("a checkpoint's code is never run", "code-revision"),
    *_refused("the tokenizer has the model's revision", "tokenizer-revision"),
    *_refused("models come through the hook register_model alone", "model-class-overrides"),
    *_refused("the configuration is read from the model's own folder", "hf-config-path"),
    *_refused(
        "configurations are read as config.json or GGUF metadata",
        "config-format",
        neutral=("auto", "hf"),
    ),
    *_refused(
        "log-probabilities are those of the model's own logits",
        "logprobs-mode",
        neutral=("raw_logprobs",),
    ),
    *_refused("only text generation is served", "pooler-config"),
    *_refused("prompts are text or token ids", "enable-prompt-embeds", arity="none"),
    *_refused(
        "only text is served",
        "allowed-local-media-path",
        "allowed-media-domains",
        "limit-mm-per-prompt",
        "mm-processor-kwargs",
        "media-io-kwargs",
        "mm-processor-cache-gb",
    ),
    *_refused("a model stays loaded", "enable-sleep-mode", arity="none"),
)

_PARALLEL = (
    *_works(
        "tensor-parallel-size",
        "distributed-executor-backend",
        "worker-cls",
        "worker-extension-cls",
    ),
    Flag(
        "pipeline-parallel-size",
        "refused",
        "tensor-parallel ranks are all there are",
        neutral=("1",),
        aliases=("-pp",),
    ),
    Flag(
        "data-parallel-size",
        "refused",
        "tensor-parallel ranks are all there are",
        neutral=("1",),
        aliases=("-dp",),
    ),
    Flag(
        "data-parallel-size-local",
        "refused",
        "tensor-parallel ranks are all there are",
        aliases=("-dpl",),
    ),
    Flag(
        "data-parallel-rank",
        "refused",
        "tensor-parallel ranks are all there are",
        aliases=("-dpr",),
    ),
    Flag(
        "data-parallel-address",
        "refused",
        "tensor-parallel ranks are all there are",
        aliases=("-dpa",),
    ),
    Flag(
        "data-parallel-rpc-port",
        "refused",
        "tensor-parallel ranks are all there are",
        aliases=("-dpp",),
    ),
    Flag(
        "data-parallel-backend",
        "refused",
        "tensor-parallel ranks are all there are",
        aliases=("-dpb",),
    ),
    *_refused(
        "tensor-parallel ranks are all there are",
        "data-parallel-hybrid-lb",
        "data-parallel-external-lb",
        arity="none",
    ),
    Flag(
        "enable-expert-parallel",
        "refused",
        "tensor-parallel ranks are all there are",
        arity="none",
        aliases=("-ep",),
    ),
    *_refused("tensor-parallel ranks are all there are", "all2all-backend"),
    *_refused("tensor-parallel ranks are all there are", "enable-eplb", arity="none"),
    *_refused("one machine is all there is", "nnodes", neutral=("1",)),
    *_refused("one machine is all there is", "node-rank", neutral=("0",)),
    *_refused("one machine is all there is", "master-addr", "master-port"),
    *_no_effect(
        "the ranks exchange tensors by torch.distributed alone",
        "disable-custom-all-reduce",
        arity="none",
    ),
)

_ENGINE = (
    *_works(
        "kv-cache-memory-bytes",
        "num-gpu-blocks-override",
        "block-size",
        "enable-prefix-caching",
        "max-num-batched-tokens",
        "max-num-seqs",
        "scheduling-policy",
        "scheduler-cls",
    ),
    Flag(
        "gpu-memory-utilization",
        "no effect",
        "on a CPU the KV cache is sized by --kv-cache-memory-bytes",
        aliases=("--device-memory-utilization",),
    ),
    *_refused("the KV cache has the model's dtype", "kv-cache-dtype", neutral=("auto",)),
    *_refused(
        "blocks are named by one hash of their own",
        "prefix-caching-hash-algo",
        neutral=("sha256",),
    ),
    *_refused("the KV cache stays in one memory", "kv-offloading-size"),
    *_refused("the KV cache stays in one memory", "kv-offloading-backend", neutral=("native",)),
    *_refused("weights stay in one memory", "cpu-offload-gb", neutral=("0",)),
    *_refused(
        "the queue has the server's own bound", "max-num-queued-reqs", "max-num-queued-tokens"
    ),
    *_refused("steps do not overlap yet", "async-scheduling", arity="none"),
    Flag("enable-chunked-prefill", "no effect", "prompts are always computed in chunks", "none"),
    *_refused("every token is streamed as it comes", "stream-interval", neutral=("1",)),
    *_works("compilation-config", "ir-op-priority", "attention-backend", "logits-processors"),
    *_works("io-processor-plugin"),
    Flag(
        "attention-config",
        "refused",
        "the backend is named by --attention-backend, and has no further settings",
        aliases=("-ac",),
    ),
    Flag(
        "optimization-level",
        "no effect",
        "a model is run as it is written, not compiled",
        aliases=("-O",),
    ),
    *_no_effect("a model is run as it is written, not compiled", "performance-mode"),
    *_refused("providers of ops are named by --ir-op-priority", "kernel-config"),
    *_refused(
        "providers of ops are named by --ir-op-priority", "linear-backend", neutral=("auto",)
    ),
    *_refused("there are no experts yet", "moe-backend", neutral=("auto",)),
    Flag("cudagraph-capture-sizes", "no effect", "no graphs are captured yet", "many"),
    *_no_effect("no graphs are captured yet", "max-cudagraph-capture-size"),
)

_EXTENSIONS = (
    *_works("additional-config", "disable-log-stats", "log-level", "config"),
    *_refused("there are no LoRA adapters yet", "enable-lora", arity="none"),
    Flag("lora-modules", "refused", "there are no LoRA adapters yet", "many"),
    *_refused("there are no LoRA adapters yet", "max-loras", "max-lora-rank", "max-cpu-loras"),
    Flag(
        "speculative-config",
        "refused",
        "there is no speculative decoding yet",
        aliases=("-sc",),
    ),
    *_refused("there is no speculative decoding yet", "spec-method", "spec-model", "spec-tokens"),
    *_refused(
        "the KV cache is not transferred",
        "kv-transfer-config",
        "kv-events-config",
        "ec-transfer-config",
        "ec-manager-config",
    ),
    *_refused("weights are not exchanged while serving", "weight-transfer-config"),
    *_refused("there is no profiler yet", "profiler-config"),
    *_no_effect("there is one engine", "aggregate-engine-logging", arity="none"),
    *_refused("there is no tracing yet", "otlp-traces-endpoint", "collect-detailed-traces"),
    *_refused(
        "this metric does not exist",
        "kv-cache-metrics",
        "enable-mfu-metrics",
        arity="none",
    ),
    *_refused("metrics have fixed buckets", "custom-histogram-buckets"),
    *_refused("no metric is hidden", "show-hidden-metrics-for-version"),
    *_no_effect(
        "an unknown HOOKSERVE_* variable is warned about by name",
        "fail-on-environ-validation",
        arity="none",
    ),
    *_refused("the log has one format", "logging-config"),
)

VLLM_FLAGS: tuple[Flag, ...] = (
    *_SERVER,
    *_CHAT,
    *_MODEL,
    *_PARALLEL,
    *_ENGINE,
    *_EXTENSIONS,
)


def find_flag(option: str) -> Flag | None:
    """The row of an option string such as ``--enable-lora``, ``--no-enable-lora`` or ``-q``."""
    for flag in VLLM_FLAGS:
        if option in flag.options:
            return flag
        if flag.arity == "none" and option == "--no-" + flag.name:
            return flag
    return None
