"""How long each public point stays as it is: one table, which ``docs/stability.md`` prints.

Every hook, every public Python name, every flag, every variable of the environment that is no
flag's, and every route has one of three tiers. What is about to go is ``deprecated``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

Tier = Literal["stable", "provisional", "unstable"]
Kind = Literal["hook", "name", "flag", "environment", "route"]

TIERS: Mapping[Tier, str] = MappingProxyType(
    {
        "stable": "kept as long as the hook API's first number; goes only after a deprecation",
        "provisional": "may change in a minor release, and the changelog says how",
        "unstable": "may change in any release; who uses it is told at the start",
    }
)

STABILITY: Mapping[Kind, Mapping[Tier, tuple[str, ...]]] = MappingProxyType(
    {
        "hook": {
            "stable": (
                "register_model",
                "stat_logger",
                "endpoint",
                "settings_schema",
                "process_started",
                "request_finished",
                "shutdown",
            ),
            "provisional": (
                "platform",
                "model_source",
                "model_loader",
                "executor",
                "logits_processor",
                "scheduler",
                "worker_extension",
                "tool_parser",
                "reasoning_parser",
                "authenticator",
                "middleware",
                "cli_command",
                "register_by_call",
                "engine_config",
                "cli_options",
                "model_loaded",
                "weights",
                "compile_cache_key",
                "authenticate",
                "before_request",
                "admit",
                "before_response",
                "metric_labels",
                "order_waiting",
                "select_victim",
            ),
            "unstable": (
                "register_oot_op",
                "register_op_provider",
                "attention_backend",
                "quantization",
                "grammar_backend",
                "hf_config",
                "after_schedule",
                "before_step",
                "after_step",
            ),
        },
        "name": {
            "stable": (
                "hookserve.hookspecs.API_VERSION",
                "hookserve.hookspecs.Endpoint",
                "hookserve.hookspecs.EndpointInstance",
                "hookserve.hookspecs.EndpointStateful",
                "hookserve.hookspecs.ModelEntry",
                "hookserve.hookspecs.Named",
                "hookserve.hookspecs.PluginContext",
                "hookserve.hookspecs.ROLES",
                "hookserve.hookspecs.RequestRecord",
                "hookserve.hookspecs.Role",
                "hookserve.hookspecs.StatLogger",
                "hookserve.hookspecs.Target",
                "hookserve.hookspecs.create_plugin_manager",
                "hookserve.hookspecs.hookimpl",
                "hookserve.engine.CompletionOutput",
                "hookserve.engine.LLM",
                "hookserve.engine.Logprob",
                "hookserve.engine.RequestOutput",
                "hookserve.engine.SamplingParams",
                "hookserve.server.build_app",
            ),
            "provisional": (
                "hookserve.hookspecs.ApiRequest",
                "hookserve.hookspecs.Authenticator",
                "hookserve.hookspecs.Command",
                "hookserve.hookspecs.EngineLoad",
                "hookserve.hookspecs.HostError",
                "hookserve.hookspecs.ModelSource",
                "hookserve.hookspecs.PluginConflictError",
                "hookserve.hookspecs.PluginError",
                "hookserve.hookspecs.PluginManager",
                "hookserve.hookspecs.PluginReport",
                "hookserve.hookspecs.PluginSelectionError",
                "hookserve.hookspecs.PluginSettings",
                "hookserve.hookspecs.Principal",
                "hookserve.hookspecs.ProcessReport",
                "hookserve.hookspecs.QueuedRequest",
                "hookserve.hookspecs.Refusal",
                "hookserve.hookspecs.RequestHead",
                "hookserve.hookspecs.RequiredPluginError",
                "hookserve.hookspecs.ResponseDelta",
                "hookserve.hookspecs.SCOPES",
                "hookserve.hookspecs.Scope",
                "hookserve.hookspecs.SettingsDifferError",
                "hookserve.hookspecs.UnknownNameError",
                "hookserve.hookspecs.worker_method",
                "hookserve.engine.AsyncEngineArgs",
                "hookserve.engine.AsyncLLM",
                "hookserve.engine.EngineArgs",
                "hookserve.engine.LLMEngine",
                "hookserve.engine.RequestOutputKind",
                "hookserve.engine.StructuredOutputsParams",
                "hookserve.server.ScopedRoute",
            ),
            "unstable": (
                "hookserve.hookspecs.Claim",
                "hookserve.hookspecs.Denied",
                "hookserve.hookspecs.Host",
                "hookserve.hookspecs.Manifest",
                "hookserve.hookspecs.OpOverride",
                "hookserve.hookspecs.OpProvider",
                "hookserve.hookspecs.Plugin",
                "hookserve.hookspecs.Registry",
                "hookserve.hookspecs.StepBatch",
                "hookserve.hookspecs.bootstrap",
                "hookserve.hookspecs.compare_manifests",
                "hookserve.hookspecs.current",
                "hookserve.hookspecs.declare",
                "hookserve.hookspecs.known_claims",
                "hookserve.hookspecs.is_claimed",
                "hookserve.hookspecs.hookspec",
                "hookserve.hookspecs.running",
                "hookserve.hookspecs.tell_operator",
            ),
        },
        "flag": {
            "stable": (
                "--model",
                "--served-model-name",
                "--tokenizer",
                "--revision",
                "--download-dir",
                "--dtype",
                "--max-model-len",
                "--load-format",
                "--hf-overrides",
                "--generation-config",
                "--override-generation-config",
                "--chat-template",
                "--max-logprobs",
                "--seed",
                "--max-num-seqs",
                "--max-num-batched-tokens",
                "--block-size",
                "--kv-cache-memory-bytes",
                "--num-gpu-blocks-override",
                "--scheduling-policy",
                "--enable-prefix-caching",
                "--tensor-parallel-size",
                "--distributed-executor-backend",
                "--enforce-eager",
                "--host",
                "--port",
                "--uds",
                "--root-path",
                "--allowed-origins",
                "--api-key",
                "--admin-key",
                "--shutdown-timeout",
                "--plugins",
                "--disable-plugins",
                "--require-plugins",
                "--enable-endpoints",
                "--no-plugins",
                "--plugin",
                "--prefer",
                "--plugin-config",
                "--platform",
                "--log-level",
                "--disable-log-stats",
                "--log-stats-interval",
                "--config",
                "--dry-run",
            ),
            "provisional": (
                "--disable-fastapi-docs",
                "--enable-auto-tool-choice",
                "--exclude-tools-when-tool-choice-none",
                "--tool-call-parser",
                "--tool-parser-plugin",
                "--reasoning-parser",
                "--reasoning-parser-plugin",
                "--authenticator",
                "--middleware",
                "--quantization",
                "--logits-processors",
                "--attention-backend",
                "--structured-outputs-config",
                "--scheduler-cls",
                "--worker-extension-cls",
                "--single-process",
                "--front-hook-timeout",
                "--step-hook-timeout",
                "--startup-hook-timeout",
                "--trace-hooks",
            ),
            "unstable": (
                "--worker-cls",
                "--compilation-config",
                "--ir-op-priority",
                "--additional-config",
            ),
        },
        "environment": {
            "stable": ("NO_COLOR", "VLLM_PLUGINS", "XDG_CACHE_HOME"),
            "provisional": (),
            "unstable": (),
        },
        "route": {
            "stable": (
                "POST /v1/chat/completions",
                "POST /v1/completions",
                "GET /v1/models",
                "GET /v1/models/{model}",
                "POST /tokenize",
                "POST /detokenize",
                "GET /livez",
                "GET /readyz",
                "GET /health",
                "GET /version",
                "GET /metrics",
            ),
            "provisional": ("GET /v1/plugins", "GET /openapi.json", "GET /docs"),
            "unstable": (),
        },
    }
)
"""Public points by kind and tier. A variable of the environment has the tier of its flag."""


def tier_of(kind: Kind, name: str) -> Tier:
    """The tier of one public point, which must be in the table."""
    found = [tier for tier, names in STABILITY[kind].items() if name in names]
    assert len(found) == 1, f"the {kind} {name} stands {len(found)} times in the table of tiers"
    return found[0]


def unstable(kind: Kind, names: Iterable[str]) -> list[str]:
    """Those of the names that may change in any release, in order and once each."""
    known = STABILITY[kind]["unstable"]
    return [name for name in dict.fromkeys(names) if name in known]
