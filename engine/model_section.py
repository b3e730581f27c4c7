"""``ModelConfig`` and ``HfConfig``: what the tree of the configuration says of the model.

The tree is ``vllm_config``'s. Importing this file does not import torch; ``dtype`` does, on first
use.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import config

if TYPE_CHECKING:
    import torch

    from .vllm_config import ParallelConfig


class HfConfig:
    """``config.json`` as attributes; nested objects become ``HfConfig`` too.

    An attribute that the file lacks raises ``AttributeError``, so ``getattr(c, name, default)``
    and ``hasattr`` work as they do with transformers' configuration objects.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            nested = isinstance(value, Mapping) and key.endswith("_config")
            setattr(self, key, HfConfig(value) if nested else value)

    def __getattr__(self, name: str) -> Any:
        """What the file lacks; ``rope_parameters`` it may state in two keys."""
        stated = vars(self)
        if name == "rope_parameters" and (stated.get("rope_theta") or stated.get("rope_scaling")):
            return one_rope_table(stated)
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(message, name=name, obj=self)

    def to_dict(self) -> dict[str, Any]:
        return {
            key: value.to_dict() if isinstance(value, HfConfig) else value
            for key, value in vars(self).items()
        }

    def get_text_config(self) -> HfConfig:
        """The part that describes the language model: ``text_config`` if there is one."""
        return getattr(self, "text_config", self)

    def update(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            setattr(self, key, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HfConfig) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment] # it can be changed

    def __repr__(self) -> str:
        return f"HfConfig({self.to_dict()!r})"


def one_rope_table(stated: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_type``, ``rope_theta`` and the scaling's keys, of ``rope_scaling`` beside
    ``rope_theta``."""
    table = {"rope_type": "default", "rope_theta": stated.get("rope_theta") or 10000.0}
    scaling = dict(stated.get("rope_scaling") or {})
    if "type" in scaling:
        scaling.setdefault("rope_type", scaling.pop("type"))
    if stated.get("partial_rotary_factor") is not None:
        table["partial_rotary_factor"] = stated["partial_rotary_factor"]
    return table | scaling


@dataclass
class ModelConfig:
    model: str
    path: str
    format: str
    tokenizer: str
    served_model_name: str
    hf_config: HfConfig
    dtype_name: str
    max_model_len: int
    vocab_size: int
    seed: int
    enforce_eager: bool
    architectures: list[str]
    max_logprobs: int
    quantization: str | None = None
    logits_processors: list[str] = field(default_factory=list)
    io_processor_plugin: str | None = None
    runner_type: str = "generate"
    convert_type: str = "none"
    revision: str | None = None
    """``None``: ``path`` is what was found for it."""
    code_revision: str | None = None
    tokenizer_revision: str | None = None
    tokenizer_mode: str = "auto"
    trust_remote_code: bool = False
    """A checkpoint's code is never run."""
    skip_tokenizer_init: bool = False
    disable_sliding_window: bool = False
    enable_prompt_embeds: bool = False
    logprobs_mode: str = "raw_logprobs"
    model_impl: str = "vllm"
    config_format: str = "auto"
    pooler_config: Any = None
    multimodal_config: Any = None
    _dtype: Any = field(default=None, repr=False)
    _made_from: config.ModelConfig | None = field(default=None, repr=False)

    @classmethod
    def from_struct(cls, model: config.ModelConfig, *, enforce_eager: bool) -> ModelConfig:
        """Lists and dicts are copies, so that changing it changes nothing else."""
        return cls(
            model=model.model,
            path=model.path,
            format=model.format,
            tokenizer=model.tokenizer,
            served_model_name=model.served_model_names[0],
            hf_config=HfConfig(copy.deepcopy(model.hf_config)),
            dtype_name=model.dtype,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            seed=model.seed,
            enforce_eager=enforce_eager,
            architectures=list(model.architectures),
            max_logprobs=model.max_logprobs,
            quantization=model.quantization,
            logits_processors=list(model.logits_processors),
            io_processor_plugin=model.io_processor_plugin,
            _made_from=model,
        )

    @property
    def has_struct(self) -> bool:
        """Whether it was made from one, and not by hand."""
        return self._made_from is not None

    @property
    def struct(self) -> config.ModelConfig:
        """What it was made from, without what was changed since."""
        assert self._made_from is not None, "made by hand"
        return self._made_from

    @property
    def hf_text_config(self) -> HfConfig:
        own = getattr(self.hf_config, "get_text_config", None)  # a plugin's class may lack it
        return self.hf_config if own is None else own()

    @property
    def dtype(self) -> torch.dtype:
        if self._dtype is None:
            import torch

            self._dtype = getattr(torch, self.dtype_name)
        return self._dtype  # type: ignore[no-any-return]

    @dtype.setter
    def dtype(self, value: torch.dtype) -> None:
        self._dtype = value
        self.dtype_name = str(value).removeprefix("torch.")

    @property
    def architecture(self) -> str:
        """The first one."""
        return self.architectures[0]

    @property
    def is_quantized(self) -> bool:
        return self.quantization is not None

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(getattr(self.hf_config, "is_encoder_decoder", False))

    @property
    def is_multimodal_model(self) -> bool:
        """Never: only text is served."""
        return self.multimodal_config is not None

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers keep a state in place of keys; no model here does."""
        return False

    @property
    def is_attention_free(self) -> bool:
        return False

    @property
    def has_inner_state(self) -> bool:
        return False

    @property
    def is_deepseek_mla(self) -> bool:
        """Whether keys are kept compressed, as the checkpoint says."""
        return getattr(self.hf_text_config, "kv_lora_rank", None) is not None

    @property
    def use_mla(self) -> bool:
        return self.is_deepseek_mla

    @property
    def is_moe(self) -> bool:
        return self.get_num_experts() > 0

    @property
    def uses_mrope(self) -> bool:
        rope = getattr(self.hf_text_config, "rope_scaling", None)
        return isinstance(rope, Mapping) and "mrope_section" in rope

    @property
    def attn_type(self) -> str:
        return "decoder"

    def using_transformers_backend(self) -> bool:
        """Never: models are the registry's."""
        return False

    def get_multimodal_config(self) -> Any:
        """
        Raises:
            ValueError: only text is served.
        """
        if self.multimodal_config is None:
            raise ValueError("the model is not multimodal: only text is served")
        return self.multimodal_config

    def get_num_experts(self) -> int:
        """0 where there are none."""
        names = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
        found = (getattr(self.hf_text_config, name, None) for name in names)
        return int(next((each for each in found if each), 0))

    def get_vocab_size(self) -> int:
        return self.vocab_size

    def get_hidden_size(self) -> int:
        return int(self.hf_text_config.hidden_size)

    def get_head_size(self) -> int:
        c = self.hf_text_config
        head_dim = getattr(c, "head_dim", None)
        return int(head_dim or c.hidden_size // c.num_attention_heads)

    def get_num_attention_heads(self, parallel_config: ParallelConfig) -> int:
        return int(self.hf_text_config.num_attention_heads) // parallel_config.tensor_parallel_size

    def get_total_num_kv_heads(self) -> int:
        c = self.hf_text_config
        return int(getattr(c, "num_key_value_heads", None) or c.num_attention_heads)

    def get_num_kv_heads(self, parallel_config: ParallelConfig) -> int:
        return max(1, self.get_total_num_kv_heads() // parallel_config.tensor_parallel_size)

    def get_num_layers(self, parallel_config: ParallelConfig) -> int:
        del parallel_config
        return int(self.hf_text_config.num_hidden_layers)

    def get_total_num_attention_heads(self) -> int:
        """Of all ranks together."""
        return int(getattr(self.hf_text_config, "num_attention_heads", 0))

    def get_total_num_hidden_layers(self) -> int:
        return int(self.hf_text_config.num_hidden_layers)

    def get_layers_start_end_indices(self, parallel_config: ParallelConfig) -> tuple[int, int]:
        """Every rank has all layers."""
        return 0, self.get_num_layers(parallel_config)

    def get_inputs_embeds_size(self) -> int:
        return self.get_hidden_size()

    def get_sliding_window(self) -> int | None:
        """Tokens that a layer sees, where the checkpoint says so for the model."""
        return getattr(self.hf_text_config, "sliding_window", None)

    def try_get_generation_config(self) -> dict[str, Any]:
        """The checkpoint's ``generation_config.json``, with the operator's changes."""
        return dict(self.struct.generation_config) if self.has_struct else {}

    def get_diff_sampling_param(self) -> dict[str, Any]:
        """What of it applies to requests that say nothing themselves."""
        from .model_choices import GENERATION_KEYS

        given = self.try_get_generation_config()
        return {name: given[name] for name in GENERATION_KEYS if given.get(name) is not None}
