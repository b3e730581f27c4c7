"""``IOProcessor``: turns data of a request's into prompts, and what a pooling model makes of them
into the answer. The base of every one, and how the one that the operator named is built.

Nothing in this server asks it so far, since no pooling model is served; who builds it hands it to
code that does.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hookserve.hookspecs.targets import is_path

from .errors import ConfigError, cut
from .plugin_class import find_class
from .plugin_code import as_plugin
from .pooling_params import PoolingParams
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

    from .text.tokenizer import Tokenizer
    from .vllm_config import ModelConfig, VllmConfig

logger = logging.getLogger(__name__)

KIND = "io_processor"
TASK = "plugin"
"""The pooling task of a processor's requests that says nothing else."""

IOProcessorInput = TypeVar("IOProcessorInput")
IOProcessorOutput = TypeVar("IOProcessorOutput")


class Renderer:
    """What a processor may want to make prompts with."""

    def __init__(self, config: VllmConfig, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer


class IOProcessor(abc.ABC, Generic[IOProcessorInput, IOProcessorOutput]):
    """Method names are the ecosystem's (vLLM's). There is one for a server.

    Prompts that ``pre_process`` makes of one request share the ``PoolingParams``, and come back to
    ``post_process`` in their order. Nobody says when a request was dropped between the two.
    """

    def __init__(self, vllm_config: VllmConfig, renderer: Renderer | None = None) -> None:
        del renderer  # for those who want it
        self.vllm_config = vllm_config

    @abc.abstractmethod
    def parse_data(self, data: object) -> IOProcessorInput:
        """Check a request's ``data``; a ``ValueError`` is the client's fault."""

    def merge_sampling_params(self, params: SamplingParams | None = None) -> SamplingParams:
        return params or SamplingParams()

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        """What a request's prompts are pooled with; ``params`` is what the caller gave."""
        return params or PoolingParams(task=TASK)

    @abc.abstractmethod
    def pre_process(
        self, prompt: IOProcessorInput, request_id: str | None = None, **kwargs: Any
    ) -> Any:
        """A prompt, or several, of what ``parse_data`` gave."""

    async def pre_process_async(
        self, prompt: IOProcessorInput, request_id: str | None = None, **kwargs: Any
    ) -> Any:
        return self.pre_process(prompt, request_id, **kwargs)

    @abc.abstractmethod
    def post_process(
        self, model_output: Sequence[Any], request_id: str | None = None, **kwargs: Any
    ) -> IOProcessorOutput:
        """The answer, of the output for each prompt."""

    async def post_process_async(
        self,
        model_output: AsyncGenerator[tuple[int, Any], None],
        request_id: str | None = None,
        **kwargs: Any,
    ) -> IOProcessorOutput:
        """Of outputs that come one by one, each with the index of its prompt."""
        found = {index: output async for index, output in model_output}
        return self.post_process([found[index] for index in sorted(found)], request_id, **kwargs)


def chosen_io_processor(model: ModelConfig) -> str | None:
    """The name of the processor that the operator asked for, else the checkpoint.

    Raises:
        ConfigError: the checkpoint's is a class path: it may choose among plugins, not what is
            imported.
    """
    if model.io_processor_plugin:
        return model.io_processor_plugin
    said = getattr(model.hf_config, "io_processor_plugin", None)
    if said is not None and is_path(str(said)):
        raise ConfigError(
            f"the checkpoint's io_processor_plugin is {cut(said)!r}: expected the name of one that "
            "a plugin registered; to have a class by its path, give --io-processor-plugin"
        )
    return None if said is None else str(said)


def open_io_processor(
    host: Host, vllm_config: VllmConfig, tokenizer: Tokenizer
) -> IOProcessor[Any, Any] | None:
    """The chosen one; raises as ``build_io_processor``."""
    name = chosen_io_processor(vllm_config.model_config)
    if name is None:
        return None
    made = build_io_processor(host, vllm_config, Renderer(vllm_config, tokenizer), name)
    logger.warning(
        "io processor %s (%s) is built, and no route asks it: no pooling model is served so far",
        name,
        type(made).__qualname__,
    )
    return made


def build_io_processor(
    host: Host, vllm_config: VllmConfig, renderer: Renderer | None, name: str
) -> IOProcessor[Any, Any]:
    """
    Args:
        name: in the registry, or a class path, which only an operator or code may give.

    Raises:
        UnknownNameError: as ``find_class``.
        hookserve.hookspecs.PluginError: so too; and where it cannot be built.
    """
    found, plugin = find_class(host, KIND, name, IOProcessor)
    with as_plugin(host, plugin, f"{KIND} {name}"):
        made: IOProcessor[Any, Any] = found(vllm_config, renderer)
        return made
