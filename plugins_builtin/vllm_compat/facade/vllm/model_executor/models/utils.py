"""What models are built and loaded with."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hookserve.engine.model_loader import initialize_model
from hookserve.engine.vllm_config import HfConfig, VllmConfig
from hookserve.engine.weights import AutoWeightsLoader as StrictLoader
from hookserve.engine.weights import (
    PPMissingLayer,
    Weights,
    WeightsMapper,
    extract_layer_index,
    is_pp_missing_parameter,
    make_empty_intermediate_tensors_factory,
    make_layers,
    maybe_prefix,
)

__all__ = [
    "AutoWeightsLoader",
    "PPMissingLayer",
    "WeightsMapper",
    "extract_layer_index",
    "init_vllm_registered_model",
    "is_pp_missing_parameter",
    "make_empty_intermediate_tensors_factory",
    "make_layers",
    "maybe_prefix",
]

__surface__ = {
    "AutoWeightsLoader": (
        "live: models load their weights with it; skip_prefixes and skip_substrs of older "
        "releases are taken too"
    ),
    "PPMissingLayer": "shape: stands for a layer of another stage; there is one stage",
    "WeightsMapper": "live: renames a checkpoint's weights; models and loaders apply it",
    "extract_layer_index": "live: models are built with it",
    "make_empty_intermediate_tensors_factory": "live: models are built with it",
    "make_layers": "live: models are built with it",
    "maybe_prefix": "live: models are built with it",
    "is_pp_missing_parameter": "live: false for every parameter of a model without PPMissingLayer",
    "init_vllm_registered_model": "live: builds the model of an inner configuration",
    "flatten_bn": "refused: no images, audio or video are taken",
    "merge_multimodal_embeddings": "refused: no images, audio or video are taken",
}


class AutoWeightsLoader(StrictLoader):
    """With what older releases were told to leave out.

    Args:
        skip_prefixes: weights whose name, as the mapper gives it, begins so are left out.
        skip_substrs: those whose name holds one of these.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        skip_prefixes: Sequence[str] | None = None,
        skip_substrs: Sequence[str] | None = None,
        ignore_unexpected_prefixes: Sequence[str] | None = None,
        ignore_unexpected_suffixes: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            module,
            ignore_unexpected_prefixes=ignore_unexpected_prefixes,
            ignore_unexpected_suffixes=ignore_unexpected_suffixes,
        )
        self._skipped_prefixes = tuple(skip_prefixes or ())
        self._skipped_parts = tuple(skip_substrs or ())

    def load_weights(self, weights: Weights, *, mapper: WeightsMapper | None = None) -> set[str]:
        if mapper is not None:
            weights = mapper.apply(weights)
        kept = ((name, tensor) for name, tensor in weights if not self._is_skipped(name))
        return super().load_weights(kept)

    def _is_skipped(self, name: str) -> bool:
        return name.startswith(self._skipped_prefixes) or any(
            part in name for part in self._skipped_parts
        )


def init_vllm_registered_model(
    vllm_config: VllmConfig,
    *,
    prefix: str = "",
    hf_config: HfConfig | None = None,
    architectures: list[str] | None = None,
) -> nn.Module:
    """Build the model that is registered for an architecture, as part of another one.

    Args:
        hf_config: of the inner model; ``None``: the outer one's.
        architectures: ``None``: what ``hf_config`` names, else those of the outer model.
    """
    given = hf_config or vllm_config.model_config.hf_config
    inner = vllm_config.with_hf_config(given, architectures)
    return initialize_model(inner, prefix=prefix)
