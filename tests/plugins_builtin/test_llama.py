"""The Llama model against transformers: random checkpoints of odd shapes, and SmolLM2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from hookserve.engine.errors import ModelFileError
from hookserve.ops.linear import UnquantizedLinearMethod
from hookserve.plugins_builtin import llama
from step_runner import StepRunner, load_model, make_vllm_config

BASE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "tied": {"tie_word_embeddings": True},
    "one head a key head": {
        "hidden_size": 60,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "intermediate_size": 52,
    },
    "one key head": {"num_key_value_heads": 1},
    "free head size": {"hidden_size": 48, "head_dim": 24},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """A factory: a folder with a random checkpoint, and the reference that wrote it."""

    def make(**changes: Any) -> tuple[Path, Any]:
        torch.manual_seed(7)
        model = LlamaForCausalLM(LlamaConfig(**(BASE | changes))).eval()
        with torch.no_grad():
            for name, param in model.named_parameters():
                # Biases and norms too: at their initial values a model that drops them passes.
                param.normal_(1.0 if "norm" in name else 0.0, 0.15)
        model.save_pretrained(tmp_path / "model")
        return tmp_path / "model", model

    return make


def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0].float()
        return logits


def prompt(length: int, seed: int, vocab: int = 131) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (length,), generator=generator).tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers_for_chunks_and_decodes(
    shape: str, checkpoint: Callable[..., tuple[Path, Any]]
) -> None:
    folder, reference = checkpoint(**SHAPES[shape])
    config = make_vllm_config(folder, block_size=4)
    runner = StepRunner(config, load_model(config))
    first, second = prompt(90, 1), prompt(29, 2)
    blocks = [40, 3, 17, *range(41, 62)]  # not in order: a block table, not a stretch
    other = list(range(4, 12))

    whole = runner.step([(first[:50], 0, blocks)])
    chunk = runner.step([(second[:17], 0, other), (first[50:79], 50, blocks)])
    mixed = runner.step([(second[17:18], 17, other), (first[79:88], 79, blocks)])
    last = runner.step([(first[88:89], 88, blocks), (second[18:19], 18, other)])
    alone = runner.step([(first[89:90], 89, blocks)])

    want, want_second = reference_logits(reference, first), reference_logits(reference, second)
    torch.testing.assert_close(whole, want[:50], rtol=0, atol=1e-4)
    torch.testing.assert_close(chunk[:17], want_second[:17], rtol=0, atol=1e-4)
    torch.testing.assert_close(chunk[17:], want[50:79], rtol=0, atol=1e-4)
    torch.testing.assert_close(mixed[:1], want_second[17:18], rtol=0, atol=1e-4)
    torch.testing.assert_close(mixed[1:], want[79:88], rtol=0, atol=1e-4)
    torch.testing.assert_close(last, torch.stack([want[88], want_second[18]]), rtol=0, atol=1e-4)
    torch.testing.assert_close(alone, want[89:90], rtol=0, atol=1e-4)


def test_a_sequence_has_the_same_logits_among_neighbours_as_alone(
    checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    folder, _ = checkpoint()
    config = make_vllm_config(folder, block_size=4)
    runner = StepRunner(config, load_model(config), num_blocks=600)
    lengths = [1, 2, 5, 8, 9, 30, 31, 200, 210, 3]  # two kinds of length: several groups
    prompts = [prompt(length + 1, seed) for seed, length in enumerate(lengths)]
    blocks, start = [], 1
    for length in lengths:
        blocks.append(list(range(start, start + length // 4 + 1)))
        start += length // 4 + 1

    alone = []
    for tokens, own in zip(prompts, blocks, strict=True):
        runner.step([(tokens[:-1], 0, own)])
        alone.append(runner.step([(tokens[-1:], len(tokens) - 1, own)]))
    together = runner.step(
        [(tokens[-1:], len(tokens) - 1, own) for tokens, own in zip(prompts, blocks, strict=True)]
    )

    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-5)


def test_bfloat16_is_as_close_to_float32_as_transformers_own(
    checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    folder, reference = checkpoint(tie_word_embeddings=True)
    tokens = prompt(200, 3)
    want = reference_logits(reference, tokens)
    theirs = reference_logits(
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16), tokens
    )
    config = make_vllm_config(folder, "bfloat16")
    runner = StepRunner(config, load_model(config))
    ours = runner.step([(tokens, 0, list(range(1, 14)))]).float()

    assert (ours - want).abs().mean() <= 1.25 * (theirs - want).abs().mean()


def test_generates_the_tokens_that_transformers_generates(smollm2_f32: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(smollm2_f32, dtype=torch.float32)
    config = make_vllm_config(smollm2_f32)
    runner = StepRunner(config, load_model(config))
    tokens = prompt(40, 4, vocab=49152)
    want = reference_logits(reference, tokens)
    blocks = [7, 2, 9, 5]

    first = runner.step([(tokens[:21], 0, blocks)])
    rest = runner.step([(tokens[21:39], 21, blocks)])
    last = runner.step([(tokens[39:], 39, blocks)])

    torch.testing.assert_close(torch.cat([first, rest, last]), want, rtol=0, atol=2e-3)


def test_profiling_without_metadata_touches_no_cache(
    checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    from hookserve.ops.context import ForwardContext, set_forward_context

    folder, _ = checkpoint()
    config = make_vllm_config(folder)
    model = load_model(config)  # no cache is bound
    layers = config.compilation_config.static_forward_context
    with torch.inference_mode(), set_forward_context(ForwardContext(None, layers)):
        hidden = model(torch.tensor([1, 2, 3]), torch.arange(3))
    assert hidden.shape == (3, 64)


def test_attention_layers_register_under_their_prefix(
    checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    folder, _ = checkpoint()
    config = make_vllm_config(folder)
    model = load_model(config)
    layers = config.compilation_config.static_forward_context
    assert list(layers) == [f"model.layers.{index}.self_attn.attn" for index in range(3)]
    assert layers["model.layers.1.self_attn.attn"] is model.model.layers[1].self_attn.attn


def test_a_subclass_can_replace_the_attention_of_every_layer(
    checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    seen: list[str] = []

    class CountingAttention(llama.LlamaAttention):
        def _init_rotary_emb(self, config: Any, quant_config: Any) -> None:
            super()._init_rotary_emb(config, quant_config)
            seen.append(type(self.rotary_emb).__name__)

        def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
            seen.append("forward")
            return super().forward(positions, hidden_states)

    class CountingLayer(llama.LlamaDecoderLayer):
        def __init__(self, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config, prefix, attn_layer_type=CountingAttention)

    class CountingModel(llama.LlamaForCausalLM):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=CountingLayer)

        def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
            logits = super().compute_logits(hidden_states)
            assert logits is not None
            return logits.zero_()

    folder, _ = checkpoint()
    config = make_vllm_config(folder)
    runner = StepRunner(config, load_model(config, CountingModel))
    logits = runner.step([([1, 2, 3], 0, [1])])
    assert not logits.any()
    assert seen == ["RotaryEmbedding"] * 3 + ["forward"] * 3


def test_a_patched_linear_method_computes_every_layer(
    checkpoint: Callable[..., tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def apply(self: Any, layer: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
        calls.append(layer.prefix)
        return torch.nn.functional.linear(x, layer.weight, bias)  # needs the plain weight

    monkeypatch.setattr(UnquantizedLinearMethod, "apply", apply)
    folder, reference = checkpoint()
    config = make_vllm_config(folder)
    runner = StepRunner(config, load_model(config))
    logits = runner.step([([1, 2, 3], 0, [1])])
    torch.testing.assert_close(logits, reference_logits(reference, [1, 2, 3]), rtol=0, atol=1e-4)
    assert len(calls) == 3 * 4  # qkv, o, gate_up and down of three layers
    assert calls[0] == "model.layers.0.self_attn.qkv_proj"


def test_packed_weights_give_the_plain_one_back(
    checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    folder, reference = checkpoint()
    model = load_model(make_vllm_config(folder))
    weight = model.model.layers[0].self_attn.o_proj.weight
    plain = weight.to_dense() if weight.is_mkldnn else weight
    assert torch.equal(plain, reference.model.layers[0].self_attn.o_proj.weight)


def test_a_tied_head_shares_the_embedding(checkpoint: Callable[..., tuple[Path, Any]]) -> None:
    folder, _ = checkpoint(tie_word_embeddings=True)
    model = load_model(make_vllm_config(folder))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_other_rotations_are_refused_by_name(
    checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    folder, _ = checkpoint()
    config = make_vllm_config(folder)
    config.model_config.hf_config.update({"rope_parameters": {"rope_type": "spiral"}})
    message = r"model: .*under 'rope_parameters'; .*'spiral' is not supported; .*default, linear"
    with pytest.raises(ModelFileError, match=message):
        load_model(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
            r"under 'rope_parameters'; expected one rotation for all layers",
        ),
        (
            {"sliding_window": 8, "layer_types": ["chunked_attention"] * 3},
            r"'chunked_attention' under 'layer_types\.0'; expected one of full_attention, slid",
        ),
        ({"head_dim": 15}, r"15 under 'head_dim'; expected an even number"),
        (
            {"hidden_size": 66, "head_dim": None},
            r"66 under 'hidden_size'; expected a multiple of the 4 heads",
        ),
    ],
)
def test_what_a_layer_cannot_be_built_from_is_refused_by_key(
    checkpoint: Callable[..., tuple[Path, Any]], changes: dict[str, Any], message: str
) -> None:
    folder, _ = checkpoint()
    config = make_vllm_config(folder)
    config.model_config.hf_config.update(changes)
    with pytest.raises(ModelFileError, match=message):
        load_model(config)


def test_other_activations_are_refused_by_name(
    checkpoint: Callable[..., tuple[Path, Any]],
) -> None:
    folder, _ = checkpoint(hidden_act="mish")
    with pytest.raises(ModelFileError, match=r"'mish' under 'hidden_act'; expected one of silu"):
        load_model(make_vllm_config(folder))
