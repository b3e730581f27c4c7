"""Which backend makes grammars, in front and in the engine, and how its code is called there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import PluginError, describe_error
from hookserve.hookspecs.notify_loop import caught

from .errors import InvalidRequestError, cut
from .plugin_class import PluginClass

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.grammar_types import GrammarSpec

    from .config import StructuredOutputsConfig
    from .structured_outputs import StructuredOutputsParams
    from .vllm_config import StructuredOutputsConfig as TreeConfig

KIND = "grammar_backend"
AUTO = "auto"
DEFAULT = "llguidance"
MAX_SENTENCE = 400
"""Characters of what a backend says to a client."""


class Backend(PluginClass):
    noun = "grammar backend"

    def call(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """What the backend's function returns.

        Args:
            what: is called, for the error.

        Raises:
            InvalidRequestError: its ``ValueError``, in its words.
            hookserve.hookspecs.PluginError: it raised anything else.
        """
        try:
            with enter(self.plugin):
                return function(*args)
        except caught() as error:
            if isinstance(error, ValueError):
                said = " ".join(str(error).split()) or type(error).__name__
                raise InvalidRequestError(cut(said, MAX_SENTENCE), code="invalid_value") from error
            said = f"{what} of {self.label} raised {describe_error(error)}"
            raise PluginError(self.owner, "run", said) from error


def find_backend(host: Host, name: str) -> Backend:
    """
    Args:
        name: a registered one, a class path, or ``"auto"``.

    Raises:
        hookserve.hookspecs.UnknownNameError: nobody registered it.
        hookserve.hookspecs.PluginError: it cannot be imported.
    """
    registry = host.registry(KIND)
    name = DEFAULT if name == AUTO else name
    cls = registry.resolve(name)
    claim = registry.get(name)
    return Backend(name, None if claim is None else claim.plugin, cls)


def spec_of(
    form: StructuredOutputsParams, config: StructuredOutputsConfig | TreeConfig
) -> GrammarSpec:
    """What the backend is given for a request's form on this server.

    Raises:
        SamplingParamsError: a text that is too long, too deep, or no JSON.
    """
    return form.spec(
        any_whitespace=not config.disable_any_whitespace,
        additional_properties=not config.disable_additional_properties,
    )
