"""``MultiprocExecutor``: each worker is a process of its own, one a tensor-parallel rank.

It starts them with the engine's plugins, calls all of them at once, and notices when one ends. All
ranks sample: the head's parts are gathered on each, generators start from equal seeds, so each
knows the token without being told, and a step costs no message between ranks beyond those of the
layers. What a worker does with a call is ``worker``'s.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from hookserve.hookspecs import Manifest, compare_manifests, current
from hookserve.hookspecs.report import ProcessReport

from .channel import ChannelClosed, wait_readable
from .child_process import whose_code_runs
from .codec import Message
from .errors import EX_SOFTWARE, WorkerError, WorkerPluginsError
from .executor import Executor, done
from .messages import (
    CollectiveRpc,
    Describe,
    Described,
    ManifestSent,
    Proceed,
    RpcResult,
    Shutdown,
)
from .rank_watch import LOOK_EVERY_S, describe_deadlock
from .step import SchedulerOutput
from .worker_child import WorkerChild
from .worker_messages import CallFailed, ExecuteModel, ModelExecuted, StartWorker

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 2.0
DESCRIBE_TIMEOUT_S = 1.0
"""So long the engine stands still for a worker that is asked about its plugins."""


class MultiprocExecutor(Executor):
    """The executor ``mp``. A worker that ends ends all others, and every later call raises."""

    def _init_executor(self) -> None:
        self.workers: list[WorkerChild] = []
        self._call_ids = itertools.count(1)
        self._unanswered: dict[int, set[int]] = {}
        """By call, of those that answer: the ranks that have not."""
        self._failed: set[int] = set()
        """Of these, those that have failed on a rank."""
        # A file in memory: nothing is left of it however this process ends. Open as long as the
        # ranks are: they part by it too, and its number must not become another file's.
        self._open = contextlib.ExitStack()
        meeting = os.memfd_create("ranks")
        self._open.callback(os.close, meeting)
        try:
            self._start_workers(f"file:///proc/{os.getpid()}/fd/{meeting}")
            self.collective_rpc("init_device")
            self.collective_rpc("load_model")
        except BaseException:
            self._end_workers()
            raise

    # -- start ----------------------------------------------------------------------------------

    def _start_workers(self, init_method: str) -> None:
        """Start all processes at once and let them go on once their plugins are the engine's.

        Raises:
            WorkerPluginsError: plugins that failed in a worker alone.
            hookserve.hookspecs.PluginConflictError: a difference that no failure explains.
            WorkerError: a worker ended.
        """
        host, config = current(), self.vllm_config
        assert config.engine_config is not None, "made from an EngineConfig, like every tree"
        denied = (*host.settings.denied, *host.failures())
        plugins = msgspec.structs.replace(host.settings, denied=denied)
        ranks = range(config.parallel_config.tensor_parallel_size)
        for rank in ranks:
            self.workers.append(WorkerChild.start(rank))
        for worker in self.workers:
            message = StartWorker(config.engine_config, plugins, worker.rank, init_method)
            self._tell(worker, worker.channel.encode(message))
        sent = self._gather(lambda message: isinstance(message, ManifestSent), set(ranks), None)
        self.worker_manifests = [sent[rank].manifest for rank in ranks]
        for plain in self.worker_manifests:
            failures = compare_manifests(host.manifest(), msgspec.convert(plain, Manifest))
            if failures:
                raise WorkerPluginsError(failures)
        self._tell_all(Proceed())

    # -- calls ----------------------------------------------------------------------------------

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        non_block: bool = False,
        unique_reply_rank: int | None = None,
    ) -> Any:
        """Call a method of every worker at once; the answers in the order of the ranks, of a step
        the first rank's alone.

        Args:
            unique_reply_rank: the one rank whose answer is wanted, in place of the list.

        Raises:
            TypeError: an argument or an answer that cannot cross processes, by its type.
            WorkerError: a worker's own sentence, how a worker ended, or that all wait for each
                other.
            TimeoutError: a rank did not answer within ``timeout`` seconds; what it answers later
                is dropped.
        """
        if not isinstance(method, str):
            raise TypeError(
                f"collective_rpc: {method!r:.120} is a function, and the workers are other "
                "processes; name a method of the worker, or use the executor uni"
            )
        call = partial(self._call, method, timeout, args, kwargs or {}, unique_reply_rank)
        return done(call) if non_block else call()

    def _call(
        self,
        method: str,
        timeout: float | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        only: int | None,
    ) -> Any:
        if self._failed:
            self._see_failed_calls_through(timeout)
        call_id = next(self._call_ids)
        if method == "execute_model" and isinstance(args[0], SchedulerOutput):
            self._tell_all(ExecuteModel(call_id, args[0]))  # all ranks sample the same tokens
            output = self._gather(_answers(call_id), {0}, timeout, call=method)[0].output
            return [output] if only is None else output
        self._tell_all(CollectiveRpc(call_id, method, list(args), dict(kwargs)))
        ranks = range(len(self.workers))
        self._unanswered[call_id] = set(ranks)
        answers = self._gather(_answers(call_id), set(ranks), timeout, call=method)
        results = [answers[rank].result for rank in ranks]
        return results if only is None else results[only]

    def describe_plugins(self) -> list[ProcessReport]:
        """Of each worker; one that does not answer in time is named, and not waited for."""
        call_id = next(self._call_ids)
        self._tell_all(Describe(call_id))
        ranks = range(len(self.workers))
        answers: dict[int, Any] = {}
        with contextlib.suppress(TimeoutError):
            self._gather(_answers(call_id), set(ranks), DESCRIBE_TIMEOUT_S, answers)
        return [
            answers[rank].processes[0]
            if rank in answers
            else ProcessReport(
                process=f"worker {rank}",
                pid=self.workers[rank].pid,
                roles=["worker"],
                problem=f"no answer within {DESCRIBE_TIMEOUT_S:g} s",
            )
            for rank in ranks
        ]

    def watched_fds(self) -> list[int]:
        return [fd for worker in self.workers for fd in worker.fds]

    def check_health(self) -> None:
        """Raises:
        WorkerError: a worker has ended.
        """
        if not self.workers:
            raise WorkerError("the workers have ended", EX_SOFTWARE)
        self._receive(0.0)

    def shutdown(self) -> None:
        """Ask all to stop, and end by force those that do not."""
        for worker in self.workers:
            try:
                worker.channel.send(Shutdown())
            except ChannelClosed:
                continue
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for worker in self.workers:
            has_ended = worker.wait(max(0.0, deadline - time.monotonic()))
            error = worker.end_error()
            if not has_ended:
                logger.warning(
                    "worker %d did not stop when asked%s; it is ended by force",
                    worker.rank,
                    whose_code_runs(*error.failures),
                )
            elif error.failures:
                logger.warning("%s", error)
        self._end_workers()

    # -- inside ---------------------------------------------------------------------------------

    def _see_failed_calls_through(self, timeout_s: float | None) -> None:
        """Wait until each rank has answered what failed on one: a rank that is still in an exchange
        would be met there by the next call's.

        Raises:
            WorkerError: none of them ever will, or one has ended.
            TimeoutError: they have not within the time.
        """
        started = looked_at = time.monotonic()
        while self._failed:
            now = time.monotonic()
            if timeout_s is not None and now - started >= timeout_s:
                raise TimeoutError(
                    f"workers are still in a call that failed on one rank, {timeout_s:g} s later"
                )
            if now - looked_at > LOOK_EVERY_S:
                self._raise_if_in_vain("a call that failed on one rank")
                looked_at = now
            left_s = LOOK_EVERY_S if timeout_s is None else started + timeout_s - now
            self._receive(min(left_s, LOOK_EVERY_S))

    def _tell_all(self, message: Message) -> None:
        self.check_health()
        frame = self.workers[0].channel.encode(message)
        for worker in list(self.workers):
            self._tell(worker, frame)

    def _tell(self, worker: WorkerChild, frame: bytearray) -> None:
        try:
            worker.channel.send_frame(frame)
        except ChannelClosed:
            self._receive(0.0)  # it may have said why
            error = worker.end_error()
            self._end_workers()
            raise error from None

    def _gather(
        self,
        is_answer: Any,
        ranks: Collection[int],
        timeout_s: float | None,
        answers: dict[int, Any] | None = None,
        call: str = "",
    ) -> dict[int, Any]:
        """Wait for one answer of each of the ranks; a failure of any rank raises at once. Given
        ``answers`` it has those that came, also where others did not in time.

        Args:
            call: what the ranks do, who may come to wait for each other in vain.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        answers = {} if answers is None else answers
        while len(answers) < len(ranks):
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                late = sorted(set(ranks) - answers.keys())
                raise TimeoutError(f"workers {late} have not answered within {timeout_s:g} s")
            wait_s = LOOK_EVERY_S if left_s is None else min(left_s, LOOK_EVERY_S)
            received = self._receive(wait_s)
            if call and not received:
                self._raise_if_in_vain(call)
            for rank, message in received:
                if not is_answer(message):
                    continue  # of an earlier call, which is no longer waited for
                if isinstance(message, CallFailed):
                    if message.failures:
                        raise WorkerPluginsError(message.failures)
                    error = WorkerError(message.message, message.exit_code)
                    error.add_note(f"In worker {rank}:\n{message.detail}")
                    raise error
                if rank in ranks:
                    answers.setdefault(rank, message)
        return answers

    def _receive(self, timeout_s: float | None) -> list[tuple[int, Message]]:
        """What arrives within the time, from any rank. If one has ended all are, and it raises."""
        readable = wait_readable(self.watched_fds(), timeout_s)
        messages: list[tuple[int, Message]] = []
        try:
            for worker in self.workers:
                if readable.intersection(worker.fds):
                    messages += [(worker.rank, message) for message in worker.receive()]
        except WorkerError:
            self._end_workers()
            raise
        for rank, message in messages:
            if isinstance(message, RpcResult | CallFailed):
                self._note_answer(rank, message)
        return messages

    def _note_answer(self, rank: int, message: RpcResult | CallFailed) -> None:
        ranks = self._unanswered.get(message.call_id, set())
        ranks.discard(rank)
        if isinstance(message, CallFailed):
            self._failed.add(message.call_id)
        if not ranks:
            self._unanswered.pop(message.call_id, None)
            self._failed.discard(message.call_id)

    def _raise_if_in_vain(self, call: str) -> None:
        """
        Raises:
            WorkerError: all ranks wait for each other; they are ended.
        """
        found = describe_deadlock(call, {each.rank: each.read_wait() for each in self.workers})
        if found is not None:
            self._end_workers()
            raise WorkerError(found, EX_SOFTWARE)

    def _end_workers(self) -> None:
        workers, self.workers = self.workers, []
        self._failed.clear()
        for worker in workers:
            worker.end()
        self._open.close()


def _answers(call_id: int) -> Any:
    kinds = (RpcResult, ModelExecuted, Described, CallFailed)
    return lambda message: isinstance(message, kinds) and message.call_id == call_id
