"""Fixtures for conftests: the server's application over an engine that answers from a script."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'villain' %}{{ raise_exception('no villains') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
)
NUM_BYTES = 256
EOS = 256
ANSWER_TIMEOUT_S = 10.0


@pytest.fixture
def byte_tokenizer() -> Any:
    """A token for each byte; 256 is the end token."""
    from tokenizers import AddedToken, decoders, pre_tokenizers
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import BPE

    from hookserve.engine.text.tokenizer import Tokenizer

    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(NUM_BYTES):
        letters.setdefault(byte, chr(256 + byte - sum(b < byte for b in printable)))
    backend = Backend(BPE({letters[byte]: byte for byte in range(NUM_BYTES)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    return Tokenizer(
        backend,
        origin="test",
        special_tokens={"eos_token": "<eos>"},
        chat_templates={"default": CHAT_TEMPLATE},
    )


@pytest.fixture
def make_engine_config() -> Callable[..., Any]:
    """An engine configuration of 257 tokens and a context of 128, without any file behind it."""
    from hookserve.engine import config as c

    def make(priorities: bool = False, **model: Any) -> c.EngineConfig:
        fields: dict[str, Any] = {
            "model": "m",
            "path": "/nowhere/secret",
            "format": "safetensors",
            "served_model_names": ("m", "org/alias"),
            "tokenizer": "/nowhere/secret",
            "hf_config": {"eos_token_id": EOS},
            "generation_config": {},
            "architectures": ("LlamaForCausalLM",),
            "dtype": "float32",
            "dtype_reason": "a test",
            "max_model_len": 128,
            "vocab_size": NUM_BYTES + 1,
            **model,
        }
        return c.EngineConfig(
            model=c.ModelConfig(**fields),
            cache=c.CacheConfig(),
            scheduler=c.SchedulerConfig(policy="priority" if priorities else "fcfs"),
            parallel=c.ParallelConfig(),
            load=c.LoadConfig(),
            device=c.DeviceConfig(
                platform="hookserve.plugins_builtin.cpu_platform:CpuPlatform",
                platform_owner="hookserve:builtin:cpu",
            ),
        )

    return make


@dataclass
class Served:
    """A running application: ``http`` speaks to it, ``engine`` is the script behind it."""

    http: Any
    engine: Any
    runtime: Any


@pytest.fixture
def serve_script(
    byte_tokenizer: Any, make_engine_config: Callable[..., Any]
) -> Callable[..., contextlib.AbstractAsyncContextManager[Served]]:
    """``async with serve_script(script, plugins=[…], settings={…}, hooks={…}, blocks=64,
    priorities=True, **model)``: ``settings`` are fields of ``ServerSettings``, ``hooks`` of
    ``PluginSettings``."""
    import httpx

    from hookserve.engine.channel import AsyncChannel
    from hookserve.engine.errors import EngineDeadError
    from hookserve.hookspecs import PluginSettings
    from hookserve.hookspecs.host import Host
    from hookserve.server.runtime import ServerRuntime
    from hookserve.server.settings import ServerSettings
    from scripted_engine import ScriptedEngine, make_ready

    class Impatient(httpx.ASGITransport):
        """Fails the test where the application does not answer."""

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            answer = asyncio.create_task(super().handle_async_request(request))
            done, _ = await asyncio.wait({answer}, timeout=ANSWER_TIMEOUT_S)
            if not done:
                answer.cancel()
            assert done, f"no answer to {request.method} {request.url.path}"
            return answer.result()

    @contextlib.asynccontextmanager
    async def serve(
        script: Any,
        plugins: Sequence[object] = (),
        settings: Mapping[str, Any] = MappingProxyType({}),
        hooks: Mapping[str, Any] = MappingProxyType({}),
        blocks: int = 64,
        **model: Any,
    ) -> AsyncIterator[Served]:
        host = Host(["front"], PluginSettings(allow=(), **hooks), plugins)
        runtime = ServerRuntime(
            ServerSettings(**settings), host, make_engine_config(**model), byte_tokenizer
        )
        ours, theirs = socket.socketpair()
        engine = ScriptedEngine(theirs, script)
        channel = AsyncChannel(ours)
        reader = asyncio.create_task(runtime.client.run(channel, make_ready(blocks)))
        # What the supervisor does: a reader that ends takes every request with it.
        gone = EngineDeadError("the reader ended")
        reader.add_done_callback(lambda task: runtime.client.mark_dead(gone))
        await asyncio.sleep(0)
        client = runtime.serving.prompt_client
        await runtime.endpoints.init_state(client, runtime.app.state, runtime.settings)
        runtime.health.set_ready()
        transport = Impatient(runtime.app, raise_app_exceptions=True)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                yield Served(http, engine, runtime)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await runtime.stop()
            engine.close()
            channel.close()

    return serve
