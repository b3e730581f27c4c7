"""Built-in plugin: the loaders of model weights, by the format of the files."""

from __future__ import annotations

from hookserve.hookspecs import Named, hookimpl


@hookimpl
def model_loader() -> list[Named]:
    return [
        Named("safetensors", "hookserve.engine.model_loader:DefaultModelLoader"),
        Named("gguf", "hookserve.engine.model_loader:GGUFModelLoader"),
    ]
