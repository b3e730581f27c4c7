"""Ops of which packages for vLLM register implementations, as providers of the server's own op.

vLLM has the norm as two ops, alone and with the residual; here both are the op ``rms_norm``. So
what one plugin registers for the two under one name is one provider.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from hookserve.hookspecs import HostError, declare, known_claims, running

F = TypeVar("F", bound=Callable[..., Any])

OP = "rms_norm"
"""The op of the server's that both are."""
OWN_NAMES = ("native", "unfused")


@dataclass(frozen=True)
class Impl:
    """One function of a plugin's.

    Args:
        supports_args: whether it takes these arguments; ``None``: all.
        overwrites: it may use the tensors that it is given for what it answers.
    """

    function: Callable[..., Any]
    supports_args: Callable[..., bool] | None = None
    overwrites: bool = False

    def __call__(self, *args: Any) -> Any:
        """The answer, or ``NotImplemented``."""
        if self.supports_args is not None and not self.supports_args(*args):
            return NotImplemented
        if self.overwrites:
            args = tuple(each.clone() if torch.is_tensor(each) else each for each in args)
        return self.function(*args)


class NormProvider:
    """The provider of ``rms_norm`` that a plugin's functions are, of one kind or both."""

    def __init__(self) -> None:
        self.kinds: dict[str, Impl] = {}

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
    ) -> Any:
        if residual is None:
            normalised = self._alone(x, weight, eps)
            return NotImplemented if normalised is NotImplemented else (normalised, None)
        if "fused_add_rms_norm" in self.kinds:
            both = self.kinds["fused_add_rms_norm"](x, residual, weight, eps)
            if both is not NotImplemented:
                return both
        total = x + residual
        normalised = self._alone(total, weight, eps)
        return NotImplemented if normalised is NotImplemented else (normalised, total)

    def _alone(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
        impl = self.kinds.get("rms_norm")
        return NotImplemented if impl is None else impl(x, weight, eps)


class IrOp:
    """An op that plugins may implement. What they registered is the host's to keep.

    Args:
        native: what it means; calling the op computes that.
        unkept: by plugin and name, shared by the ops that are one here: what a host registers again
            that comes after one without a use for it.
    """

    def __init__(
        self,
        native: Callable[..., Any],
        unkept: dict[tuple[str, str], NormProvider],
        allow_inplace: bool = False,
    ) -> None:
        self.name = native.__name__
        self._native = native
        self._unkept = unkept
        self._allow_inplace = allow_inplace

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._native(*args, **kwargs)

    @property
    def impls(self) -> dict[str, Callable[..., Any]]:
        """The functions that are registered so far, by provider, and what the op means; that alone
        where no plugins are loaded."""
        found = {"native": self._native}
        try:
            claims = known_claims("op_provider")
        except HostError:
            return found
        for claim in claims:
            op, _, provider = claim.name.partition(".")
            made = claim.target if op == OP else None
            if isinstance(made, NormProvider) and self.name in made.kinds:
                found.setdefault(provider, made.kinds[self.name].function)
        return found

    def supported_providers(self) -> list[str]:
        """Names of those that were registered as supported, and ``"native"``."""
        return list(self.impls)

    def register_impl(
        self,
        provider: str,
        *,
        supported: bool = True,
        supports_args: Callable[..., bool] | None = None,
        inplace: bool = False,
    ) -> Callable[[F], F]:
        """Decorator of a function with the parameters of the op, for the plugin whose code is
        running. It computes the op where it takes the arguments; ``--ir-op-priority`` has the last
        word.

        Args:
            supported: false registers nothing.
            supports_args: has the same parameters; answers whether the function takes them.
            inplace: the function may overwrite what it is given.

        Raises:
            ValueError: the name is taken, or the function has other parameters.
        """
        if provider in OWN_NAMES or not provider.isidentifier():
            raise ValueError(
                f"{provider!r} cannot provide {self.name}: expected a name of letters and digits, "
                f"and none of {', '.join(OWN_NAMES)}"
            )
        if inplace and not self._allow_inplace:
            raise ValueError(f"{self.name} answers in tensors of its own: inplace is not for it")

        def register(function: F) -> F:
            for given in (function, supports_args):
                self._check_parameters(provider, given)
            if supported:
                self._provide(provider, Impl(function, supports_args, inplace))
            return function

        return register

    def _check_parameters(self, provider: str, given: Callable[..., Any] | None) -> None:
        wanted = list(inspect.signature(self._native).parameters)
        if given is not None and list(inspect.signature(given).parameters) != wanted:
            raise ValueError(
                f"{given!r} of provider {provider!r} has other parameters than {self.name}: "
                f"expected {', '.join(wanted)}"
            )

    def _provide(self, provider: str, impl: Impl) -> None:
        plugin, name = running(), f"{OP}.{provider}"
        key = ("" if plugin is None else plugin.identity, name)
        made = _own_provider(name)
        if made is None:
            made = self._unkept.get(key) or NormProvider()
            declare("op_provider", name, made)
            if _own_provider(name) is None:
                self._unkept[key] = made
        held = made.kinds.setdefault(self.name, impl)
        if held.function is not impl.function:
            raise ValueError(f"{self.name} has a function of provider {provider!r} already")


def _own_provider(name: str) -> NormProvider | None:
    """What the plugin whose code is running has registered under the name."""
    for claim in known_claims("op_provider"):
        if claim.name == name and claim.plugin is running():
            made = claim.target
            return made if isinstance(made, NormProvider) else None
    return None


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + epsilon) * weight`` over the last dimension, in float32.

    Args:
        variance_size: the mean is that of so many of the first elements.
    """
    wide = x.float()
    part = wide if variance_size is None else wide[..., :variance_size]
    norm: torch.Tensor = torch.linalg.vector_norm(part, dim=-1, keepdim=True) / math.sqrt(
        part.shape[-1]
    )
    normalised = (wide * (norm.square() + epsilon).rsqrt()).to(x.dtype)
    return normalised if weight is None else normalised * weight


def fused_add_rms_norm(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of ``x + x_residual``, and that sum."""
    total = x + x_residual
    return rms_norm(total, weight, epsilon, variance_size), total


def make_norms() -> tuple[IrOp, IrOp]:
    """The norm alone, and with the residual."""
    unkept: dict[tuple[str, str], NormProvider] = {}
    return IrOp(rms_norm, unkept), IrOp(fused_add_rms_norm, unkept, allow_inplace=True)
