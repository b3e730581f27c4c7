"""A platform that cannot do all that a request may ask for."""

from __future__ import annotations

from typing import ClassVar

from hookserve.engine.platform import Platform, PlatformEnum
from hookserve.engine.sampling_params import SamplingParams
from hookserve.hookspecs import hookimpl


class Limited(Platform):
    _enum = PlatformEnum.OOT
    device_name = "limited"
    device_type = "cpu"
    unsupported_params: ClassVar[tuple[str, ...]] = ("min_p", "logit_bias")


class Picky(Limited):
    """Says more, in its own words."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if sampling_params.n > 2:
            raise ValueError("two choices are enough")
        if sampling_params.seed == 13:
            raise ZeroDivisionError("the secret is 42")


class Misspelt(Limited):
    unsupported_params: ClassVar[tuple[str, ...]] = ("min_p", "minp")


class Offers:
    """A plugin.

    Args:
        cls: one of those above.
    """

    def __init__(self, cls: type[Platform] = Limited) -> None:
        self.path = f"limited_platform:{cls.__name__}"

    @hookimpl
    def platform(self) -> str:
        return self.path
