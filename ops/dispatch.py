"""``OpSet``: what is built for each op of one model, chosen once, with the reason.

By which rule an override runs is ``op_rule``'s; a provider is chosen here. One that the operator
names must work; among the others the first that works is taken, and why those before it were not
is told.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hookserve.hookspecs import (
    Claim,
    OpOverride,
    OpProvider,
    PluginConflictError,
    PluginError,
    Registry,
    UnknownNameError,
)
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.current_host import describe_patch
from hookserve.hookspecs.errors import describe_error, did_you_mean
from hookserve.hookspecs.notify_loop import caught
from hookserve.hookspecs.op_names import FUNCTION_OPS, OP_CLASSES, registered_of
from hookserve.hookspecs.targets import import_target

from .context import get_tp_group
from .custom_op import CustomOp, Replaceable, check_replacement, find_op, names_of
from .op_function import OpFunction
from .op_rule import CALLED, METHODS, Decision, Override, decide, is_on_by_default, named
from .op_table import OpRow
from .paged_attention import AS_WRITTEN as ATTENTION_AS_WRITTEN

if TYPE_CHECKING:
    from .attention_backend import AttentionBackend

logger = logging.getLogger(__name__)

NOBODY = "hookserve"
TORCH = "torch"
"""The provider that every op has: its own ``forward_native``, or what its caller computes."""


@dataclass(slots=True)
class OpChoice:
    """What is built in the place of one registered class."""

    made: type[Replaceable]
    decision: Decision
    row: OpRow
    provided: Any = None
    passed_over: str | None = None
    """The patch that the operator was told of and wants passed over."""


class OpSet:
    """Args:
    overrides: the registry ``oot_op``.
    providers: the registry ``op_provider``.
    custom_ops: as ``check_list`` has passed it.
    platform: a key of ``op_rule.CALLED``.
    preferred: of each op the names of providers, of which the first that works is taken.
    config: what conditions of overrides are called with.
    """

    def __init__(
        self,
        overrides: Registry,
        providers: Registry,
        *,
        custom_ops: Sequence[str] = (),
        compiles: bool = False,
        platform: str = "cpu",
        preferred: Mapping[str, Sequence[str]] | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        config: Any = None,
    ) -> None:
        self.custom_ops = tuple(custom_ops)
        self.compiles = compiles
        self.platform = platform
        self.preferred = dict(preferred or {})
        self.device = device or torch.device("cpu")
        self.dtype = dtype
        self.config = config
        self._overrides, self._providers = overrides, providers
        self._choices: dict[type[Replaceable], OpChoice] = {}
        self._functions: dict[str | tuple[str, type], OpFunction] = {}
        self.backends: dict[type, tuple[str, str]] = {}
        """Of attention backends the name and the owner, for the table; the engine's to fill."""

    # -- what layers ask --------------------------------------------------------------------------

    def choice(self, op_class: type) -> OpChoice | None:
        """What is built for a class; ``None``: it is not registered, and stays what it is.

        Raises:
            PluginError: an override or a provider that must work does not.
            UnknownNameError: the operator names a provider that is not there.
            PluginConflictError: two plugins override the op by its two names.
        """
        held = self._choices.get(op_class)
        if held is None and Replaceable.op_classes.get(op_class.__name__) is op_class:
            held = self._choices[op_class] = self._choose(op_class)
        return held

    def method(self, op_class: type, *, enforce_enable: bool = False) -> tuple[str, Any]:
        """The method that an op calls, and what provides it, if that is ``forward_provided``. No
        provider stands in for a class that a plugin or a model has made of the op's."""
        choice = self._choice_of(op_class)
        if choice is not None and choice.provided is not None and choice.made is op_class:
            return "forward_provided", choice.provided
        if enforce_enable or self.is_enabled(op_class):
            return CALLED[self.platform][0], None
        return "forward_native", None

    def is_enabled(self, op_class: type) -> bool:
        """Whether an op of the class goes by platform; one that nobody registered has no name by
        which it could be switched."""
        choice = self._choice_of(op_class)
        if choice is None:
            return is_on_by_default(self.custom_ops, compiles=self.compiles)
        return choice.decision.enabled

    def function(self, op: str) -> OpFunction:
        """What computes an op that is no class; chosen where it is first asked for.

        Raises:
            PluginError, UnknownNameError: as ``choice``.
        """
        held = self._functions.get(op)
        if held is None:
            row = OpRow(op, "", TORCH, NOBODY, "nobody provides it")
            held = self._functions[op] = OpFunction(row, self._provide(row))
            logger.debug("op %s: %s of %s: %s", op, row.implementation, row.owner, row.reason)
        return held

    def attention_function(
        self, op: str, backend: type[AttentionBackend], obstacle: str | None
    ) -> OpFunction:
        """What computes an op of attention in the layers of a backend: a provider, or the backend.

        Args:
            obstacle: why no provider can take its place; ``None``: one can.

        Raises:
            PluginError, UnknownNameError: as ``choice``.
            ValueError: the operator names providers, and none can be used.
        """
        held = self._functions.get((op, backend))
        if held is None:
            row = OpRow(op, "", *self._names_of(backend), "the attention backend of the layers")
            wanted = [each for each in self.preferred.get(op, ()) if each != TORCH]
            if obstacle and wanted:
                asked = f"{op} ({', '.join(wanted)})"
                raise ValueError(f"--ir-op-priority names providers of {asked}, but {obstacle}")
            held = self._functions[op, backend] = OpFunction(row, None)
            if obstacle is None:
                held.provided = self._provide(row)
            elif any(_is_of(claim, op) for claim in self._providers.claims()):
                row.reason = f"{row.reason}; no provider is asked, since {obstacle}"
        return held

    def _names_of(self, backend: type[AttentionBackend]) -> tuple[str, str]:
        return self.backends.get(backend, (backend.get_name(), NOBODY))

    def _choice_of(self, op_class: type) -> OpChoice | None:
        found = (self.choice(each) for each in op_class.__mro__ if issubclass(each, Replaceable))
        return next((choice for choice in found if choice is not None), None)

    # -- what the engine asks ---------------------------------------------------------------------

    def rows(self) -> list[OpRow]:
        """The table: what was built, in the order in which it was first needed."""
        of_classes = [choice.row for choice in self._choices.values()]
        of_functions = [function.row for function in self._functions.values()]
        return of_classes + [row for row in of_functions if row.built]

    def loose_ends(self) -> Iterator[str]:
        """A line for each name and each override that nothing came of, once the model is built."""
        known = [name for op in Replaceable.op_classes.values() for name in names_of(op)]
        for name in named(self.custom_ops):
            if name not in known:
                yield f"custom_ops names '{name}', which is no op{did_you_mean(name, known)}"
        built = {name for op in self._choices for name in (op.__name__, op.name)}
        for claim in self._overrides.claims():
            if claim.name not in built:
                near = "" if find_op(claim.name) else did_you_mean(claim.name, known)
                yield f"{claim.owner} overrides {claim.name}, which the model does not build{near}"
        known += (*OP_CLASSES, *OP_CLASSES.values(), *FUNCTION_OPS)
        for claim in self._providers.claims():
            op = claim.declaration.op
            if op not in known:
                yield f"{claim.owner} provides {op}, which is no op{did_you_mean(op, known)}"

    def heed_late_patches(self, layers: Iterable[object]) -> None:
        """Let the layers of a model go by their own methods where those were patched after the
        layers were built."""
        late = {
            op_class: choice.decision.method
            for op_class, choice in self._choices.items()
            if self._heed_patch(op_class, choice)
        }
        for layer in layers:
            if isinstance(layer, CustomOp) and type(layer) in late:
                layer._method = late[type(layer)]
        patched = ATTENTION_AS_WRITTEN.replaced()
        if patched is None:
            return
        for key, function in self._functions.items():
            if isinstance(key, tuple) and function.row.op not in self.preferred:
                _let_go(function, *self._names_of(key[1]), describe_patch(patched))

    # -- choosing ---------------------------------------------------------------------------------

    def _choose(self, op_class: type[Replaceable]) -> OpChoice:
        names = names_of(op_class)
        claim = self._override_of(op_class)
        made = None if claim is None else self._replacement(claim, op_class)
        override = None
        if claim is not None and made is not None:
            override = Override(
                claim.owner,
                frozenset(name for name in METHODS if _differs(made, op_class, name)),
                is_dispatched=issubclass(made, CustomOp) and made.forward is CustomOp.forward,
            )
        decision = decide(
            names,
            self.custom_ops,
            platform=self.platform,
            compiles=self.compiles,
            override=override,
        )
        if decision.warning is not None and get_tp_group().rank == 0:  # all ranks decide the same
            logger.warning("%s", decision.warning)
        row = OpRow(names.registered, names.class_name, TORCH, NOBODY, decision.reason)
        if claim is None and not issubclass(op_class, CustomOp):
            row.reason = "nobody overrides it"
        choice = OpChoice(op_class, decision, row)
        if decision.overrides:
            assert claim is not None and made is not None, "it was decided about"
            claim.note_use()
            choice.made, row.implementation, row.owner = made, claim.target_text(), claim.owner
            if self._has_own_provider(row.op):
                logger.info(
                    "plain path for %s because %s overrides %s", row.op, row.owner, row.class_name
                )
        elif decision.enabled and issubclass(op_class, CustomOp):
            choice.provided = self._provide(row)
            self._heed_patch(op_class, choice)
        if decision.overrides or not decision.enabled:
            self._judge_useless_names(row)
        logger.debug("op %s: %s of %s: %s", names, row.implementation, row.owner, row.reason)
        return choice

    def _override_of(self, op_class: type[Replaceable]) -> Claim | None:
        """The claim that holds, under either name."""
        names = dict.fromkeys(names_of(op_class))
        claims = [claim for name in names if (claim := self._overrides.get(name)) is not None]
        if len(claims) > 1:
            raise PluginConflictError(
                f"{claims[0].owner} overrides {claims[0].name} and {claims[1].owner} overrides "
                f"{claims[1].name}, which is the same op; leave one out with --disable-plugins"
            )
        return claims[0] if claims and self._applies(claims[0]) else None

    def _applies(self, claim: Claim) -> bool:
        given = claim.declaration
        if not isinstance(given, OpOverride) or given.when is None:
            return True
        try:
            with enter(claim.plugin):
                return bool(import_target(given.when)(self.config))
        except caught() as error:
            said = f"the condition of oot_op '{claim.name}' raised {describe_error(error)}"
            raise PluginError(claim.owner, "run", said) from error

    def _replacement(self, claim: Claim, op_class: type[Replaceable]) -> type[Replaceable]:
        made = self._overrides.resolve(claim.name)
        try:
            check_replacement(op_class, made)
        except TypeError as error:
            raise PluginError(claim.owner, "register", str(error)) from error
        found: type[Replaceable] = made
        return found

    # -- providers --------------------------------------------------------------------------------

    def _provide(self, row: OpRow) -> Any:
        """What provides the op of the row, which is told of it; ``None``: torch."""
        op, chosen = row.op, None
        given = self._given(op)
        wanted = self.preferred.get(op)
        passed_over: list[str] = []
        tried = _in_order(op, given, wanted)
        for claim in tried:
            if claim is None:
                row.reason = "named by the operator"
                break
            chosen = self._try(claim, passed_over, must_work=bool(wanted))
            if chosen is not None:
                row.implementation, row.owner = claim.declaration.name, claim.owner
                row.reason = "named by the operator" if wanted else "the first that works"
                break
        else:
            if wanted:
                raise PluginError(
                    next(claim.owner for claim in tried if claim is not None),
                    "run",
                    f"no provider of {op} works that was asked for: {'; '.join(passed_over)}",
                )
        if passed_over:
            row.reason = f"{row.reason}; {'; '.join(passed_over)}"
        return chosen

    def _judge_useless_names(self, row: OpRow) -> None:
        """Tell of the providers that the operator names for an op that has none.

        Raises:
            UnknownNameError: one of them is not there.
        """
        wanted = self.preferred.get(row.op, ())
        _in_order(row.op, self._given(row.op), wanted)
        for name in wanted:
            if name != row.implementation:
                logger.warning(
                    "--ir-op-priority names '%s' of %s, which is not used: %s",
                    name,
                    row.op,
                    row.reason,
                )

    def _given(self, op: str) -> list[Claim]:
        return [claim for claim in self._providers.claims() if _is_of(claim, op)]

    def _heed_patch(self, op_class: type[Replaceable], choice: OpChoice) -> bool:
        """Have no provider pass over a patch of the op's own methods, unless the operator wants it
        to; whether the choice is another one now."""
        patched = None if choice.provided is None else op_class.as_written.replaced()
        if patched is None or patched == choice.passed_over:
            return False
        row, patch = choice.row, describe_patch(patched)
        if row.op in self.preferred:
            logger.warning(
                "%s, which '%s' passes over, as --ir-op-priority asks", patch, row.implementation
            )
            choice.passed_over = patched
            return False
        logger.info("plain path for %s because %s", row.op, patch)
        choice.provided = None
        row.implementation, row.owner, row.reason = TORCH, NOBODY, patch
        return True

    def _has_own_provider(self, op: str) -> bool:
        """Whether the project has something fast for the op here."""
        return any(
            self._takes(claim.declaration) is True
            for claim in self._providers.claims()
            if claim.plugin.is_builtin and _is_of(claim, op)
        )

    def _try(self, claim: Claim, passed_over: list[str], *, must_work: bool) -> Any:
        """What computes the op; ``None``: nothing does, and ``passed_over`` says why."""
        given = claim.declaration
        who = f"'{given.name}' of {claim.owner}"
        try:
            with enter(claim.plugin):
                takes = self._takes(given)
            if takes is not True:
                passed_over.append(f"{who}: {takes or f'does not take {self._kind()}'}")
                return None
            target = self._providers.resolve(claim.name)
            with enter(claim.plugin):
                return target() if inspect.isclass(target) else target
        except caught() as error:
            if must_work:
                said = f"provider '{given.name}' of {given.op}: {describe_error(error)}"
                raise PluginError(claim.owner, "run", said) from error
            passed_over.append(f"{who} failed: {describe_error(error)}")
            logger.warning("provider of %s is not used: %s", given.op, passed_over[-1])
            return None

    def _takes(self, given: OpProvider) -> Any:
        """``True``, or why not."""
        return given.supports is None or import_target(given.supports)(self.device, self.dtype)

    def _kind(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} on {self.device}"


def _let_go(function: OpFunction, backend: str, owner: str, why: str) -> None:
    """Have the layers' own backend compute it."""
    if function.provided is not None:
        row = function.row
        logger.info("plain path for %s because %s", row.op, why)
        function.provided = None
        row.implementation, row.owner, row.reason = backend, owner, why


def _is_of(claim: Claim, op: str) -> bool:
    return registered_of(claim.declaration.op) == op


def _in_order(
    op: str, given: Sequence[Claim], wanted: Sequence[str] | None
) -> Sequence[Claim | None]:
    """The providers in the order in which they are tried; ``None``: torch.

    Raises:
        UnknownNameError: one that is asked for is not there.
    """
    if wanted is None:
        return sorted(given, key=lambda claim: -claim.declaration.priority)
    found: dict[str, Claim | None] = {claim.declaration.name: claim for claim in given}
    found[TORCH] = None
    for name in wanted:
        if name not in found:
            raise UnknownNameError(
                f"nobody provides {op} as '{name}'{did_you_mean(name, list(found))}"
            )
    return [found[name] for name in wanted]


def _differs(made: type, replaced: type, name: str) -> bool:
    return getattr(made, name, None) is not getattr(replaced, name, None)
