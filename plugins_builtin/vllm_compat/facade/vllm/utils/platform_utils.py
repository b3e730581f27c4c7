"""What this process has of the device, asked without starting it."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["cuda_is_initialized", "is_pin_memory_available", "is_uva_available"]

__surface__ = dict.fromkeys(__all__, "live: plugins call it")


def cuda_is_initialized() -> bool:
    torch: Any = sys.modules.get("torch")  # who has not imported it has not started a device
    return torch is not None and bool(torch.cuda.is_initialized())


def is_pin_memory_available() -> bool:
    """Whether memory of the host can be pinned for copies to a device."""
    import torch

    return bool(torch.cuda.is_available())


def is_uva_available() -> bool:
    return is_pin_memory_available()
