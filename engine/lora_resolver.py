"""``LoRAResolver``: finds the adapter that a request names, and ``LoRARequest``, what it finds.

The contract of the hook ``lora_resolver``. Nothing asks a resolver so far: there are no adapters.
"""

from __future__ import annotations

import abc

import msgspec


class LoRARequest(msgspec.Struct, omit_defaults=True):
    """An adapter. Names are the ecosystem's (vLLM's); two of one name are one.

    Raises:
        ValueError: an id below 1, or no path.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}; expected 1 or more")
        if not self.lora_path:
            raise ValueError(f"lora_path of {self.lora_name!r} is empty; expected a folder")

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


class LoRAResolver(abc.ABC):
    @abc.abstractmethod
    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """The adapter of a name that a client gave, which may be anything; ``None``: it is not
        known here."""
