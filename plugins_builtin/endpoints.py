"""Built-in plugin: the routes of the server. Each is an endpoint like any third party's, and a
third party may replace one by claiming the same path."""

from __future__ import annotations

from hookserve.hookspecs import Endpoint, hookimpl


@hookimpl
def endpoint() -> list[Endpoint]:
    return [
        Endpoint("health", "hookserve.server.operations:HealthEndpoint"),
        Endpoint("version", "hookserve.server.operations:VersionEndpoint"),
        Endpoint("metrics", "hookserve.server.operations:MetricsEndpoint"),
        Endpoint("plugins", "hookserve.server.operations:PluginsEndpoint"),
        Endpoint("openapi", "hookserve.server.openapi_routes:OpenApiEndpoint"),
        Endpoint("models", "hookserve.server.openai_models:ModelsEndpoint"),
        Endpoint("tokenize", "hookserve.server.tokenize_routes:TokenizeEndpoint"),
        Endpoint(
            "completions",
            "hookserve.server.openai_completions:CompletionsEndpoint",
            required_tasks=("generate",),
        ),
        Endpoint(
            "chat_completions",
            "hookserve.server.openai_chat:ChatCompletionsEndpoint",
            required_tasks=("generate",),
        ),
    ]
