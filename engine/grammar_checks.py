"""``GrammarChecks``: what the grammar backend says of a request's form before it is queued.

Whoever takes requests asks: the offline engines in their own thread, a server in another. Making
grammars is ``grammar_compiler``'s.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from .config import EngineConfig
from .errors import InvalidRequestError
from .grammar_backends import AUTO, Backend, find_backend, spec_of
from .structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.grammar_types import GrammarSpec

MAX_KNOWN_BYTES = 2**22
"""Of the texts of specs that are known to be right."""


class GrammarChecks:
    """
    Raises:
        hookserve.hookspecs.UnknownNameError: nobody registered the backend that is configured.
        hookserve.hookspecs.PluginError: it cannot be imported.
    """

    def __init__(self, host: Host, config: EngineConfig) -> None:
        self._host = host
        self._config = config.structured_outputs
        self._known: OrderedDict[GrammarSpec, int] = OrderedDict()
        self._known_bytes = 0
        if self._config.backend != AUTO:
            self.backend()

    def backend(self) -> Backend:
        """As ``find_backend`` raises."""
        return find_backend(self._host, self._config.backend)

    def check(self, form: StructuredOutputsParams) -> None:
        """Ask here and now.

        Raises:
            SamplingParamsError, InvalidRequestError: there is no such grammar.
            hookserve.hookspecs.PluginError: the backend failed.
        """
        spec = self.spec(form)
        if not self.knows(spec):
            validate(self.backend(), spec, form.path)
            self.note(spec)

    def spec(self, form: StructuredOutputsParams) -> GrammarSpec:
        """What the backend is asked about. Takes longer the longer the form is.

        Raises:
            SamplingParamsError: a text that is too long, too deep, or no JSON.
        """
        return spec_of(form, self._config)

    def knows(self, spec: GrammarSpec) -> bool:
        """Whether the backend was asked lately, and had nothing against it."""
        if spec not in self._known:
            return False
        self._known.move_to_end(spec)
        return True

    def note(self, spec: GrammarSpec) -> None:
        """The backend has nothing against it."""
        if spec not in self._known:
            self._known[spec] = len(spec.text) + 256
            self._known_bytes += self._known[spec]
        while self._known_bytes > MAX_KNOWN_BYTES:
            self._known_bytes -= self._known.popitem(last=False)[1]


def validate(backend: Backend, spec: GrammarSpec, path: str) -> None:
    """
    Args:
        path: what the caller calls the form's field.

    Raises:
        InvalidRequestError: the backend refuses it.
        hookserve.hookspecs.PluginError: the backend failed.
    """
    try:
        backend.call("validate", backend.cls.validate, spec)
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"{path}: {error.message}", param=path, code="invalid_value"
        ) from error
