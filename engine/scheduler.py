"""``Scheduler``: which tokens of which requests the next step computes.

Every step has one budget of tokens. Decoding requests get one token each first; what is left
goes to chunks of prompts. Blocks are ``kv_cache``'s, what a token means for its request is
``output``'s, running the step is the executor's.

A request waits until all blocks of its prompt are free. When a decoding request finds no block,
the request admitted last is preempted: its blocks are taken, and it is computed anew later,
mostly from the prefix cache. Under the policy ``priority`` it is the one of the lowest priority,
and of those the latest; and a waiting request may take the place of running ones of lower priority.
Plugins may order those that wait, and choose who is preempted (``scheduler_hooks``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import ClassVar

from hookserve.hookspecs.calls import Calls

from .errors import ConfigError
from .kv_cache import KVCacheManager
from .kv_cache_size import longest_request
from .messages import (
    EngineCoreOutput,
    PrefixCacheStats,
    SchedulerIterationDetails,
    SchedulerStats,
)
from .output import find_stop
from .request import Request, RequestStatus
from .request_queue import make_queue
from .sampling_rules import SamplingParamsError
from .scheduler_hooks import SchedulerHooks
from .scheduler_interface import CAPABILITIES, SchedulerInterface
from .step import ModelRunnerOutput, NewRequestData, SchedulerOutput
from .vllm_config import VllmConfig


class StepCounts:
    """What happened since the last report; every field is a count."""

    __slots__ = (
        "ctx_requests",
        "ctx_tokens",
        "decode_requests",
        "decode_tokens",
        "first_lookups",
        "generation_tokens",
        "later_lookups",
        "preempted",
        "prompt_tokens",
    )

    def __init__(self) -> None:
        self.first_lookups = [0, 0, 0]
        """In the prefix cache: requests, tokens looked up, tokens found."""
        self.later_lookups = [0, 0, 0]
        """The same of requests that were preempted before."""
        self.generation_tokens = 0
        self.preempted = 0
        self.prompt_tokens = 0
        self.ctx_requests = 0
        self.ctx_tokens = 0
        self.decode_requests = 0
        self.decode_tokens = 0

    def look_up(self, request: Request) -> None:
        """A request was admitted; its computed tokens are those that were found."""
        is_first = request.status is RequestStatus.WAITING
        lookups = self.first_lookups if is_first else self.later_lookups
        lookups[0] += 1
        lookups[1] += request.num_tokens
        lookups[2] += request.num_computed_tokens

    def prefix_cache_stats(self) -> PrefixCacheStats:
        requests, queries, hits = self.first_lookups
        again, queries_again, hits_again = self.later_lookups
        return PrefixCacheStats(requests, queries, hits, again, queries_again, hits_again)


class Scheduler(SchedulerInterface):
    """Continuous batching over a paged cache. Plugins subclass it and replace some of its parts;
    each is looked up anew whenever it is used."""

    capabilities: ClassVar[frozenset[str]] = frozenset(CAPABILITIES)
    carried_by: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType(
        {
            "chunked_prefill": ("schedule", "_schedule_prompts", "_give_chunk"),
            "prefix_caching": ("schedule", "_schedule_prompts", "_admit", "admit"),
            "preemption": ("schedule", "_schedule_decodes", "_extend", "_preempt"),
            "priority": ("schedule", "_schedule_prompts", "_rank_prompts", "precedence"),
            "order_waiting": ("schedule", "order", "_waiting_in_order", "_order"),
            "select_victim": (
                "schedule",
                "_schedule_decodes",
                "_extend",
                "_select_victim",
                "victim",
            ),
            "after_schedule": ("schedule", "scheduled"),
        }
    )
    """By which names it comes to use each capability, from the outside in. Who replaces one of them
    by code that has neither that name nor a later one loses the capability, unless the class states
    its own ``capabilities``."""
    shared_prompt_tokens = 384
    """Prompt tokens of a step that others wait for: decoding requests for their next token, other
    prompts for their first. More of them in one step are computed no faster (from 128 on a token
    takes the same time), and all wait for the last."""
    lookahead = 32
    """Waiting requests considered for a step, so that a short prompt passes a long one."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        num_blocks: int,
        block_size: int,
        calls: Calls | None = None,
    ) -> None:
        """As the interface says.

        Raises:
            ConfigError: a step's budget that is too small for its requests.
        """
        config = vllm_config.scheduler_config
        self.max_num_seqs = config.max_num_seqs
        self.max_num_batched_tokens = config.max_num_batched_tokens
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is less than max_num_seqs "
                f"{self.max_num_seqs}: each running request needs a token of every step"
            )
        self.vocab_size = vllm_config.model_config.vocab_size
        self.max_model_len = vllm_config.model_config.max_model_len
        self.kv_cache = KVCacheManager(
            num_blocks,
            block_size,
            enable_prefix_caching=vllm_config.cache_config.enable_prefix_caching,
        )
        self.max_num_tokens = longest_request(self.max_model_len, self.kv_cache.num_tokens_capacity)
        self.requests: dict[str, Request] = {}
        self.waiting = make_queue(config.policy)
        self.running: list[Request] = []
        """In the order of admission, or of priority: the last one is the first victim."""
        self.finished_req_ids: set[str] = set()
        self.known_req_ids: set[str] = set()
        """Requests that the workers have state for."""
        self.block_ids_to_zero: list[int] = []
        """Blocks of failed requests: what is not a number there would spoil their next owner."""
        self.counts = StepCounts()
        self.hooks = SchedulerHooks(calls)
        self._order: list[Request] | None = None
        """Who waits, in the order that plugins gave for this step; ``None``: the queue's."""

    # -- requests come and go -------------------------------------------------------------------

    def add_request(self, request: Request) -> EngineCoreOutput | None:
        """Queue the request, or return at once the refusal of one that can never run."""
        refusal = self._refusal(request)
        if refusal is not None:
            return EngineCoreOutput(
                request.request_id, finish_reason="error", error=refusal, is_refusal=True
            )
        self.requests[request.request_id] = request
        self.waiting.add(request)
        return None

    def _refusal(self, request: Request) -> str | None:
        """Why the request can never run, in one sentence for the client; ``None``: it can."""
        count = request.num_prompt_tokens
        if request.request_id in self.requests:
            return f"Request id {request.request_id} is in use."
        if count == 0:
            return "The prompt has no tokens."
        lowest, highest = min(request.token_ids), max(request.token_ids)
        if lowest < 0 or highest >= self.vocab_size:
            wrong = lowest if lowest < 0 else highest
            return f"Token id {wrong} is outside of the vocabulary (0 to {self.vocab_size - 1})."
        if count >= self.max_model_len:
            return (
                f"The prompt has {count} tokens, and the context of {self.max_model_len} tokens "
                "must hold at least one more."
            )
        if count >= self.max_num_tokens:
            return (
                f"The prompt has {count} tokens and can never fit: the KV cache holds "
                f"{self.kv_cache.num_tokens_capacity} tokens."
            )
        try:
            request.params.check_vocabulary(self.vocab_size)
        except SamplingParamsError as error:
            return f"{error}."
        return None

    def finish_requests(self, request_ids: str | Iterable[str], reason: str) -> list[Request]:
        """End requests and take their blocks back; ids that are not known are passed over,
        because an end from outside may cross with the engine's own.

        Args:
            request_ids: one id or several.
            reason: the finish reason, such as ``"abort"``.
        """
        ids = [request_ids] if isinstance(request_ids, str) else request_ids
        ended = []
        for request_id in ids:
            request = self.requests.get(request_id)
            if request is not None:
                self._end(request, reason)
                ended.append(request)
        return ended

    def _end(self, request: Request, reason: str) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.finished_by(reason)
        request.finish_reason = reason
        if reason == "error":
            self.block_ids_to_zero += self.kv_cache.free_spoiled(request)
        else:
            self.kv_cache.free(request)
        del self.requests[request.request_id]
        if request.request_id in self.known_req_ids:
            self.known_req_ids.discard(request.request_id)
            self.finished_req_ids.add(request.request_id)

    def get_num_unfinished_requests(self) -> int:
        return len(self.requests)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    # -- one step -------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Choose the tokens of the next step and give their requests blocks.

        Args:
            throttle_prefills: compute no token of a prompt; the engine does not ask for it.
        """
        output = SchedulerOutput()
        self._order = self.hooks.order(self.waiting)
        self._make_room(output)
        self._schedule_decodes(output)
        if not throttle_prefills:
            self._schedule_prompts(output)
        self._after_schedule(output)
        self.hooks.scheduled(output)
        return output

    def _waiting_in_order(self) -> Iterable[Request]:
        if self._order is None:
            return self.waiting
        # Some of them may run by now. Who is preempted in this step is not among them.
        return (r for r in self._order if r.status is not RequestStatus.RUNNING)

    def _make_room(self, output: SchedulerOutput) -> None:
        """Let the first waiting request run in place of those whose priority is lower, if that is
        what it takes. Only then: what is free is given out behind the decoding requests."""
        first = next(iter(self._waiting_in_order()), None)
        if first is None or not self.running:
            return
        precedence = self.waiting.precedence
        if precedence(self.running[-1]) <= precedence(first):
            return
        lower = [r for r in self.running if precedence(r) > precedence(first)]
        num_others = len(self.running) - len(lower)
        if not self.kv_cache.may_fit(first, lower, spare_blocks=num_others):
            return
        while len(self.running) == self.max_num_seqs or not self._admit(first):
            if not lower:
                return
            self._preempt(lower.pop(), output)

    def _schedule_decodes(self, output: SchedulerOutput) -> None:
        """One token for each decoding request, the first victim of a shortage last. Blocks come
        first: a victim may be one that has got its own in this step."""
        extended: list[tuple[Request, list[int]]] = []
        for request in list(self.running):
            if request.status is not RequestStatus.RUNNING or not request.is_decoding:
                continue
            added = self._extend(request, output)
            if added is not None:
                extended.append((request, added))
        for request, added in extended:
            if request.status is RequestStatus.RUNNING:
                self._give(request, 1, added, output)

    def _extend(self, request: Request, output: SchedulerOutput) -> list[int] | None:
        """Blocks for one more token, at the cost of others; ``None``: it gave way itself."""
        added = self.kv_cache.extend(request)
        while added is None:
            victim = self._select_victim()
            self._preempt(victim, output)
            if victim is request:
                return None
            added = self.kv_cache.extend(request)
        return added

    def _select_victim(self) -> Request:
        return self.hooks.victim(self.running) or self.running[-1]

    def _preempt(self, request: Request, output: SchedulerOutput) -> None:
        assert request.request_id not in output.num_scheduled_tokens, request
        self.running.remove(request)
        self.kv_cache.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.put_back(request)
        output.preempted_req_ids.add(request.request_id)
        self.counts.preempted += 1

    def _schedule_prompts(self, output: SchedulerOutput) -> None:
        """Chunks of prompts: half of the budget is the oldest's, the rest goes to what ends
        soonest. So a long prompt moves in every step, and short ones pass it. Priority, where it
        counts, goes before both, and an order that plugins gave before all."""
        candidates = self._prompt_candidates(output)
        budget = self._prompt_budget(output, len(candidates))
        if budget <= 0 or not candidates:
            return
        oldest, others = self._rank_prompts(candidates)
        share = budget if not others else max(1, budget // 2)
        blocked = not self._admit(oldest)
        if not blocked:
            budget -= self._give_chunk(oldest, share, output)
        for request in others:
            if budget <= 0:
                return
            if request.status is not RequestStatus.RUNNING:
                if blocked or self.kv_cache.is_prefix_coming(request, self.running):
                    continue
                # Whoever came first must not be passed by all that are smaller.
                blocked = not self._admit(request)
                if blocked:
                    continue
            budget -= self._give_chunk(request, budget, output)
        if budget > 0 and oldest.status is RequestStatus.RUNNING:
            self._give_chunk(oldest, budget, output)

    def _rank_prompts(self, candidates: list[Request]) -> tuple[Request, list[Request]]:
        """Whose the first half of the budget is, and the others in their order."""
        if self._order is not None:
            return candidates[0], candidates[1:]
        # Waiting ones too: else short prompts could pass a long one for as long as they come.
        precedence = self.waiting.precedence
        oldest = min(candidates, key=lambda r: (precedence(r), r.arrival_ts))
        others = [request for request in candidates if request is not oldest]
        others.sort(key=lambda r: (precedence(r), r.num_uncomputed_tokens))
        return oldest, others

    def _prompt_budget(self, output: SchedulerOutput, num_prompts: int) -> int:
        num_decodes = len(output.num_scheduled_tokens)
        left = self.max_num_batched_tokens - num_decodes
        is_alone = num_decodes + num_prompts == 1
        return left if is_alone else min(left, self.shared_prompt_tokens)

    def _prompt_candidates(self, output: SchedulerOutput) -> list[Request]:
        """Running requests with a prompt to compute, then waiting ones in order."""
        running = [r for r in self.running if r.request_id not in output.num_scheduled_tokens]
        # Without this, a step that took blocks away would give them back at once.
        places = 0 if output.preempted_req_ids else self.max_num_seqs - len(self.running)
        return running + list(islice(self._waiting_in_order(), min(places, self.lookahead)))

    def _admit(self, request: Request) -> bool:
        """Make the request a running one if its blocks are free; true if it runs already."""
        if request.status is RequestStatus.RUNNING:
            return True
        if not self.kv_cache.admit(request, spare_blocks=len(self.running)):
            return False
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = request.num_computed_tokens
            request.queued_s = time.monotonic() - request.arrival_ts
        if self.kv_cache.enable_prefix_caching and not request.must_compute_prompt:
            self.counts.look_up(request)
        request.is_resumed = request.request_id in self.known_req_ids
        self.waiting.remove(request)
        request.status = RequestStatus.RUNNING
        self.waiting.enter_running(self.running, request)
        return True

    def _give_chunk(self, request: Request, limit: int, output: SchedulerOutput) -> int:
        """Schedule up to ``limit`` more tokens of the request; the number that it took."""
        given = output.num_scheduled_tokens.get(request.request_id, 0)
        count = min(limit, request.num_uncomputed_tokens - given)
        if count <= 0:
            return 0
        if not given:
            self._give(request, count, [], output)
            return count
        output.num_scheduled_tokens[request.request_id] = given + count
        self.kv_cache.register(request, request.num_computed_tokens + given + count)
        return count

    def _give(
        self, request: Request, count: int, added: list[int], output: SchedulerOutput
    ) -> None:
        """Enter the request into the step; its state in the workers is new, resumed or known."""
        request_id = request.request_id
        output.num_scheduled_tokens[request_id] = count
        self.kv_cache.register(request, request.num_computed_tokens + count)
        if request_id not in self.known_req_ids:
            output.scheduled_new_reqs.append(
                NewRequestData(
                    request_id,
                    request.token_ids,
                    request.params,
                    list(request.block_ids),
                    request.num_computed_tokens,
                )
            )
            self.known_req_ids.add(request_id)
            return
        cached = output.scheduled_cached_reqs
        cached.req_ids.append(request_id)
        cached.num_computed_tokens.append(request.num_computed_tokens)
        if request.is_resumed:
            cached.all_token_ids[request_id] = request.token_ids
            cached.new_block_ids[request_id] = list(request.block_ids)
            request.is_resumed = False
        elif added:
            cached.new_block_ids[request_id] = added

    def _after_schedule(self, output: SchedulerOutput) -> None:
        counts = self.counts
        for request_id, count in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            start = request.num_computed_tokens
            if start < request.num_prompt_tokens:
                counts.ctx_requests += 1
                counts.ctx_tokens += count
                counts.prompt_tokens += request.advance_prompt(start, count)
            else:
                counts.decode_requests += 1
                counts.decode_tokens += count
            request.num_computed_tokens = start + count
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        output.finished_req_ids, self.finished_req_ids = self.finished_req_ids, set()
        output.new_block_ids_to_zero, self.block_ids_to_zero = self.block_ids_to_zero, []

    # -- after the step -------------------------------------------------------------------------

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> list[EngineCoreOutput]:
        """Take in the sampled tokens, and end the requests for which they were the last."""
        outputs = []
        errors = model_runner_output.errors
        for request_id, token_ids in zip(
            model_runner_output.req_ids, model_runner_output.sampled_token_ids, strict=True
        ):
            request = self.requests.get(request_id)
            # It may have ended meanwhile, and its id may be a new request's, which is not so far.
            if request is None or request.status is not RequestStatus.RUNNING:
                continue
            if request_id in errors:
                self._end(request, "error")
                outputs.append(
                    EngineCoreOutput(
                        request_id,
                        finish_reason="error",
                        error=errors[request_id],
                        is_refusal=request_id in model_runner_output.refused,
                    )
                )
            elif token_ids:
                outputs.append(self._take_tokens(request, token_ids, model_runner_output))
        return outputs

    def _take_tokens(
        self, request: Request, token_ids: list[int], result: ModelRunnerOutput
    ) -> EngineCoreOutput:
        """Append tokens up to the one that ends the request."""
        is_first = request.num_output_tokens == 0
        stop = None
        taken = []
        for token_id in token_ids:
            request.append_token(token_id)
            taken.append(token_id)
            stop = find_stop(request, self.max_num_tokens)
            if stop is not None:
                self._end(request, stop.finish_reason)
                break
        self.counts.generation_tokens += len(taken)
        logprobs = result.logprobs.get(request.request_id)
        return EngineCoreOutput(
            request.request_id,
            taken,
            finish_reason=stop.finish_reason if stop else None,
            stop_reason=stop.stop_reason if stop else None,
            num_cached_tokens=request.num_cached_tokens if is_first else 0,
            queued_s=request.queued_s if is_first else None,
            num_preemptions=request.num_preemptions,
            logprobs=None if logprobs is None else logprobs[: len(taken)],
            prompt_logprobs=result.prompt_logprobs.get(request.request_id),
        )

    # -- reports --------------------------------------------------------------------------------

    def get_kv_cache_usage(self) -> float:
        return self.kv_cache.usage

    def num_pending_tokens(self) -> int:
        """Known tokens that no step has computed yet, of requests that the next step may take."""
        # Which ones plugins will put first is not known before they do.
        waiting = islice(self.waiting, None if self.hooks.may_reorder else self.lookahead)
        return sum(r.num_uncomputed_tokens for r in (*self.running, *waiting))

    def make_stats(self, step_counter: int, elapsed_s: float | None = None) -> SchedulerStats:
        counts, self.counts = self.counts, StepCounts()
        details = None
        if elapsed_s is not None:
            details = SchedulerIterationDetails(
                step_counter,
                counts.ctx_requests,
                counts.ctx_tokens,
                counts.decode_requests,
                counts.decode_tokens,
                1000.0 * elapsed_s,
            )
        return SchedulerStats(
            num_running_reqs=len(self.running),
            num_waiting_reqs=len(self.waiting),
            kv_cache_usage=self.get_kv_cache_usage(),
            step_counter=step_counter,
            num_preempted_reqs=counts.preempted,
            num_prompt_tokens=counts.prompt_tokens,
            num_generation_tokens=counts.generation_tokens,
            iteration_details=details,
            prefix_cache_stats=counts.prefix_cache_stats(),
        )

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix; running requests keep their blocks."""
        self.kv_cache.pool.forget_all()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if requests, queues and blocks disagree. For idle time and
        tests; takes time that grows with the cache."""
        listed = [*self.running, *self.waiting]
        assert len(listed) == len(self.requests), "a request is in two queues or in none"
        assert all(self.requests.get(r.request_id) is r for r in listed)
        assert len(self.running) <= self.max_num_seqs
        for request in listed:
            if request.status is RequestStatus.RUNNING:
                needed = self.kv_cache.num_blocks_for(request.num_computed_tokens)
                assert len(request.block_ids) >= needed, request
            else:
                assert not request.block_ids and not request.num_computed_tokens, request
        self.kv_cache.check_integrity(listed)
