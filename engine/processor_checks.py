"""``ProcessorChecks``: what logits processors say of a request's parameters before it is queued.

Whoever takes requests asks: the offline engines in their own thread, a server in others. Applying
processors is the workers'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import PluginError, describe_error
from hookserve.hookspecs.notify_loop import caught

from .config import EngineConfig
from .errors import InvalidRequestError, cut
from .processor_classes import SHAPES, ProcessorClass, find_processors
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

FIELD = "extra_args"


class ProcessorChecks:
    def __init__(self, found: Iterable[ProcessorClass] = ()) -> None:
        self._found = tuple(found)

    @classmethod
    def build(cls, host: Host, config: EngineConfig) -> ProcessorChecks:
        """Of all processors that there are; one that cannot be imported here puts its plugin out.

        Raises:
            RequiredPluginError: that plugin must work.
            ConfigError: it belongs to no plugin.
        """
        return cls(find_processors(host, config.model.logits_processors))

    def __bool__(self) -> bool:
        """Whether there is any processor, so that arguments may have a meaning."""
        return any(_is_in(each) for each in self._found)

    def askable(self) -> list[ProcessorClass]:
        """Those that have something to say."""
        return [each for each in self._found if _is_in(each) and _has_own_check(each.cls)]

    def check(self, params: SamplingParams) -> None:
        """Ask all of them, here and now; raises as ``ask``."""
        for each in self.askable():
            ask(each, params)


def ask(processor: ProcessorClass, params: SamplingParams, field: str = FIELD) -> None:
    """Ask one about a copy of the parameters.

    Args:
        field: what its caller calls ``extra_args``.

    Raises:
        InvalidRequestError: it refuses them.
        hookserve.hookspecs.PluginError: it raised anything else than a ``ValueError``.
    """
    try:
        with enter(processor.plugin):
            processor.cls.validate_params(params.clone())
    except caught() as error:
        if not isinstance(error, ValueError):
            said = f"validate_params of {processor.label} raised {describe_error(error)}"
            raise PluginError(processor.owner, "run", said) from error
        param = _param_of(error)
        if param is None or param == FIELD:
            param = field
        said = describe_error(error).partition(": ")[2] or type(error).__name__
        raise InvalidRequestError(
            f"{cut(param)}: {cut(said)}", param=cut(param), code="invalid_value"
        ) from error


def _param_of(error: ValueError) -> str | None:
    """The field that it names, if any."""
    for name in ("param", "parameter"):
        try:
            param = getattr(error, name, None)
        except caught():  # a plugin's exception may be anything
            continue
        if type(param) is str:
            return param
    return None


def _has_own_check(cls: type) -> bool:
    where = next(base for base in cls.__mro__ if "validate_params" in vars(base))
    return where not in SHAPES


def _is_in(processor: ProcessorClass) -> bool:
    return processor.plugin is None or processor.plugin.state == "active"
