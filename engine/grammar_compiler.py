"""``GrammarCompiler``: grammars are made in a thread beside the engine's steps, and kept.

It knows specs and grammars; who waits for one, and what becomes of it, is ``grammars``'.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from hookserve.hookspecs.errors import HostError, PluginError
from hookserve.hookspecs.grammar_types import GrammarSpec, GrammarVocabulary
from hookserve.hookspecs.plugin_thread import Outcome, PluginThread

from .errors import HookserveError, InvalidRequestError
from .grammar_backends import Backend, find_backend

if TYPE_CHECKING:
    from hookserve.hookspecs import Host
    from hookserve.hookspecs.grammar_types import Grammar

    from .vllm_config import VllmConfig

logger = logging.getLogger(__name__)

MAX_CACHE_BYTES = 64 * 2**20
"""Of the grammars that are kept when nobody uses them any more."""
MAX_WAIT_S = 5.0
"""A request waits no longer for its grammar. Less than what the front takes for a stall."""


class GrammarFailure(NamedTuple):
    """Why there is no grammar."""

    sentence: str
    """For the client."""
    is_refusal: bool
    """It is what the request asked for, not what the engine met."""


class GrammarCompiler:
    """To be used from the engine's thread.

    Attributes:
        fd: becomes readable when a grammar is ready, or has failed.
    """

    def __init__(self, vllm_config: VllmConfig, host: Host) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._model = vllm_config.model_config
        self._name = vllm_config.structured_outputs_config.backend
        self._host = host
        self._fd_lock = threading.Lock()
        self._thread = PluginThread("grammar compiler")
        self._made: tuple[Backend, Any] | None = None
        """The backend and its instance, from the first grammar on."""
        self._under_way: dict[GrammarSpec, tuple[Future[Outcome], float]] = {}
        """Calls, and when each is given up."""
        self._kept: OrderedDict[GrammarSpec, tuple[Grammar, int]] = OrderedDict()
        self._kept_bytes = 0

    @property
    def backend(self) -> Backend:
        """Of the grammars that there are."""
        assert self._made is not None, "no grammar comes before its backend"
        return self._made[0]

    def get(self, spec: GrammarSpec) -> Grammar | GrammarFailure | None:
        """The grammar, or why there is none; ``None``: it is being made."""
        kept = self._kept.get(spec)
        if kept is not None:
            self._kept.move_to_end(spec)
            return kept[0]
        if spec not in self._under_way:
            try:
                call = self._thread.call(lambda: self._compile(spec))
            except TimeoutError as error:
                return GrammarFailure(f"Grammars are not made at the moment: {error}.", False)
            call.add_done_callback(self._wake)
            self._under_way[spec] = call, time.monotonic() + MAX_WAIT_S
        return self._take(spec)

    def _take(self, spec: GrammarSpec) -> Grammar | GrammarFailure | None:
        call, give_up_at = self._under_way[spec]
        if call.done():
            del self._under_way[spec]
            return self._read(spec, call.result())
        if time.monotonic() < give_up_at:
            return None
        del self._under_way[spec]
        is_too_slow = self._thread.leave(call, MAX_WAIT_S)
        return GrammarFailure(f"Its grammar was not made within {MAX_WAIT_S:g} s.", is_too_slow)

    def _read(self, spec: GrammarSpec, outcome: Outcome) -> Grammar | GrammarFailure:
        try:
            made: tuple[Grammar, int] = outcome.unwrap()
        except InvalidRequestError as error:
            return GrammarFailure(f"{error.message}.", True)
        except TimeoutError as error:
            return GrammarFailure(f"Grammars are not made at the moment: {error}.", False)
        except (HostError, HookserveError) as error:
            logger.warning("a grammar could not be made: %s", error, exc_info=error.__cause__)
            by = f" of plugin {error.identity}" if isinstance(error, PluginError) else ""
            return GrammarFailure(f"The grammar backend{by} failed.", False)
        self._kept[spec] = made
        self._kept_bytes += made[1]
        while self._kept_bytes > MAX_CACHE_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1][1]
        return made[0]

    def drop(self, spec: GrammarSpec) -> None:
        """Nobody waits for this one any more."""
        under_way = self._under_way.pop(spec, None)
        if under_way is not None:
            under_way[0].cancel()

    def timeout_s(self) -> float | None:
        """Until the next call is given up; ``None``: none is under way."""
        times = [give_up_at for _, give_up_at in self._under_way.values()]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def clear_fd(self) -> None:
        """What has become ready is looked at now."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def _wake(self, call: Future[Outcome]) -> None:
        with self._fd_lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Let the thread go; what it still makes is for nobody."""
        self._thread.end()
        with self._fd_lock:
            fd, self.fd = self.fd, -1
            os.close(fd)

    # -- in the thread --------------------------------------------------------------------------

    def _compile(self, spec: GrammarSpec) -> tuple[Grammar, int]:
        """The grammar and how many bytes keeping it costs."""
        if self._made is None:
            self._made = self._make_backend()
        backend, instance = self._made
        grammar: Grammar = backend.call("compile", instance.compile, spec)
        num_bytes = backend.call("num_bytes", lambda: max(0, int(grammar.num_bytes)))
        return grammar, num_bytes + len(spec.text)

    def _make_backend(self) -> tuple[Backend, Any]:
        backend = find_backend(self._host, self._name)
        vocabulary = read_vocabulary(self._model.tokenizer, self._model.vocab_size)
        try:
            return backend, backend.call("building", backend.cls, vocabulary)
        except InvalidRequestError as error:  # no request's fault
            raise PluginError(backend.owner, "run", error.message) from error


def read_vocabulary(path: str, vocab_size: int) -> GrammarVocabulary:
    """
    Args:
        path: of the tokenizer.
        vocab_size: the model's; the tokenizer may have fewer tokens, or more.

    Raises:
        ModelFileError: the tokenizer cannot be read.
    """
    from .text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(path)
    special = tokenizer.special_ids
    return GrammarVocabulary(
        [b"" if i in special else tokenizer.token_bytes(i) for i in range(vocab_size)],
        lambda text: tokenizer.encode(text, add_special_tokens=False),
    )
