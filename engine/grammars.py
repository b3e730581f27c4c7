"""``Grammars``: the requests of one engine whose text must have a form.

Such a request waits here for its grammar, and only then meets the scheduler. From then on it has a
matcher, which follows its tokens whatever the scheduler does with the request: chunks, preemption
and slots are no concern of it. Before each step the matchers say which tokens may come next; the
sampler holds to it. Making grammars is ``grammar_compiler``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from hookserve.hookspecs.errors import PluginError
from hookserve.hookspecs.grammar_types import GrammarSpec

from .errors import InvalidRequestError
from .grammar_backends import Backend, spec_of
from .grammar_compiler import GrammarCompiler, GrammarFailure
from .messages import AddRequest, EngineCoreOutput
from .sampling_rules import SamplingParamsError
from .step import GrammarOutput, SchedulerOutput

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.grammar_types import Grammar, GrammarMatcher

    from .vllm_config import VllmConfig

Mask = np.ndarray[Any, np.dtype[np.int32]]

STEP_SHARE, LATE_SHARE = 0.25, 0.01
"""Of the time that one row may take: what all rows of a step have together before some fail, and
what each of the others has then."""


class GrammarReady(NamedTuple):
    """A request that waits no longer."""

    message: AddRequest
    refusal: EngineCoreOutput | None
    """``None``: its grammar is there, and the scheduler may have it."""


class _Followed:
    """A request with its place in its grammar."""

    __slots__ = (
        "backend", "begins_behind", "end_ids", "failure", "grammar", "matcher", "num_known"
    )  # fmt: skip

    def __init__(
        self, message: AddRequest, grammar: Grammar, matcher: GrammarMatcher, backend: Backend
    ) -> None:
        self.grammar = grammar
        self.matcher = matcher
        self.backend = backend
        params = message.params
        self.end_ids = [] if params.ignore_eos else list(params.eos_token_ids)
        self.begins_behind = params.form_begins_behind
        """Whatever comes before this token is free, but for an end; ``None``: it has come."""
        self.num_known = len(message.prompt_token_ids)
        """Tokens of prompt and output."""
        self.failure: GrammarFailure | None = None
        """Why the request ends with the step that is under way."""

    def fill(self, mask: Mask, budget_s: float) -> float:
        """Write which tokens may come next; none, where the matcher fails or takes too long.

        Args:
            mask: [words] zeros.

        Returns: seconds that it took.
        """
        if self.begins_behind is not None:
            mask[:] = -1
            for token_id in self.end_ids:  # a text that ended here would not have its form
                mask.view(np.uint32)[token_id // 32] &= ~np.uint32(1 << token_id % 32)
            return 0.0
        started = perf_counter()
        try:
            self.backend.call("fill_mask", self.matcher.fill_mask, mask)
            if self.end_ids and self.backend.call("can_end", self.matcher.can_end):
                for token_id in self.end_ids:
                    mask.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
        except (InvalidRequestError, PluginError) as error:
            mask[:] = 0
            self.failure = _failure(error)
        elapsed_s = perf_counter() - started
        if elapsed_s > budget_s:
            mask[:] = 0
            self.failure = GrammarFailure(
                f"The {self.backend.label} took {elapsed_s:.2g} s for one token; it has "
                f"{budget_s:g} s.",
                False,
            )
        return elapsed_s

    def take(self, token_ids: Iterable[int]) -> bool:
        """Go on by these tokens; whether nothing may follow them."""
        try:
            for token_id in token_ids:
                self.num_known += 1
                if self.begins_behind is not None:
                    if token_id == self.begins_behind:
                        self.begins_behind = None
                    continue
                if not self.backend.call("accept", self.matcher.accept, token_id):
                    self.failure = GrammarFailure(
                        f"Token {token_id} was chosen, which the form of the text does not allow: "
                        "a plugin changed what may be chosen.",
                        False,
                    )
                    return False
            if self.begins_behind is not None:
                return False
            return bool(self.backend.call("is_finished", self.matcher.is_finished))
        except (InvalidRequestError, PluginError) as error:
            self.failure = _failure(error)
            return False


class Grammars:
    """To be used from the engine's thread.

    Attributes:
        waiting: requests by id that wait for their grammar, in the order of their arrival.
        followed: requests by id that have a matcher.
    """

    def __init__(self, vllm_config: VllmConfig, host: Host) -> None:
        self.waiting: dict[str, tuple[AddRequest, GrammarSpec]] = {}
        self.followed: dict[str, _Followed] = {}
        self._vllm_config = vllm_config
        self._host = host
        self._budget_s = host.settings.step_hook_timeout_s
        self._num_words = -(-vllm_config.model_config.vocab_size // 32)
        self._compiler: GrammarCompiler | None = None

    # -- requests come and go -------------------------------------------------------------------

    def add(self, message: AddRequest) -> GrammarReady | None:
        """Take a request in whose parameters have a form; ``None``: it waits."""
        form = message.params.structured_outputs
        assert form is not None, "others have no grammar"
        try:
            spec = spec_of(form, self._vllm_config.structured_outputs_config)
        except SamplingParamsError as error:
            return GrammarReady(message, _refusal(message, GrammarFailure(f"{error}.", True)))
        # Who waits for the same is first: what is made may be for once alone.
        grammar = None if self._is_awaited(spec) else self._grammar(spec)
        if grammar is None:
            self.waiting[message.request_id] = message, spec
            return None
        return self._follow(message, grammar)

    def take_ready(self) -> list[GrammarReady]:
        """Those that wait no longer, in the order of their arrival."""
        if self._compiler is not None:
            self._compiler.clear_fd()
        ready = []
        found: dict[GrammarSpec, Grammar | GrammarFailure | None] = {}
        """Whoever waits for the same gets the same: a failure, or a grammar that is too large to be
        kept, would be made again."""
        for request_id, (message, spec) in list(self.waiting.items()):
            if spec not in found:
                found[spec] = self._grammar(spec)
            grammar = found[spec]
            if grammar is None:
                continue
            del self.waiting[request_id]
            ready.append(self._follow(message, grammar))
        return ready

    def _grammar(self, spec: GrammarSpec) -> Grammar | GrammarFailure | None:
        if self._compiler is None:
            self._compiler = GrammarCompiler(self._vllm_config, self._host)
        return self._compiler.get(spec)

    def _follow(self, message: AddRequest, grammar: Grammar | GrammarFailure) -> GrammarReady:
        if isinstance(grammar, GrammarFailure):
            return GrammarReady(message, _refusal(message, grammar))
        assert self._compiler is not None, "it made the grammar"
        backend = self._compiler.backend
        try:
            matcher = backend.call("matcher", grammar.matcher)
        except (InvalidRequestError, PluginError) as error:
            return GrammarReady(message, _refusal(message, _failure(error)))
        self.followed[message.request_id] = _Followed(message, grammar, matcher, backend)
        return GrammarReady(message, None)

    def forget(self, request_ids: str | Iterable[str]) -> None:
        """Requests have ended; ids that are not known are passed over."""
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            self.followed.pop(request_id, None)
            waited = self.waiting.pop(request_id, None)
            if waited is None or self._compiler is None:
                continue
            spec = waited[1]
            if not self._is_awaited(spec):
                self._compiler.drop(spec)

    def _is_awaited(self, spec: GrammarSpec) -> bool:
        """Whether a request waits for its grammar."""
        return any(spec == other for _, other in self.waiting.values())

    # -- waiting --------------------------------------------------------------------------------

    def watched_fds(self) -> list[int]:
        """Descriptors that become readable when ``take_ready`` has something to give."""
        return [self._compiler.fd] if self.waiting and self._compiler is not None else []

    def timeout_s(self) -> float | None:
        """Until somebody has waited long enough; ``None``: nobody waits."""
        return self._compiler.timeout_s() if self.waiting and self._compiler is not None else None

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()
            self._compiler = None

    # -- steps ----------------------------------------------------------------------------------

    def masks(self, scheduled: SchedulerOutput) -> GrammarOutput | None:
        """What may be sampled in the step, for the requests with a form that come to sampling."""
        computed = {each.req_id: each.num_computed_tokens for each in scheduled.scheduled_new_reqs}
        cached = scheduled.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        ids = [
            request_id
            for request_id, count in scheduled.num_scheduled_tokens.items()
            if (followed := self.followed.get(request_id)) is not None
            and computed[request_id] + count == followed.num_known
        ]
        if not ids:
            return None
        bitmask = np.zeros((len(ids), self._num_words), dtype=np.int32)
        self._fill([self.followed[request_id] for request_id in ids], bitmask)
        return GrammarOutput(ids, bitmask)

    def _fill(self, rows: Sequence[_Followed], bitmask: Mask) -> None:
        """Fill a row for each. The step waits for all of them, so they have a time together. When
        it has passed, the grammar that took the most has no row more, and others have little."""
        spent_s: dict[int, float] = {}
        left_s = STEP_SHARE * self._budget_s
        for mask, followed in zip(bitmask, rows, strict=True):
            key = id(followed.grammar)
            if left_s <= 0 and key in spent_s and spent_s[key] == max(spent_s.values()):
                followed.failure = GrammarFailure(
                    f"The {followed.backend.label} took {spent_s[key]:.2g} s for one token of "
                    "other sequences with this grammar; ask for fewer at once.",
                    False,
                )
                continue
            took_s = followed.fill(mask, self._budget_s * (LATE_SHARE if left_s <= 0 else 1.0))
            spent_s[key] = spent_s.get(key, 0.0) + took_s
            left_s -= took_s

    def follow(self, outputs: Sequence[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """Take in what the step brought.

        Returns: for each request that its form ends here: the output that ends it, in the place of
        the step's.
        """
        ended = []
        for output in outputs:
            followed = self.followed.get(output.request_id)
            if followed is None:
                continue
            # A text may be whole with the last token that it could have.
            if output.finish_reason in (None, "length") and followed.take(output.new_token_ids):
                ended.append(msgspec.structs.replace(output, finish_reason="stop"))
            if followed.failure is not None and output.finish_reason in (None, "error"):
                ended.append(_failed(output.request_id, followed.failure))
            if output.finish_reason is not None:
                del self.followed[output.request_id]
        return ended


def _failure(error: InvalidRequestError | PluginError) -> GrammarFailure:
    if isinstance(error, PluginError):
        return GrammarFailure(f"The grammar backend of plugin {error.identity} failed.", False)
    return GrammarFailure(f"The grammar of this request: {error.message}.", True)


def _refusal(message: AddRequest, failure: GrammarFailure) -> EngineCoreOutput:
    assert message.params.structured_outputs is not None, "it has a form"
    sentence = f"{message.params.structured_outputs.path}: {failure.sentence}"
    return _failed(message.request_id, GrammarFailure(sentence, failure.is_refusal))


def _failed(request_id: str, failure: GrammarFailure) -> EngineCoreOutput:
    return EngineCoreOutput(
        request_id,
        finish_reason="error",
        error=failure.sentence,
        is_refusal=failure.is_refusal,
    )
