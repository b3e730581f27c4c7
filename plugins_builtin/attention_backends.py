"""Built-in plugin: the attention backend that is used where no other is asked for."""

from __future__ import annotations

from hookserve.hookspecs import Named, hookimpl


@hookimpl
def attention_backend() -> Named:
    return Named("paged", "hookserve.ops.paged_attention:PagedAttentionBackend")
