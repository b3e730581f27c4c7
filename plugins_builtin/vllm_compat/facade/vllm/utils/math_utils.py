"""Whole numbers rounded."""

from __future__ import annotations

__all__ = [
    "cdiv",
    "largest_power_of_2_divisor",
    "next_power_of_2",
    "prev_power_of_2",
    "round_down",
    "round_up",
]

__surface__ = dict.fromkeys(__all__, "live: plugins call it")


def cdiv(a: int, b: int) -> int:
    """Quotient, rounded up."""
    return -(a // -b)


def next_power_of_2(n: int) -> int:
    """The least that is not less."""
    return 1 if n < 1 else 1 << (n - 1).bit_length()


def prev_power_of_2(n: int) -> int:
    """The largest that is not more; 0 for less than 1."""
    return 0 if n < 1 else 1 << (n.bit_length() - 1)


def largest_power_of_2_divisor(n: int) -> int:
    return n & -n


def round_up(x: int, y: int) -> int:
    """To a multiple of ``y``."""
    return cdiv(x, y) * y


def round_down(x: int, y: int) -> int:
    """To a multiple of ``y``."""
    return x // y * y
