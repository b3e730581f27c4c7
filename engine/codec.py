"""How a message becomes bytes and back, arrays and tensors included. Framing is ``channel``'s.

Arrays and tensors (values of ``collective_rpc``) travel as an extension of msgpack: type, shape,
bytes. Nothing is pickled; any other object is refused by its type. A tensor arrives as a tensor
where torch is already imported, else as ``TensorValue``: this file never imports torch itself.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from .messages import FromEngine, ToEngine

Message = ToEngine | FromEngine

_EXT_ARRAY = 1
_EXT_TENSOR = 2


class TensorValue(msgspec.Struct, frozen=True):
    """A tensor in a process that does not use torch."""

    dtype: str
    """Name without the module, such as ``"bfloat16"``."""
    shape: list[int]
    data: bytes
    """The elements in row-major order, in the machine's byte order."""


def _encode_tensor(tensor: Any) -> msgspec.msgpack.Ext:
    import torch

    plain = tensor.detach().cpu().contiguous()
    value = TensorValue(
        str(plain.dtype).removeprefix("torch."),
        list(plain.shape),
        plain.reshape(-1).view(torch.uint8).numpy().tobytes(),
    )
    return msgspec.msgpack.Ext(_EXT_TENSOR, msgspec.msgpack.encode(value))


def _encode_hook(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _encode_tensor(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
        packed = TensorValue(value.dtype.str, list(value.shape), value.tobytes())
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
    packed = msgspec.msgpack.decode(data, type=TensorValue)
    if code == _EXT_ARRAY:
        import numpy

        array = numpy.frombuffer(packed.data, dtype=numpy.dtype(packed.dtype))
        return array.reshape(packed.shape).copy()
    torch = sys.modules.get("torch")
    if torch is None:
        return packed
    dtype = getattr(torch, packed.dtype)
    if not packed.data:
        return torch.empty(packed.shape, dtype=dtype)
    return torch.frombuffer(bytearray(packed.data), dtype=dtype).reshape(packed.shape)


def make_encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_encode_hook)


def make_decoder() -> msgspec.msgpack.Decoder[Message]:
    """Decodes every message, whichever way it travels; each carries its type's name as a tag."""
    return msgspec.msgpack.Decoder(Message, ext_hook=_decode_ext)
