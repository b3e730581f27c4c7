"""``GrammarQuestions``: the grammar backend is asked about the form of an HTTP request's text, in
a thread and within the time of a front's hook. What its answer means is ``engine.grammar_checks``'.
"""

from __future__ import annotations

import asyncio

from hookserve.engine.errors import InvalidRequestError
from hookserve.engine.grammar_checks import GrammarChecks, validate
from hookserve.engine.sampling_rules import SamplingParamsError
from hookserve.engine.structured_outputs import StructuredOutputsParams
from hookserve.hookspecs.grammar_types import GrammarSpec
from hookserve.hookspecs.plugin_thread import Outcome, PluginThread

from .errors import ApiError, unavailable
from .thread_calls import NoAnswerError, answer_of
from .wire_form import form_refused


class GrammarQuestions:
    """One question at a time: who asks much delays those who ask too, and nobody else.

    Args:
        budget_s: for one request.
    """

    def __init__(self, checks: GrammarChecks, budget_s: float) -> None:
        self._checks = checks
        self._budget_s = budget_s
        self._thread = PluginThread("grammar questions")

    def end(self) -> None:
        """Let the thread go."""
        self._thread.end()

    async def ask(self, form: StructuredOutputsParams, path: str) -> None:
        """
        Args:
            path: what the client calls the form.

        Raises:
            InvalidRequestError: there is no such grammar, or it takes too long to say.
            ApiError: 400 for a text that is too long, too deep, or no JSON; 503 where the backend
                still looks at what others asked.
            PluginError: the backend failed.
        """
        try:
            # A schema may be as large as a body: its time would be missing to every open stream.
            spec = await asyncio.to_thread(self._checks.spec, form)
        except SamplingParamsError as error:
            raise form_refused(error, path) from None
        if not self._checks.knows(spec):
            (await self._validate(spec, path)).unwrap()
            self._checks.note(spec)

    async def _validate(self, spec: GrammarSpec, path: str) -> Outcome:
        def work() -> None:
            validate(self._checks.backend(), spec, path)

        try:
            return await answer_of(self._thread, work, self._budget_s)
        except NoAnswerError as error:
            if error.is_slow:
                raise InvalidRequestError(
                    f"{path}: its grammar takes more than {self._budget_s:g} s to make",
                    param=path,
                    code="invalid_value",
                ) from None
            raise _busy() from None


def _busy() -> ApiError:
    return unavailable("the grammars of other requests are still looked at", "grammars_busy")
