"""``CpuKernels``: the functions of ``cpu_*.c`` over torch tensors, each beside a torch twin.

The layers own the twins (``layernorm``, ``activation``, ``rotary_embedding``,
``paged_attention``) and take a kernel where its ``takes_`` function says yes. How the files become
a library is ``c_compiler``'s; whether kernels are used at all the engine decides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from .c_compiler import load_library
from .context import AttentionMetadata

SOURCE = Path(__file__).with_name("cpu_kernels.c")
MORE_SOURCES = tuple(
    SOURCE.with_name(name) for name in ("cpu_linear.c", "cpu_prefill.c", "cpu_vectors.h")
)
LANES = 16
MAX_HEAD_SIZE = 256
SPLIT = 256
"""Positions that are attended to in one piece; the C file's constant of that name."""

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Decode(ctypes.Structure):
    """The C file's struct of that name."""

    _fields_ = (
        *((name, _POINTER) for name in ("query", "cache", "tables", "lengths", "scratch", "out")),
        *((name, _INT) for name in ("sequences", "kv_heads", "group", "size", "block_size")),
        *((name, _INT) for name in ("table_stride", "query_stride", "parts", "window")),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
    )


class _Prefill(ctypes.Structure):
    """``cpu_prefill.c``'s struct of that name."""

    _fields_ = (
        *((name, _POINTER) for name in ("query", "cache", "table", "out")),
        *((name, _INT) for name in ("tokens", "length", "kv_heads", "group", "size")),
        *((name, _INT) for name in ("block_size", "query_stride", "window")),
        ("scale", _FLOAT),
        ("cap", _FLOAT),
    )


_SIGNATURES = {
    "rms_norm": (*[_POINTER] * 5, _FLOAT, _INT, _INT),
    "silu_and_mul": (_POINTER, _POINTER, _INT, _INT),
    "rotate": (_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT, _INT, _INT),
    "write_cache": (_POINTER, _POINTER, _INT, _POINTER, *[_INT] * 5),
    "attend_decode": (ctypes.POINTER(_Decode),),
    "attend_prefill": (ctypes.POINTER(_Prefill),),
}


class CpuKernels:
    """Compiled once for the machine; all tensors are bfloat16 on the CPU.

    Args:
        cache_dir: where the library is kept.
        keys: what plugins add to its name.

    Raises:
        CompileError: there is no library, and why.
    """

    def __init__(self, cache_dir: Path, keys: Sequence[str] = ()) -> None:
        library = load_library(SOURCE, cache_dir, keys, more=MORE_SOURCES)
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self._library = library
        self._multiply = getattr(library, "multiply", None)
        if self._multiply is not None:
            self._multiply.argtypes, self._multiply.restype = (*[_POINTER] * 4, *[_INT] * 3), None

    # -- norms and activations ------------------------------------------------------------------

    @staticmethod
    def takes_norm(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor) -> bool:
        """Whether these are what ``rms_norm`` takes. What it is given it reads and writes without a
        further look: whatever else a model may hand to a layer is torch's."""
        width = x.shape[-1]
        return (
            width % LANES == 0
            and is_plain(x)
            and is_plain(weight)
            and weight.numel() == width
            and (residual is None or (residual.shape == x.shape and is_plain(residual)))
        )

    def rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The twin of ``RMSNorm.forward``: ``(normalised, x + residual)``.

        Args:
            x: ``[..., width]``, contiguous, as ``residual``; ``weight`` is ``[width]``.
        """
        normalised = torch.empty_like(x)
        total = None if residual is None else torch.empty_like(x)
        width = x.shape[-1]
        self._library.rms_norm(
            normalised.data_ptr(),
            total.data_ptr() if total is not None else None,
            x.data_ptr(),
            residual.data_ptr() if residual is not None else None,
            weight.data_ptr(),
            epsilon,
            x.numel() // width,
            width,
        )
        return normalised, total

    @staticmethod
    def takes_gated(x: torch.Tensor) -> bool:
        """Whether ``x: [..., 2 * width]`` is what ``silu_and_mul`` takes."""
        return x.shape[-1] % (2 * LANES) == 0 and is_plain(x)

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        """The twin of ``SiluAndMul.forward``."""
        width = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], width)
        rows = out.numel() // width
        self._library.silu_and_mul(out.data_ptr(), x.data_ptr(), rows, width)
        return out

    # -- products -------------------------------------------------------------------------------

    @property
    def can_multiply(self) -> bool:
        """Whether the processor multiplies bfloat16 itself: only then there is ``multiply``."""
        return self._multiply is not None

    def multiply(
        self, x: torch.Tensor, panels: int, columns: int, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """The twin of ``F.linear``; sums are float32, and those of a row the same whatever other
        rows there are.

        Args:
            x: ``[..., in]``, contiguous, as ``bias: [columns]``; ``in`` is a multiple of 2.
            panels: the address of ``[columns / 64, in / 2, 64, 2]`` numbers.

        Returns:
            ``[..., columns]``.
        """
        assert self._multiply is not None, "can_multiply was asked for"
        out = x.new_empty(*x.shape[:-1], columns)
        inputs = x.shape[-1]
        self._multiply(
            out.data_ptr(),
            x.data_ptr(),
            panels,
            None if bias is None else bias.data_ptr(),
            x.numel() // inputs,
            inputs,
            columns,
        )
        return out

    # -- rotation and the cache -----------------------------------------------------------------

    @staticmethod
    def takes_rotation(
        x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, head_size: int
    ) -> bool:
        """Whether these are what ``rotate`` takes."""
        return (
            head_size % (2 * LANES) == 0
            and x.dim() == 2
            and x.dtype is torch.bfloat16
            and x.is_cpu
            and x.stride(1) == 1
            and x.shape[1] % head_size == 0
            and cosines.shape == sines.shape == (x.shape[0], 1, head_size)
            and is_plain(cosines)
            and is_plain(sines)
        )

    def rotate(
        self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor, head_size: int
    ) -> torch.Tensor:
        """The twin of ``RotaryEmbedding._rotate``.

        Args:
            x: ``[tokens, heads * head_size]``; rows may be strided.
            cosines: ``[tokens, 1, head_size]``, contiguous, as the signed ``sines``.
        """
        out = torch.empty(x.shape, dtype=x.dtype)
        tokens, width = x.shape
        self._library.rotate(
            out.data_ptr(),
            x.data_ptr(),
            x.stride(0),
            cosines.data_ptr(),
            sines.data_ptr(),
            tokens,
            width // head_size,
            head_size,
        )
        return out

    def write_cache(
        self, cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """The twin of ``PagedAttentionImpl._write``.

        Args:
            cache: ``[blocks, 2, kv_heads, block_size, head_size]``, contiguous.
            key: ``[tokens, kv_heads, head_size]``, as ``value``.
            slots: ``[tokens]`` int64.

        Raises:
            ValueError: a model gave keys or values of another type, or not one for each token.
        """
        tokens, heads, size = key.shape
        slots = _whole(slots)
        for part, given in enumerate((key, value)):
            rows = _dense(given, (size, 1), "keys and values", len(slots))
            self._library.write_cache(
                cache.data_ptr(),
                rows.data_ptr(),
                rows.stride(0),
                slots.data_ptr(),
                part,
                tokens,
                heads,
                size,
                cache.shape[3],
            )

    # -- attention ------------------------------------------------------------------------------

    def attend_decode(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
        *,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> torch.Tensor:
        """Attention of the step's decoding sequences, straight from the paged cache.

        Scores, weights and sums are float32 throughout. A sequence's positions are cut at
        multiples of 256, so that its result does not depend on who else is in the batch.

        Args:
            query: ``[sequences, kv_heads, group, head_size]``.
            cache: as in ``write_cache``, the step's own tokens included.
            window: a token sees so many tokens at most, itself the last of them.
            soft_cap: scores become ``cap * tanh(score / cap)``.

        Returns:
            ``[sequences, kv_heads, group, head_size]``.

        Raises:
            ValueError: a model gave queries of another type, or not one for each sequence.
        """
        sequences, kv_heads, group, size = query.shape
        query = _dense(query, (group * size, size, 1), "queries", metadata.num_decode_reqs)
        tables, lengths, parts, scratch = _step_buffers(metadata, kv_heads * group * (size + 2))
        out = torch.empty(query.shape, dtype=query.dtype)
        call = _Decode(
            query.data_ptr(),
            cache.data_ptr(),
            tables.data_ptr(),
            lengths.data_ptr(),
            scratch.data_ptr(),
            out.data_ptr(),
            sequences,
            kv_heads,
            group,
            size,
            metadata.block_size,
            tables.shape[1],
            query.stride(0),
            parts,
            window or 0,
            scale,
            soft_cap or 0.0,
        )
        self._library.attend_decode(ctypes.byref(call))
        return out

    def attend_prefill(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        metadata: AttentionMetadata,
        index: int,
        output: torch.Tensor,
        scale: float,
        *,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> None:
        """Attention of the new tokens of request ``index``, straight from the paged cache.

        A token sees itself and what comes before it. Scores and sums are float32; weights are
        rounded for their product with the values.

        Args:
            query: ``[tokens, kv_heads, group, head_size]``, as ``output``, which is filled and
                has no gaps.
            cache: as in ``write_cache``, the step's own tokens included.
            scale: above 0.
            window, soft_cap: as in ``attend_decode``.

        Raises:
            ValueError: a model gave queries of another type, or not one for each token.
        """
        start, end = metadata.query_start_loc[index : index + 2]
        tokens, kv_heads, group, size = query.shape
        query = _dense(query, (group * size, size, 1), "queries", end - start)
        assert output.is_contiguous(), "it is the caller's own"
        table, length = _whole(metadata.block_tables[index]), metadata.seq_lens[index]
        call = _Prefill(
            query.data_ptr(),
            cache.data_ptr(),
            table.data_ptr(),
            output.data_ptr(),
            tokens,
            length,
            kv_heads,
            group,
            size,
            metadata.block_size,
            query.stride(0),
            window if window is not None and window < length else 0,
            scale,
            soft_cap or 0.0,
        )
        self._library.attend_prefill(ctypes.byref(call))


def is_plain(x: torch.Tensor) -> bool:
    """Whether memory is all that there is to the tensor: its numbers lie in a row."""
    return x.dtype is torch.bfloat16 and x.is_cpu and x.is_contiguous()


def _whole(numbers: torch.Tensor) -> torch.Tensor:
    """As int64, without gaps."""
    is_so = numbers.dtype is torch.int64 and numbers.is_contiguous()
    return numbers if is_so else numbers.to(torch.int64).contiguous()


def _dense(given: torch.Tensor, strides: tuple[int, ...], what: str, num_rows: int) -> torch.Tensor:
    """``given: [num_rows, ...]``, of which each row lies in one piece; the rows may be apart.

    Args:
        strides: of a row in one piece.

    Raises:
        ValueError: other numbers than the cache's, or other rows than the step's.
    """
    if given.dtype is not torch.bfloat16 or not given.is_cpu or given.shape[0] != num_rows:
        raise ValueError(
            f"attention got {what} in {given.dtype} on {given.device}, of {given.shape[0]} "
            f"tokens; expected torch.bfloat16 on cpu, and {num_rows} tokens"
        )
    return given if given.stride()[1:] == strides else given.contiguous()


class _StepBuffers(NamedTuple):
    """What the layers of a step share."""

    tables: torch.Tensor
    """``[sequences, max_blocks]`` int64, without gaps."""
    lengths: torch.Tensor
    """Of the decoding sequences, int64."""
    parts: int
    """Of the longest of them."""
    scratch: torch.Tensor


def _step_buffers(metadata: AttentionMetadata, row: int) -> _StepBuffers:
    """Of layers that need ``row`` numbers for each part of a sequence."""
    name = ("attend decode", row)
    held: _StepBuffers | None = metadata.cache.get(name)
    if held is None:
        lengths = metadata.seq_lens[: metadata.num_decode_reqs]
        parts = -(-max(lengths) // SPLIT)
        held = metadata.cache[name] = _StepBuffers(
            _whole(metadata.block_tables),
            torch.tensor(lengths),
            parts,
            torch.empty(len(lengths) * parts * row, dtype=torch.float32),
        )
    return held
