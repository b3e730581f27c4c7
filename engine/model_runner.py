"""``ModelRunner``: one step of the model over a batch, from the scheduler's choice to tokens.

It keeps the rows of live requests (``input_batch``), builds the attention metadata, runs the
model under the forward context and samples. Where weights come from is the loader's, how tokens
are drawn the sampler's, what attention does with the metadata is ``ops``'.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hookserve.hookspecs import HostError, current
from hookserve.hookspecs.context import enter
from hookserve.hookspecs.errors import describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.ops.attention_builder import add_backend_steps
from hookserve.ops.context import (
    AttentionMetadata,
    ForwardContext,
    get_tp_group,
    set_forward_context,
)
from hookserve.ops.decode_groups import DecodeMemory

from .errors import EX_SOFTWARE, ConfigError, HookserveError
from .input_batch import InputBatch, RequestState
from .logprobs import MAX_ROWS, compute_logprobs
from .model_registry import find_model
from .processor_set import ProcessedRequest, ProcessorSet
from .sampler import Sampler, SamplingMetadata
from .step import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from .vllm_config import VllmConfig, set_current_vllm_config

if TYPE_CHECKING:
    from hookserve.hookspecs import Plugin
    from hookserve.ops.kv_cache_spec import FullAttentionSpec


class ModelError(HookserveError):
    """The model's own code raised; the message names model, plugin, and what it raised."""

    exit_code = EX_SOFTWARE


@dataclass(slots=True)
class StepInputs:
    """The arrays of one step; rows are the requests that take part, decoding ones first."""

    req_ids: list[str]
    slots: np.ndarray
    """[rows] int64."""
    input_ids: torch.Tensor
    """[tokens] int64."""
    positions: torch.Tensor
    """[tokens] int64."""
    attn_metadata: AttentionMetadata
    sampled_rows: np.ndarray
    """[sampled] int64: rows whose last known token is in the step, so that a token follows."""
    last_token_indices: torch.Tensor
    """[sampled] int64: that token's place in ``input_ids``."""


class ModelRunner:
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.cache_config = vllm_config.cache_config
        self.parallel_config = vllm_config.parallel_config
        self.scheduler_config = vllm_config.scheduler_config
        self.compilation_config = vllm_config.compilation_config
        self.device = device
        self.block_size = vllm_config.cache_config.block_size
        self.vocab_size = vllm_config.model_config.vocab_size
        self.sampler = Sampler()
        self.requests: dict[str, RequestState] = {}
        self.input_batch = InputBatch(
            vllm_config.scheduler_config.max_num_seqs,
            vllm_config.model_config.max_model_len,
            self.block_size,
        )
        self.processors = ProcessorSet.build(vllm_config, current(), self.input_batch)
        # Requests without a seed get one from here: reproducible, and like the others theirs alone.
        self._seeds = torch.Generator().manual_seed(vllm_config.model_config.seed)
        self.model: Any = None
        self.model_name = ""
        self.model_owner = ""
        """Identity of the plugin that registered the model."""
        self._model_plugin: Plugin | None = None
        self.model_parts: list[str] = []
        """What else it was built with by name, and whose that is."""
        self.kv_caches: dict[str, torch.Tensor] = {}
        # Elsewhere than on a CPU a gathered copy is no gain.
        self.decode_memory = DecodeMemory() if device.type == "cpu" else None

    # -- once -----------------------------------------------------------------------------------

    def load_model(self) -> None:
        """Build the model and load its weights.

        Raises:
            ModelFileError, UnknownArchitectureError, hookserve.hookspecs.PluginError
        """
        from .model_loader import get_model_loader, loader_name
        from .model_parts import prepare_parts

        self.attention_layers().clear()  # those of a try that failed
        config = self.vllm_config.model_config
        host = current()
        model = find_model(config.architectures, host)
        if model is not None:
            self.model_name, self.model_owner = model.name, model.owner
            self._model_plugin = model.plugin
        self.model_parts = prepare_parts(self.vllm_config, host)
        self._take_sampling()
        loader = host.registry("model_loader").get(loader_name(self.vllm_config))
        try:
            with (
                host.enter(loader.plugin if loader is not None else None),
                set_current_vllm_config(self.vllm_config),
            ):
                self.model = get_model_loader(self.vllm_config).load_model(
                    vllm_config=self.vllm_config, model_config=config
                )
        except (HookserveError, HostError):
            raise
        except caught() as error:
            by = (
                f" by loader '{loader.name}' of plugin {loader.owner}" if loader is not None else ""
            )
            raise ModelError(self._blame(f"could not be loaded{by}", error)) from error

    def _take_sampling(self) -> None:
        """Let the sampler draw by whoever provides it."""
        ops = self.vllm_config.compilation_config.ops
        assert ops is not None, "prepare_parts has chosen them"
        self.sampler.op = ops.function("sampling")
        self.sampler.op.row.built = 1

    def _blame(self, what: str, error: BaseException) -> str:
        from .model_parts import describe_ops

        owner = f" of plugin {self.model_owner}" if self.model_owner else ""
        name = self.model_name or type(self.model).__qualname__
        ops = self.vllm_config.compilation_config.ops
        said = self.model_parts if ops is None else describe_ops(ops, current()) + self.model_parts
        parts = f" (with {', '.join(said)})" if said else ""
        return f"model {name}{owner}{parts} {what}: {describe_error(error)}"

    def get_model(self) -> Any:
        return self.model

    def attention_layers(self) -> dict[str, Any]:
        return self.vllm_config.compilation_config.static_forward_context

    def get_kv_cache_spec(self) -> dict[str, FullAttentionSpec]:
        """What each attention layer, by its prefix, wants to keep of each token."""
        specs = {
            name: layer.get_kv_cache_spec(self.vllm_config)
            for name, layer in self.attention_layers().items()
        }
        return {name: spec for name, spec in specs.items() if spec is not None}

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Allocate the cache and give each attention layer its tensor.

        Args:
            num_blocks: blocks for requests; one more, number 0, pads tables and stays zero.
        """
        add_backend_steps(self.attention_layers(), self.vllm_config, self.device)
        for name, spec in self.get_kv_cache_spec().items():
            layer = self.attention_layers()[name]
            shape = layer.kv_cache_shape(num_blocks + 1, self.block_size)
            tensor = allocate_lazily(shape, spec.dtype, self.device)
            layer.bind_kv_cache(tensor)
            self.kv_caches[name] = tensor

    # -- every step -----------------------------------------------------------------------------

    @torch.inference_mode()
    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the scheduled tokens, and sample one token wherever a sequence's end is reached.

        Raises:
            ModelError: the model raised; the engine cannot go on.
        """
        self._update_states(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return ModelRunnerOutput()
        if self.processors is not None:
            self.processors.before_forward()
        inputs = self._prepare_inputs(scheduler_output)
        logits = self._run_model(inputs)
        return self._sample(inputs, logits, scheduler_output.grammar_output)

    def _update_states(self, scheduler_output: SchedulerOutput) -> None:
        """Let the rows follow the scheduler: ended, preempted, new, resumed and grown requests."""
        batch = self.input_batch
        if scheduler_output.new_block_ids_to_zero:
            for tensor in self.kv_caches.values():
                tensor[scheduler_output.new_block_ids_to_zero] = 0
        for req_id in scheduler_output.finished_req_ids:
            batch.remove(req_id)
            self.requests.pop(req_id, None)
        for req_id in scheduler_output.preempted_req_ids:
            batch.remove(req_id)
        for new in scheduler_output.scheduled_new_reqs:
            generator = self._make_generator(new.sampling_params.seed)
            self.requests[new.req_id] = RequestState(
                new.sampling_params, generator, new.prompt_token_ids, self.vocab_size
            )
            slot = batch.add(new.req_id, new.prompt_token_ids, new.block_ids)
            batch.num_computed_tokens[slot] = new.num_computed_tokens
            if self.processors is not None:
                self._enter_slot(new.req_id, new.prompt_token_ids)
        cached = scheduler_output.scheduled_cached_reqs
        for req_id, token_ids in cached.all_token_ids.items():
            batch.add(req_id, token_ids, [])
            if self.processors is not None:
                self._enter_slot(req_id, token_ids)
        for req_id, block_ids in cached.new_block_ids.items():
            batch.append_blocks(batch.slots[req_id], block_ids)
        slots = [batch.slots[req_id] for req_id in cached.req_ids]
        batch.num_computed_tokens[slots] = cached.num_computed_tokens

    def _enter_slot(self, req_id: str, token_ids: Sequence[int]) -> None:
        """Tell the processors of a request that is new, or that was preempted and is back."""
        assert self.processors is not None, "the caller has looked"
        state = self.requests[req_id]
        if state.processed is None:
            state.processed = ProcessedRequest(state.params, token_ids)
        self.processors.enter_slot(state.processed, self.input_batch.slots[req_id], len(token_ids))

    def _make_generator(self, seed: int | None) -> torch.Generator:
        if seed is None:
            seed = int(torch.randint(0, 2**63 - 1, (), generator=self._seeds))
        return torch.Generator().manual_seed(seed)

    def _prepare_inputs(self, scheduler_output: SchedulerOutput) -> StepInputs:
        """Lay the scheduled tokens out flat, request after request."""
        batch = self.input_batch
        scheduled = scheduler_output.num_scheduled_tokens
        # Attention treats requests with one token apart from chunks, so they come first.
        req_ids = [r for r, n in scheduled.items() if n == 1]
        num_decodes = len(req_ids)
        req_ids += [r for r, n in scheduled.items() if n > 1]
        slots = np.array([batch.slots[r] for r in req_ids], dtype=np.int64)
        counts = np.array([scheduled[r] for r in req_ids], dtype=np.int64)
        starts = batch.num_computed_tokens[slots]
        seq_lens = starts + counts
        query_ends = counts.cumsum()
        # [tokens]: the row's slot, and the position, of every token of the step.
        token_slots = np.repeat(slots, counts)
        positions = np.arange(query_ends[-1]) + np.repeat(seq_lens - query_ends, counts)
        blocks = batch.block_table_np[token_slots, positions // self.block_size]
        slot_mapping = blocks * self.block_size + positions % self.block_size
        sampled_rows = (seq_lens == batch.num_tokens[slots]).nonzero()[0]
        metadata = AttentionMetadata(
            num_reqs=len(req_ids),
            num_tokens=int(query_ends[-1]),
            num_decode_reqs=num_decodes,
            query_start_loc=[0, *query_ends.tolist()],
            seq_lens=seq_lens.tolist(),
            block_tables=self._block_tables(slots, int(seq_lens.max())),
            slot_mapping=self._to_device(slot_mapping),
            block_size=self.block_size,
            sequences=tuple(batch.sequences[slots[:num_decodes]].tolist()),
            decode_memory=self.decode_memory,
        )
        return StepInputs(
            req_ids=req_ids,
            slots=slots,
            input_ids=self._to_device(batch.token_ids[token_slots, positions].astype(np.int64)),
            positions=self._to_device(positions),
            attn_metadata=metadata,
            sampled_rows=sampled_rows,
            last_token_indices=self._to_device(query_ends[sampled_rows] - 1),
        )

    def _block_tables(self, slots: np.ndarray, max_seq_len: int) -> torch.Tensor:
        """[rows, blocks of the longest request] int64; shorter rows end in zeros."""
        max_blocks = -(-max_seq_len // self.block_size)
        return self._to_device(self.input_batch.block_table_np[slots, :max_blocks])

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _run_model(self, inputs: StepInputs) -> torch.Tensor | None:
        """Logits of the rows that are sampled, [sampled, vocab]; ``None`` if there are none."""
        context = ForwardContext(attn_metadata=inputs.attn_metadata, layers=self.attention_layers())
        try:
            with enter(self._model_plugin), set_forward_context(context):
                hidden = self.model(input_ids=inputs.input_ids, positions=inputs.positions)
                if len(hidden) != len(inputs.input_ids):
                    raise ValueError(
                        f"forward gave {len(hidden)} rows for {len(inputs.input_ids)} tokens"
                    )
                self._compute_prompt_logprobs(inputs, hidden)
                if not len(inputs.sampled_rows):
                    return None
                if len(inputs.sampled_rows) < len(hidden):
                    hidden = hidden[inputs.last_token_indices]
                logits: torch.Tensor = self.model.compute_logits(hidden)
                self._check_logits(logits, len(inputs.sampled_rows))
        except caught() as error:
            raise ModelError(self._blame("failed in a step", error)) from error
        return logits

    def _compute_prompt_logprobs(self, inputs: StepInputs, hidden: torch.Tensor) -> None:
        """Note what this step tells of prompts whose log-probabilities were asked for.

        Args:
            hidden: [tokens, hidden size], the model's output for the whole step.
        """
        ends = inputs.attn_metadata.query_start_loc
        for row, req_id in enumerate(inputs.req_ids):
            known = self.requests[req_id].prompt_logprobs
            if known is None:
                continue
            seq_len = inputs.attn_metadata.seq_lens[row]
            # The position of the row's first token is this minus the token's place in the step.
            shift = seq_len - ends[row + 1]
            positions = known.next_positions(ends[row] + shift, seq_len)
            for start in positions[::MAX_ROWS]:
                end = min(start + MAX_ROWS, positions.stop)
                logits = self.model.compute_logits(hidden[start - shift : end - shift])
                self._check_logits(logits, end - start)
                tokens = self.input_batch.token_ids[inputs.slots[row], start + 1 : end + 1]
                targets = self._to_device(tokens.astype(np.int64))
                if missing := self.vocab_size - logits.shape[1]:
                    logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
                known.entries += compute_logprobs(logits, targets, known.num_logprobs)

    def _check_logits(self, logits: Any, num_rows: int) -> None:
        is_tensor = isinstance(logits, torch.Tensor)
        shape = tuple(logits.shape) if is_tensor else ()
        if len(shape) != 2 or shape[0] != num_rows or not 0 < shape[1] <= self.vocab_size:
            got = shape if is_tensor else type(logits).__name__
            raise ValueError(f"compute_logits gave {got}, expected ({num_rows}, {self.vocab_size})")
        if logits.device.type != self.device.type:
            raise ValueError(f"compute_logits gave logits on {logits.device}, not {self.device}")

    def _sample(
        self,
        inputs: StepInputs,
        logits: torch.Tensor | None,
        grammar: GrammarOutput | None = None,
    ) -> ModelRunnerOutput:
        output = ModelRunnerOutput(inputs.req_ids, [[] for _ in inputs.req_ids])
        if logits is None:
            return output
        rows = inputs.sampled_rows.tolist()
        states = [self.requests[inputs.req_ids[row]] for row in rows]
        metadata = SamplingMetadata.from_params(
            [state.params for state in states],
            [state.generator for state in states],
            [state.edits for state in states],
        )
        if grammar is not None:
            bitmask = grammar.grammar_bitmask
            masks = dict(zip(grammar.structured_output_request_ids, bitmask, strict=True))
            sampled_ids = [inputs.req_ids[row] for row in rows]
            metadata.masks = {i: masks[r] for i, r in enumerate(sampled_ids) if r in masks}
        if self.processors is not None:
            metadata.processors = self.processors
            self.processors.begin([self._processed(state) for state in states], inputs)
        sampled = self.sampler.forward(logits, metadata)
        token_ids = sampled.sampled_token_ids[:, 0].cpu().numpy()
        if self.processors is not None:
            token_ids = self._agree(token_ids)
            self.processors.end(token_ids.tolist())
        self.input_batch.append_tokens(inputs.slots[inputs.sampled_rows], token_ids)
        for row, state, token_id in zip(rows, states, token_ids.tolist(), strict=True):
            output.sampled_token_ids[row] = [token_id]
            if state.edits is not None:
                state.edits.append(token_id)
            if state.prompt_logprobs is not None:
                output.prompt_logprobs[inputs.req_ids[row]] = state.prompt_logprobs.entries
                state.prompt_logprobs = None
        for index, message in sampled.errors.items():
            output.errors[inputs.req_ids[rows[index]]] = message
        output.refused = {inputs.req_ids[rows[index]] for index in sampled.refused}
        for index, logprobs in sampled.logprobs.items():
            output.logprobs[inputs.req_ids[rows[index]]] = [logprobs]
        return output

    @staticmethod
    def _processed(state: RequestState) -> ProcessedRequest:
        assert state.processed is not None, "it entered a slot"
        return state.processed

    def _agree(self, token_ids: np.ndarray) -> np.ndarray:
        """The first rank's tokens: what plugins do need not come to the same in every process."""
        gathered = get_tp_group().all_gather(self._to_device(token_ids))
        return gathered[: len(token_ids)].cpu().numpy()


def allocate_lazily(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Zeros. On a CPU the kernel maps each page when it is first written, so that a cache that
    is not used takes no memory.

    Raises:
        ConfigError: there is not so much memory.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    count = int(np.prod(shape))
    num_bytes = max(1, count * dtype.itemsize)
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ConfigError(
            f"cannot reserve {num_bytes} bytes for a layer's KV cache ({error}); "
            "use a smaller --kv-cache-memory-bytes"
        ) from error
    return torch.frombuffer(memory, dtype=dtype, count=count).reshape(shape)
