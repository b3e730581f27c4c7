"""``ModelRegistry``: registers architectures for the plugin whose code is running."""

from __future__ import annotations

import sys
from collections.abc import Callable, KeysView
from typing import Any

from hookserve.engine.model_facts import ModelFacts
from hookserve.engine.model_inspection import inspect_model
from hookserve.engine.model_registry import contract_fault, resolve_architecture
from hookserve.engine.once_logger import init_logger
from hookserve.hookspecs import current, declare, known_claims, running
from hookserve.hookspecs.targets import same_target
from hookserve.plugins_builtin.vllm_compat.registry_view import RegistryView

__all__ = ["ModelRegistry"]

__surface__ = {
    "ModelRegistry": "live: fills the registry of models, which every process reads; its questions "
    "about classes are answered by the inspector, or in a worker by the class",
}

logger = init_logger("vllm.model_executor.models.registry")


class _Models(RegistryView):
    """Class or path of each architecture, as it was registered: nothing is imported for it."""

    def __getitem__(self, arch: str) -> Any:
        return self._claims()[arch].target

    def __setitem__(self, arch: str, target: Any) -> None:
        ModelRegistry.register_model(arch, target)


def _asks(fact: str) -> Callable[..., bool]:
    """A question about the first of the architectures that is registered."""

    def ask(
        self: _ModelRegistry, architectures: str | list[str], model_config: object = None
    ) -> bool:
        return bool(getattr(self.inspect_model_cls(architectures, model_config)[0], fact))

    return ask


class _ModelRegistry:
    """What this process knows of architectures.

    Attributes:
        models: by architecture; setting one registers it.
    """

    def __init__(self) -> None:
        self.models = _Models("model")

    def get_supported_archs(self) -> KeysView[str]:
        """The architectures that anybody has registered so far, those of the host too; a view,
        which shows later ones as well."""
        return self.models.keys()

    def register_model(self, model_arch: str, model_cls: Any) -> None:
        """Register a class, or its path ``"module:Class"``, for an architecture.

        Raises:
            TypeError: the architecture is no text, or the class no ``torch.nn.Module``.
            ValueError: the path has not exactly one colon.
            hookserve.hookspecs.PluginError: the registry was already read, or no plugin's code is
                running.
        """
        if not isinstance(model_arch, str):
            raise TypeError(f"model_arch must be a text, not {type(model_arch).__name__}")
        _check_model(model_arch, model_cls)
        if _has_registered(model_arch, model_cls):
            logger.info("skip %s: already registered", model_arch)
            return
        declare("model", model_arch, model_cls)

    def inspect_model_cls(
        self, architectures: str | list[str], model_config: object = None
    ) -> tuple[ModelFacts, str]:
        """What is known of the first of the architectures that is registered, and its name. In a
        process that is no worker the inspector imports the class.

        Args:
            model_config: callers tell it; the answer is the class's alone.

        Raises:
            ValueError: none of them is registered.
            hookserve.hookspecs.HostError: the class cannot be had, or does not keep the contract;
                or plugins are being loaded still.
        """
        del model_config
        facts = inspect_model(_as_list(architectures), current())
        return facts, facts.architecture

    def resolve_model_cls(
        self, architectures: str | list[str], model_config: object = None
    ) -> tuple[type[Any], str]:
        """The class of the first of the architectures that is registered, imported, and its name.

        Args:
            model_config: callers tell it; the answer is the registry's alone.

        Raises: as ``inspect_model_cls``.
        """
        del model_config
        name, model_class = resolve_architecture(_as_list(architectures), current())
        return model_class, name

    is_text_generation_model = _asks("is_text_generation_model")
    is_pooling_model = _asks("is_pooling_model")
    is_multimodal_model = _asks("supports_multimodal")
    is_multimodal_raw_input_only_model = _asks("supports_multimodal_raw_input_only")
    is_pp_supported_model = _asks("supports_pp")
    model_has_inner_state = _asks("has_inner_state")
    is_attention_free_model = _asks("is_attention_free")
    is_hybrid_model = _asks("is_hybrid")
    is_noops_model = _asks("has_noops")
    is_transcription_model = _asks("supports_transcription")
    is_transcription_only_model = _asks("supports_transcription_only")


def _as_list(architectures: str | list[str]) -> list[str]:
    return [architectures] if isinstance(architectures, str) else list(architectures)


def _check_model(arch: str, given: Any) -> None:
    if isinstance(given, str):
        if given.count(":") != 1 or not all(given.split(":")):
            raise ValueError(
                f"{arch} is registered as {given!r}; expected '<module>:<class>', with one colon"
            )
        return
    torch = sys.modules.get("torch")  # who has such a class has imported it
    if torch is None or not isinstance(given, type) or not issubclass(given, torch.nn.Module):
        shown = given.__qualname__ if isinstance(given, type) else repr(given)[:80]
        raise TypeError(
            f"{arch} is registered as {shown}; expected a subclass of torch.nn.Module, or the "
            "text '<module>:<class>'"
        )
    fault = contract_fault(given)
    if fault is not None:
        logger.warning(
            "%s: %s %s; a checkpoint that asks for it is refused", arch, given.__qualname__, fault
        )


def _has_registered(arch: str, given: Any) -> bool:
    """Whether the plugin whose code is running has done just that before."""
    return any(
        claim.name == arch and claim.plugin is running() and same_target(claim.target, given)
        for claim in known_claims("model")
    )


ModelRegistry = _ModelRegistry()
