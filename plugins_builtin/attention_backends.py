"""Built-in plugin: the attention backends of which one is used where no other is asked for."""

from __future__ import annotations

from hookserve.hookspecs import Named, hookimpl


@hookimpl
def attention_backend() -> list[Named]:
    return [
        Named("paged", "hookserve.ops.paged_attention:PagedAttentionBackend"),
        Named("compiled", "hookserve.ops.compiled_attention:CompiledAttentionBackend"),
        Named("triton", "hookserve.ops.triton.attention:TritonAttentionBackend"),
    ]
