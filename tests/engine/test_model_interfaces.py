"""What models say that they can do, and how classes and models are asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hookserve.engine import model_interfaces as interfaces
from hookserve.engine.model_section import HfConfig
from hookserve.engine.weights import (
    AutoWeightsLoader,
    IntermediateTensors,
    PPMissingLayer,
    is_pp_missing_parameter,
    make_empty_intermediate_tensors_factory,
    row_parallel_weight_loader,
)
from hookserve.ops.context import TensorParallelGroup, get_pp_group, set_tp_group
from hookserve.plugins_builtin.gemma2 import Gemma2ForCausalLM
from hookserve.plugins_builtin.llama import LlamaForCausalLM
from hookserve.plugins_builtin.opt import OPTForCausalLM

FLAGS = {
    interfaces.SupportsMultiModal: interfaces.supports_multimodal,
    interfaces.SupportsMRoPE: interfaces.supports_mrope,
    interfaces.SupportsTranscription: interfaces.supports_transcription,
    interfaces.SupportsCrossEncoding: interfaces.supports_cross_encoding,
    interfaces.SupportsLateInteraction: interfaces.supports_late_interaction,
    interfaces.HasInnerState: interfaces.has_inner_state,
    interfaces.IsAttentionFree: interfaces.is_attention_free,
    interfaces.IsHybrid: interfaces.is_hybrid,
    interfaces.HasNoOps: interfaces.has_noops,
    interfaces.SupportsEagle: interfaces.supports_eagle,
    interfaces.SupportsEagle3: interfaces.supports_eagle3,
    interfaces.VllmModelForPooling: interfaces.is_pooling_model,
}


class Bare(nn.Module):
    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return input_ids


@pytest.mark.parametrize("mixin", FLAGS, ids=lambda mixin: mixin.__name__)
def test_each_mixin_answers_its_own_question_and_no_other(mixin: type[Any]) -> None:
    made = type("Made", (Bare, mixin), {})
    answers = {each for each, ask in FLAGS.items() if ask(made)}
    assert answers == {each for each, ask in FLAGS.items() if ask(made())} == {mixin}
    assert not any(ask(Bare) for ask in FLAGS.values())


@pytest.mark.parametrize("model", [LlamaForCausalLM, OPTForCausalLM, Gemma2ForCausalLM])
def test_the_built_in_models_say_what_they_can_do(model: type[Any]) -> None:
    assert interfaces.supports_lora(model) and interfaces.supports_pp(model)
    assert interfaces.is_vllm_model(model) and interfaces.is_text_generation_model(model)
    assert interfaces.get_attn_type(model) == "decoder"
    assert (
        interfaces.get_default_seq_pooling_type(model),
        interfaces.get_default_tok_pooling_type(model),
    ) == ("LAST", "ALL")


def test_a_flag_without_what_goes_with_it_is_no_answer() -> None:
    class Flag(Bare):
        supports_lora = supports_pp = True

    class Stages(Bare, interfaces.SupportsPP):
        pass

    assert not interfaces.supports_lora(Flag) and not interfaces.supports_pp(Flag)
    assert not interfaces.supports_pp(Stages), "its forward takes no intermediate_tensors"
    assert interfaces.is_vllm_model(Flag) and not interfaces.is_text_generation_model(Flag)
    assert not interfaces.is_vllm_model(nn.Linear)
    with pytest.raises(TypeError, match="Stages must define or set make_empty_intermediate"):
        Stages().make_empty_intermediate_tensors(1, torch.float32, torch.device("cpu"))


def test_what_a_model_wants_of_its_input_is_asked_apart() -> None:
    class Raw(Bare, interfaces.SupportsMultiModal):
        supports_multimodal_raw_input_only = requires_raw_input_tokens = True

    class Plain(Bare, interfaces.SupportsMultiModal):
        pass

    for ask in (
        interfaces.supports_multimodal_raw_input_only,
        interfaces.requires_raw_input_tokens,
    ):
        assert ask(Raw) and not ask(Plain) and not ask(Bare)


def test_decorators_set_what_inspection_reads() -> None:
    @interfaces.default_pooling_type(seq_pooling_type="CLS", tok_pooling_type="STEP")
    @interfaces.attn_type("encoder_only")
    class Model(Bare):
        pass

    assert interfaces.get_default_seq_pooling_type(Model) == "CLS"
    assert interfaces.get_default_tok_pooling_type(Model()) == "STEP"
    assert interfaces.get_attn_type(Model) == "encoder_only"
    assert interfaces.get_score_type(Model) == "bi-encoder"


def test_tensors_between_stages_are_taken_by_name_and_by_rows() -> None:
    tensors = make_empty_intermediate_tensors_factory(["a", "b"], 3)(
        4, torch.float32, torch.device("cpu")
    )
    tensors["a"] = torch.arange(12.0).view(4, 3)
    first = tensors[:2]
    assert isinstance(first, IntermediateTensors) and len(first) == 2
    assert first["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert {name: each.shape[0] for name, each in first.items()} == {"a": 2, "b": 2}


def test_a_layer_of_another_stage_hands_on_and_takes_no_weights() -> None:
    missing = PPMissingLayer()
    assert missing("x", "residual") == missing(hidden_states="x") == "x"
    model = nn.Module()
    model.layers = nn.ModuleList([PPMissingLayer(), nn.Linear(1, 1, bias=False)])
    assert is_pp_missing_parameter("layers.0.weight", model)
    assert not is_pp_missing_parameter("layers.1.weight", model)
    assert not is_pp_missing_parameter("norm.weight", model)
    weights = [(f"layers.{layer}.weight", torch.ones(1, 1)) for layer in (0, 1)]
    assert AutoWeightsLoader(model).load_weights(weights) == {"layers.1.weight"}
    assert (get_pp_group().is_first_rank, get_pp_group().is_last_rank) == (True, True)


def test_rows_are_cut_over_the_ranks_and_single_numbers_are_whole() -> None:
    group = TensorParallelGroup(1, 2)
    param, number = torch.zeros(2), torch.zeros(())
    with set_tp_group(group):
        row_parallel_weight_loader(param, torch.arange(4.0))
        row_parallel_weight_loader(number, torch.tensor([7.0]))
    assert param.tolist() == [2.0, 3.0] and number.item() == 7.0
    assert (group.ranks, group.rank_in_group) == ([0, 1], 1)
    assert (group.is_first_rank, group.is_last_rank, group.device_group) == (False, True, None)


@pytest.mark.parametrize(
    ("stated", "table"),
    [
        ({"rope_theta": 5.0}, {"rope_type": "default", "rope_theta": 5.0}),
        (
            {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0},
        ),
        (
            {"rope_theta": 5.0, "partial_rotary_factor": 0.5},
            {"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 0.5},
        ),
        ({"rope_parameters": {"rope_theta": 7.0}, "rope_theta": 5.0}, {"rope_theta": 7.0}),
    ],
)
def test_one_table_describes_the_rotation_in_either_spelling(
    stated: dict[str, Any], table: dict[str, Any]
) -> None:
    config = HfConfig(stated)
    assert config.rope_parameters == table
    assert config.to_dict() == stated
    assert not hasattr(HfConfig({}), "rope_parameters")
