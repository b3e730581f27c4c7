"""``ProcessorChecks``: what logits processors and the platform say of a request's parameters before
it is queued.

Whoever takes requests asks: the offline engines in their own thread, a server in others. Applying
processors is the workers'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import PluginError, describe_error, did_you_mean
from hookserve.hookspecs.notify_loop import caught

from .config import EngineConfig
from .errors import InvalidRequestError, cut
from .platform import Platform
from .platform_calls import import_platform
from .plugin_class import PluginClass
from .processor_classes import SHAPES, ProcessorClass, find_processors
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from hookserve.hookspecs import Host

FIELD = "extra_args"


class PlatformClass(PluginClass):
    """The platform of this process, as one that is asked."""

    noun = "platform"

    def check(self, params: SamplingParams) -> None:
        """As ``Platform.validate_params``."""
        self.cls.refuse_unsupported(params)
        self.cls.validate_params(params)


Asked = ProcessorClass | PlatformClass


class ProcessorChecks:
    """
    Args:
        found: all processors that there are.
        platform: ``None``: it has nothing to say.
    """

    def __init__(
        self, found: Iterable[ProcessorClass] = (), platform: PlatformClass | None = None
    ) -> None:
        self._found = tuple(found)
        self._platform = platform

    @classmethod
    def build(cls, host: Host, config: EngineConfig) -> ProcessorChecks:
        """Of all processors that there are; one that cannot be imported here puts its plugin out.

        Raises:
            RequiredPluginError: that plugin must work.
            ConfigError: it belongs to no plugin.
        """
        return cls(find_processors(host, config.model.logits_processors), _find_platform(host))

    def __bool__(self) -> bool:
        """Whether there is any processor, so that arguments may have a meaning."""
        return any(_is_in(each) for each in self._found)

    def askable(self) -> list[Asked]:
        """Those that have something to say."""
        found: list[Asked] = [] if self._platform is None else [self._platform]
        found += [each for each in self._found if _is_in(each) and _has_own_check(each.cls)]
        return found

    def check(self, params: SamplingParams) -> None:
        """Ask all of them, here and now; raises as ``ask``."""
        for each in self.askable():
            ask(each, params)


def _find_platform(host: Host) -> PlatformClass | None:
    claim = host.platform()
    cls = type(import_platform(claim, host))
    _check_list(claim.plugin.identity, cls)
    is_silent = not cls.unsupported_params and _holder(cls) is Platform
    return None if is_silent else PlatformClass(claim.name, claim.plugin, cls)


def _check_list(owner: str, cls: type[Platform]) -> None:
    fields = SamplingParams.__struct_fields__
    for name in cls.unsupported_params:
        if name not in fields:
            said = f"{cls.__qualname__}.unsupported_params names {name!r}, which is no field of a "
            said += f"request's SamplingParams{did_you_mean(str(name), fields)}"
            raise PluginError(owner, "register", said)


def ask(processor: Asked, params: SamplingParams, field: str = FIELD) -> None:
    """Ask one about a copy of the parameters, unless they have a schema that is too deep for one:
    that is refused where its grammar is looked at, and is no fault of who looks at it here.

    Args:
        field: what its caller calls ``extra_args``.

    Raises:
        InvalidRequestError: it refuses them.
        hookserve.hookspecs.PluginError: it raised anything else than a ``ValueError``.
    """
    form = params.structured_outputs
    if form is not None and form.is_too_deep:
        return
    try:
        with enter(processor.plugin):
            processor.check(params.clone())
    except caught() as error:
        if not isinstance(error, ValueError):
            said = f"validate_params of {processor.label} raised {describe_error(error)}"
            raise PluginError(processor.owner, "run", said) from error
        param = _param_of(error)
        if param == FIELD or (param is None and isinstance(processor, ProcessorClass)):
            param = field
        said = cut(describe_error(error).partition(": ")[2] or type(error).__name__)
        if param is not None:
            param = cut(param)
            said = f"{param}: {said}"
        raise InvalidRequestError(said, param=param, code="invalid_value") from error


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
    return _holder(cls) not in SHAPES


def _holder(cls: type) -> type:
    return next(base for base in cls.__mro__ if "validate_params" in vars(base))


def _is_in(processor: ProcessorClass) -> bool:
    return processor.plugin is None or processor.plugin.state == "active"
