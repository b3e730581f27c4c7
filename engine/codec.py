"""How a message becomes bytes and back, arrays and tensors included. Framing is ``channel``'s.

Arrays and tensors (values of ``collective_rpc``) travel as an extension of msgpack: type, shape,
bytes. Nothing is pickled; any other object is refused by its type. A tensor arrives as a tensor
where torch is already imported, else as ``TensorValue``: this file never imports torch itself.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

import msgspec

from .inspector_messages import InspectorMessage
from .messages import FromEngine, ToEngine
from .worker_messages import WorkerMessage

Message = ToEngine | FromEngine | WorkerMessage | InspectorMessage

_EXT_ARRAY = 1
_EXT_TENSOR = 2


class PackedArray(msgspec.Struct, frozen=True):
    """What travels of an array or a tensor."""

    dtype: str
    """Name without the module, such as ``"bfloat16"``; of an array numpy's own code."""
    shape: list[int]
    data: bytes
    """The elements in row-major order, in the machine's byte order."""


class TensorValue:
    """A tensor in a process that does not use torch. It may be sent on, and is a tensor again
    wherever torch is."""

    __slots__ = ("packed",)

    def __init__(self, packed: PackedArray) -> None:
        self.packed = packed

    @property
    def dtype(self) -> str:
        """Name without the module, such as ``"bfloat16"``."""
        return self.packed.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.packed.shape)

    @property
    def data(self) -> bytes:
        """The elements in row-major order, in the machine's byte order."""
        return self.packed.data

    def __repr__(self) -> str:
        return f"TensorValue(dtype={self.dtype!r}, shape={self.shape})"


def _pack_tensor(tensor: Any) -> PackedArray:
    import torch

    plain = tensor.detach().cpu().contiguous()
    return PackedArray(
        str(plain.dtype).removeprefix("torch."),
        list(plain.shape),
        plain.reshape(-1).view(torch.uint8).numpy().tobytes(),
    )


def _encode_hook(value: Any) -> Any:
    if isinstance(value, array):
        return value.tolist()
    if isinstance(value, TensorValue):
        return msgspec.msgpack.Ext(_EXT_TENSOR, msgspec.msgpack.encode(value.packed))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        packed = _pack_tensor(value)
        return msgspec.msgpack.Ext(_EXT_TENSOR, msgspec.msgpack.encode(packed))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        packed = PackedArray(value.dtype.str, list(value.shape), value.tobytes())
        return msgspec.msgpack.Ext(_EXT_ARRAY, msgspec.msgpack.encode(packed))
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    kind = type(value)
    raise TypeError(
        f"{kind.__module__}.{kind.__qualname__} cannot be sent between processes; send numbers, "
        "texts, bytes, lists, dicts, msgspec structs, arrays or tensors"
    )


def _decode_ext(code: int, data: memoryview) -> Any:
    if code not in (_EXT_ARRAY, _EXT_TENSOR):
        raise ValueError(f"unknown extension type {code} in a message")
    packed = msgspec.msgpack.decode(data, type=PackedArray)
    if code == _EXT_ARRAY:
        import numpy

        array = numpy.frombuffer(packed.data, dtype=numpy.dtype(packed.dtype))
        return array.reshape(packed.shape).copy()
    torch = sys.modules.get("torch")
    if torch is None:
        return TensorValue(packed)
    dtype = getattr(torch, packed.dtype)
    if not packed.data:
        return torch.empty(packed.shape, dtype=dtype)
    return torch.frombuffer(bytearray(packed.data), dtype=dtype).reshape(packed.shape)


def make_encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_encode_hook)


def make_decoder() -> msgspec.msgpack.Decoder[Message]:
    """Decodes every message, whichever way it travels; each carries its type's name as a tag."""
    return msgspec.msgpack.Decoder(Message, ext_hook=_decode_ext)
