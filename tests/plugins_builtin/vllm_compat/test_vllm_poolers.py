"""Poolers that models of packages for vLLM hold: what they make of hidden states."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from step_runner import load_model, make_vllm_config
from tiny_models import write_tiny_model

pytestmark = pytest.mark.usefixtures("vllm_facade")

LENGTHS = [2, 1, 3]


def served(name: str) -> Any:
    return importlib.import_module(f"vllm.{name}")


@pytest.fixture
def states() -> torch.Tensor:
    return torch.randn(sum(LENGTHS), 4, generator=torch.Generator().manual_seed(1))


def metadata(*params: Any) -> Any:
    return served("v1.pool.metadata").PoolingMetadata(torch.tensor(LENGTHS), None, list(params))


def params_of(task: str, **options: Any) -> Any:
    return served("pooling_params").PoolingParams(task=task, **options)


def config_of(**options: Any) -> Any:
    return served("config").PoolerConfig(**options)


@pytest.mark.parametrize("way", ["CLS", "LAST", "MEAN"])
def test_an_embedding_is_of_length_one_and_of_the_dimensions_asked_for(
    way: str, states: torch.Tensor
) -> None:
    pooler = served("model_executor.layers.pooler").DispatchPooler.for_embedding(
        config_of(seq_pooling_type=way)
    )
    told = pooler(
        states,
        metadata(
            params_of("embed"),
            params_of("embed", use_activation=False, dimensions=2),
            params_of("token_embed"),
        ),
    )
    picked = {"CLS": states[0], "LAST": states[1], "MEAN": states[:2].mean(0)}[way]
    torch.testing.assert_close(told[0], picked / picked.norm())
    assert torch.equal(told[1], states[2][:2])
    torch.testing.assert_close(told[2], states[3:] / states[3:].norm(dim=-1, keepdim=True))
    assert pooler.get_supported_tasks() == {"embed", "token_embed"}


def test_classes_are_probabilities_of_one_label_or_several(states: torch.Tensor) -> None:
    layers = served("model_executor.layers.pooler.special")
    one, several = nn.Linear(4, 1), nn.Linear(4, 3)
    alone = layers.DispatchPooler.for_seq_cls(config_of(), classifier=one)
    asked = metadata(
        params_of("score"), params_of("classify", use_activation=False), params_of("score")
    )
    told = alone(states, asked)
    assert torch.equal(told[0], one(states[1]).sigmoid())
    assert torch.equal(told[1], one(states[2]))
    among = layers.DispatchPooler.for_seq_cls(
        config_of(), pooling=lambda each: each.sum(0), classifier=several
    )
    assert torch.equal(among(states, asked)[0], several(states[:2].sum(0)).softmax(-1))
    assert {name for name, _ in among.named_parameters()} == {
        "classifier.weight",
        "classifier.bias",
    }


def test_what_cannot_pool_is_told(states: torch.Tensor) -> None:
    layers = served("model_executor.layers.pooler")
    with pytest.raises(ValueError, match="IdentityPooler is given for task 'embed', and supports "):
        layers.DispatchPooler({"embed": layers.IdentityPooler()})
    with pytest.raises(ValueError, match="pooling type 'STEP' is not known; there are: CLS, LAST"):
        layers.DispatchPooler.for_embedding(config_of(pooling_type="STEP"))
    handing = layers.DispatchPooler({"plugin": layers.IdentityPooler()})
    assert [each.shape[0] for each in handing(states, metadata(*[params_of("plugin")] * 3))] == [
        2,
        1,
        3,
    ]
    with pytest.raises(ValueError, match="nothing is pooled for task 'embed'; there are: plugin"):
        handing.get_pooling_updates("embed")
    with pytest.raises(TypeError, match="Pooler must define forward"):
        served("model_executor.layers.pooler.abstract").Pooler()(states, metadata())


def test_what_a_pooler_wants_is_added_up_and_told_to_requests() -> None:
    update = served("model_executor.layers.pooler.common").PoolingParamsUpdate
    params = params_of("embed")
    (update() | update(requires_token_ids=True)).apply(params)
    assert params.requires_token_ids
    assert update() | update() == update()


def test_a_model_that_embeds_is_built_loaded_and_called(tmp_path: Path) -> None:
    """Around Gemma 2's inner model, whose weights it takes under their own names."""
    gemma2, utils = served("model_executor.models.gemma2"), served("model_executor.models.utils")
    layers = served("model_executor.layers.pooler")

    class Embedding(nn.Module):
        is_pooling_model = True
        hf_to_vllm_mapper = utils.WeightsMapper(orig_to_new_prefix={"model.": ""})

        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()
            self.model = gemma2.Gemma2Model(
                vllm_config=vllm_config, prefix=utils.maybe_prefix(prefix, "model")
            )
            self.pooler = layers.DispatchPooler.for_embedding(
                vllm_config.model_config.pooler_config
            )

        def forward(self, *args: Any) -> torch.Tensor:
            hidden: torch.Tensor = self.model(*args)
            return hidden

        def load_weights(self, weights: Any) -> set[str]:
            named = self.hf_to_vllm_mapper.apply(weights)
            kept = ((name, each) for name, each in named if not name.startswith("lm_head."))
            return {f"model.{name}" for name in self.model.load_weights(kept)}

    config = make_vllm_config(write_tiny_model("gemma2", tmp_path / "model"))
    config.model_config.pooler_config = config_of()
    model = load_model(config, Embedding)
    context = served("forward_context")
    with context.set_forward_context(None, config), torch.inference_mode():
        hidden = model(torch.tensor([1, 2, 3]), torch.arange(3))
    asked = served("v1.pool.metadata").PoolingMetadata(
        torch.tensor([3]), None, [params_of("embed")]
    )
    (vector,) = model.pooler(hidden, asked)
    torch.testing.assert_close(vector, hidden[-1] / hidden[-1].norm())
