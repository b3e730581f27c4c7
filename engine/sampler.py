"""``Sampler``: logits to tokens, for a batch whose rows know nothing of each other.

All is computed in float32, and whatever is random row by row, so a row's token cannot depend on
its neighbours. Each request draws from a generator of its own; making one is the model runner's.

Random rows are taken one at a time through a buffer that stays in the processor's cache: over
whole batches the same operations wait for memory, and took five times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from hookserve.hookspecs.errors import PluginError, describe_error
from hookserve.hookspecs.notify_loop import caught
from hookserve.ops.op_references import GREEDY_TEMPERATURE

from .logit_edits import LogitEdits
from .logprobs import compute_logprobs
from .messages import TokenLogprobs
from .penalties import Row
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from hookserve.ops.op_function import OpFunction

    from .processor_set import ProcessorSet

_HOTTEST = float(np.finfo(np.float32).max)

_CHUNK = 256
"""Weights are summed by chunks first; only the one that a draw falls into is looked at closely."""
_SORTABLE = 2048
"""So many weights are sorted at once rather than divided further."""
_FEW = 4096
"""Up to so many best values are found faster by torch's top-k than by numpy's partition."""


@dataclass(slots=True)
class SamplingMetadata:
    """How each row is sampled; every list has one entry for each row, and a dict has those rows
    that need it."""

    temperature: list[float]
    top_p: list[float]
    """1 is off."""
    top_k: list[int]
    """0 is off."""
    min_p: list[float]
    """0 is off."""
    generators: list[torch.Generator]
    all_greedy: bool
    edits: dict[int, LogitEdits]
    num_logprobs: dict[int, int]
    """-1 is all."""
    masks: dict[int, np.ndarray] = field(default_factory=dict)
    """What grammars allow, as in ``step.GrammarOutput``: int32 [words]."""
    processors: ProcessorSet | None = None
    """Plugins' processors, told of these rows; ``None``: there are none."""
    drawn: dict[int, float] = field(default_factory=dict)
    """What ``draw`` has given in the sampler's call that runs."""

    @classmethod
    def from_params(
        cls,
        params: list[SamplingParams],
        generators: list[torch.Generator],
        edits: Sequence[LogitEdits | None] = (),
    ) -> SamplingMetadata:
        # Divided by infinity, what is impossible would be no number.
        temperature = [min(p.temperature, _HOTTEST) for p in params]
        return cls(
            temperature=temperature,
            top_p=[p.top_p for p in params],
            top_k=[max(0, p.top_k) for p in params],
            min_p=[p.min_p for p in params],
            generators=generators,
            all_greedy=all(t < GREEDY_TEMPERATURE for t in temperature),
            edits={row: e for row, e in enumerate(edits) if e is not None and e.acts},
            num_logprobs={r: p.logprobs for r, p in enumerate(params) if p.logprobs is not None},
        )

    def draw(self, row: int) -> float:
        """The row's random number, in [0, 1); the same in all of one call of the sampler."""
        found = self.drawn.get(row)
        if found is None:
            found = torch.rand((), dtype=torch.float64, generator=self.generators[row]).item()
            self.drawn[row] = found
        return found


@dataclass(slots=True)
class SamplerOutput:
    sampled_token_ids: torch.Tensor
    """[rows, 1] int64, on the CPU."""
    errors: dict[int, str] = field(default_factory=dict)
    """Rows that could not be sampled; their token means nothing."""
    refused: set[int] = field(default_factory=set)
    """Those of them whose request asked for what cannot be."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """Rows that asked for them."""


class Sampler:
    """Keeps nothing of a step; a subclass or a patch may replace ``forward``."""

    op: OpFunction | None = None
    """The op ``sampling`` of the model, once it is built."""

    def forward(self, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """
        Args:
            logits: [rows, vocab] of any floating type; not changed.
            metadata: for the same rows.
        """
        metadata.drawn.clear()
        values = logits.float().cpu()
        wrong = self._find_errors(values)
        refusals: dict[int, str] = {}
        rows = values.numpy()
        # numpy's is vectorised: 0.1 ms for 32 rows of 49152, where torch's takes 1.3 ms.
        token_ids = rows.argmax(axis=-1)
        if self.op is not None:
            self.op.row.calls += 1
        if metadata.processors is not None:
            refusals = self._process(token_ids, values, wrong, metadata)
            wrong = {**metadata.processors.errors, **wrong}
        elif self._is_provided:
            refusals = self._replace_provided(token_ids, values, wrong, metadata)
        elif metadata.edits or metadata.masks or not metadata.all_greedy:
            refusals = self._replace(token_ids, rows, wrong, metadata)
        errors = wrong | refusals
        sampled = torch.from_numpy(token_ids)
        logprobs = {
            row: compute_logprobs(values[row : row + 1], sampled[row : row + 1], count)[0]
            for row, count in metadata.num_logprobs.items()
            if row not in errors
        }
        return SamplerOutput(sampled.unsqueeze(-1), errors, set(refusals), logprobs)

    def _replace(
        self,
        token_ids: np.ndarray,
        rows: np.ndarray,
        wrong: Collection[int],
        metadata: SamplingMetadata,
    ) -> dict[int, str]:
        """Put other tokens where the best one of the model's logits is not what is wanted.

        Args:
            token_ids: [rows], changed in place.
            rows: [rows, vocab] float32.
            wrong: rows to pass over.

        Returns: the rows whose edits leave nothing to choose from, and why.
        """
        refusals: dict[int, str] = {}
        weights = make_buffer(rows.shape[1])
        edited = np.empty(rows.shape[1], dtype=np.float32)
        for row, temperature in enumerate(metadata.temperature):
            edits, mask = metadata.edits.get(row), metadata.masks.get(row)
            is_random = temperature >= GREEDY_TEMPERATURE
            if row in wrong or not (edits or is_random or mask is not None):
                continue
            logits = rows[row]
            if edits is not None or mask is not None:
                np.copyto(edited, logits)
                if edits is not None:
                    edits.apply(edited)
                if mask is not None:
                    keep_allowed(edited, mask)
                logits = edited
                token_ids[row] = logits.argmax()
                if not np.isfinite(logits[token_ids[row]]):
                    refusals[row] = _describe_edited(logits[token_ids[row]], mask is not None)
                    continue
            if is_random:
                scale(logits, weights, temperature)
                token_ids[row] = self._draw(weights, len(logits), row, metadata)
        return refusals

    @property
    def _is_provided(self) -> bool:
        return self.op is not None and self.op.provided is not None

    def _replace_provided(
        self,
        token_ids: np.ndarray,
        values: torch.Tensor,
        wrong: Collection[int],
        metadata: SamplingMetadata,
    ) -> dict[int, str]:
        """As ``_replace``, by the op's provider for all rows that it takes."""
        final = values.clone()
        final[list(wrong)] = 0.0
        refusals = self._edit(final.numpy(), metadata, LogitEdits.apply)
        refusals |= self._mask(final.numpy(), metadata)
        if not self._ask_provider(token_ids, final, metadata.temperature, metadata):
            return self._replace(token_ids, values.numpy(), wrong, metadata)
        return {row: said for row, said in refusals.items() if row not in wrong}

    def _ask_provider(
        self,
        token_ids: np.ndarray,
        logits: torch.Tensor,
        temperature: Sequence[float],
        metadata: SamplingMetadata,
    ) -> bool:
        """Fill the tokens in by the op's provider; whether it takes these rows.

        Args:
            logits: [rows, vocab] float32, after all edits, the greatest of each row finite.

        Raises:
            hookserve.hookspecs.PluginError: it failed, or gave what are no tokens.
        """
        op = self.op
        assert op is not None and op.provided is not None, "the caller has looked"
        draws = [
            metadata.draw(row) if value >= GREEDY_TEMPERATURE else 0.0
            for row, value in enumerate(metadata.temperature)
        ]
        try:
            answer = op.provided(
                logits,
                torch.tensor(temperature),
                torch.tensor(metadata.top_k),
                torch.tensor(metadata.top_p, dtype=torch.float64),
                torch.tensor(metadata.min_p, dtype=torch.float64),
                torch.tensor(draws, dtype=torch.float64),
            )
            if answer is NotImplemented:
                return False
            tokens = answer.cpu().numpy()
            if tokens.shape != token_ids.shape or not _are_tokens(tokens, logits.shape[1]):
                raise ValueError(f"it gave {tokens!r:.80}; expected {len(token_ids)} tokens")
        except caught() as error:
            said = f"provider '{op.row.implementation}' of sampling: {describe_error(error)}"
            raise PluginError(op.row.owner, "run", said) from error
        token_ids[:] = tokens
        return True

    def _process(
        self,
        token_ids: np.ndarray,
        values: torch.Tensor,
        wrong: Collection[int],
        metadata: SamplingMetadata,
    ) -> dict[int, str]:
        """As ``_replace``, over the whole batch, with plugins' processors at their places.

        Args:
            values: [rows, vocab] float32; not changed.
        """
        plugins = metadata.processors
        assert plugins is not None, "the caller has looked"
        values = values.clone()
        values[list(wrong)] = 0.0
        refusals = self._edit(values.numpy(), metadata, LogitEdits.restrict)
        values = plugins.apply_early(values)
        refusals |= self._edit(values.numpy(), metadata, LogitEdits.penalize)
        refusals |= self._mask(values.numpy(), metadata)
        values = plugins.apply_slots(values)
        rows = values.numpy()
        token_ids[:] = rows.argmax(axis=-1)
        self._note_broken(rows, plugins)
        hot = [r for r, t in enumerate(metadata.temperature) if t >= GREEDY_TEMPERATURE]
        if hot and plugins.has_late:
            for row in hot:
                scale(rows[row], rows[row], metadata.temperature[row])
            rows = plugins.apply_late(values).numpy()
            self._note_broken(rows, plugins)
        self._draw_hot(token_ids, rows, hot, metadata)
        return {row: said for row, said in refusals.items() if row not in wrong}

    def _draw_hot(
        self,
        token_ids: np.ndarray,
        rows: np.ndarray,
        hot: Collection[int],
        metadata: SamplingMetadata,
    ) -> None:
        """Tokens of rows after plugins' processors: by the op's provider for all rows, or a draw
        for each of those that are random."""
        plugins = metadata.processors
        assert plugins is not None, "the caller has looked"
        temperature = list(metadata.temperature)
        if plugins.has_late:  # what they were given was divided already
            for row in hot:
                temperature[row] = 1.0
        final = torch.from_numpy(rows)
        if self._is_provided and self._ask_provider(token_ids, final, temperature, metadata):
            return
        weights = make_buffer(rows.shape[1])
        for row in hot:
            if row not in plugins.errors:
                scale(rows[row], weights, temperature[row])
                token_ids[row] = self._draw(weights, rows.shape[1], row, metadata)

    @staticmethod
    def _edit(
        rows: np.ndarray, metadata: SamplingMetadata, change: Callable[[LogitEdits, Row], None]
    ) -> dict[int, str]:
        """Make one change to each row that has edits; which of them it leaves nothing to choose
        from, and why. Those are zeros afterwards, which plugins can compute with."""
        refusals = {}
        for row, edits in metadata.edits.items():
            was_finite = np.isfinite(rows[row].max())
            change(edits, rows[row])
            greatest = rows[row].max()
            if was_finite and not np.isfinite(greatest):
                refusals[row] = _describe_edited(greatest)
                rows[row] = 0.0
        return refusals

    @staticmethod
    def _mask(rows: np.ndarray, metadata: SamplingMetadata) -> dict[int, str]:
        """Keep to the grammars; which rows are left with nothing to choose from, and why. Those are
        zeros afterwards."""
        refusals = {}
        for row, mask in metadata.masks.items():
            keep_allowed(rows[row], mask)
            if rows[row].max() == -np.inf:
                refusals[row] = _describe_edited(-np.inf, has_mask=True)
                rows[row] = 0.0
        return refusals

    @staticmethod
    def _note_broken(rows: np.ndarray, plugins: ProcessorSet) -> None:
        """Fail the rows of which plugins left nothing that could be sampled."""
        greatest = rows.max(axis=-1)
        for row in (~np.isfinite(greatest)).nonzero()[0].tolist():
            if greatest[row] == np.inf:  # one way to say that it must be this token
                np.minimum(rows[row], _HOTTEST, out=rows[row])
                continue
            plugins.errors.setdefault(
                row,
                "No token is left to choose for this request after the logits processors "
                f"({plugins.names}) and its own limits.",
            )
            rows[row] = 0.0

    @staticmethod
    def _find_errors(logits: torch.Tensor) -> dict[int, str]:
        # The greatest value of a row is NaN if any is, and -inf if nothing is possible.
        wrong = ~logits.amax(dim=-1).isfinite()
        if not wrong.any():
            return {}
        message = "The model's logits for this request are not finite numbers (NaN or infinite)."
        return dict.fromkeys(wrong.nonzero().flatten().tolist(), message)

    def _draw(self, weights: Row, vocab: int, row: int, metadata: SamplingMetadata) -> int:
        """One token by min-p, top-k, top-p, then a draw.

        Args:
            weights: a buffer of ``make_buffer`` that starts with what ``scale`` gave, for this call
                to overwrite.
            vocab: so much of it.
            row: the row's number in ``metadata``.
        """
        own = weights[:vocab]
        limit_top_k(own, metadata.top_k[row])
        np.exp(own, out=own)
        limit_min_p(own, metadata.min_p[row])
        limit_top_p(own, metadata.top_p[row])
        return pick(weights, metadata.draw(row))


def _are_tokens(tokens: np.ndarray, vocab: int) -> bool:
    return tokens.dtype.kind == "i" and bool(((tokens >= 0) & (tokens < vocab)).all())


def keep_allowed(logits: Row, mask: np.ndarray) -> None:
    """Set to -inf what a grammar does not allow.

    Args:
        logits: [at most vocab], changed in place.
        mask: int32 [ceil(vocab / 32)], as in ``step.GrammarOutput``.
    """
    bits = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little")
    logits[bits == 0] = -np.inf


def _describe_edited(greatest: float, has_mask: bool = False) -> str:
    """Why nothing can be sampled from edited logits of which this is the greatest."""
    if greatest == -np.inf:
        form = "the form of the text (structured_outputs), " if has_mask else ""
        return (
            f"No token is left to choose for this request: {form}allowed_token_ids, bad_words and "
            "min_tokens together exclude every token."
        )
    return "repetition_penalty takes the logits of this request out of the range of 32-bit numbers."


def scale(logits: Row, out: Row, temperature: float) -> None:
    """Distances to the best token, divided by the temperature.

    Args:
        logits: [vocab].
        out: [at least vocab]; may be ``logits``.
    """
    own = out[: len(logits)]
    # Distances first: dividing cannot overflow to the wrong side then.
    np.subtract(logits, logits.max(), out=own)
    np.divide(own, np.float32(temperature), out=own)


def make_buffer(vocab: int) -> Row:
    """[vocab, rounded up to whole chunks] zeros; what is behind the vocabulary stays zero."""
    return np.zeros(-(-vocab // _CHUNK) * _CHUNK, dtype=np.float32)


def limit_top_k(logits: Row, top_k: int) -> None:
    """Set all but the k greatest values to -inf. Values equal to the k-th stay, so that the
    result does not depend on how ties are ordered.

    Args:
        logits: [vocab], changed in place.
        top_k: 0 and anything from the vocabulary's size on is off.
    """
    if not 0 < top_k < len(logits):
        return
    if top_k <= _FEW:
        least = torch.from_numpy(logits).topk(top_k, sorted=False).values.min().item()
    else:
        place = len(logits) - top_k
        least = np.partition(logits, place)[place]
    logits[logits < least] = -np.inf


def limit_min_p(weights: Row, min_p: float) -> None:
    """Set to 0 what weighs less than the part ``min_p`` of the best token.

    Args:
        weights: [vocab], the best one's is 1; changed in place.
        min_p: in [0, 1]; 0 is off. It and top-k leave the same, whichever comes first.
    """
    if min_p > 0.0:
        weights[weights < np.float32(min_p)] = 0.0


def limit_top_p(weights: Row, top_p: float) -> None:
    """Set to 0 what is not in the smallest set of best tokens that has the part ``top_p`` of all
    weight. Values equal to the set's last stay.

    Args:
        weights: [vocab], not negative, changed in place; they need not sum to 1.
        top_p: in (0, 1]; 1 is off.
    """
    if top_p < 1.0:
        total = float(weights.sum(dtype=np.float64))
        weights[weights < _least_in_set(weights, top_p, total)] = 0.0


def _least_in_set(weights: Row, top_p: float, total: float) -> np.float32:
    """The least weight that is still in the set.

    Sorting a vocabulary takes milliseconds. What weighs less than (1 - p) of the average has less
    than 1 - p in all, so none of it is in the set; the rest is divided at a value in its middle
    until one side, which must hold the answer, is small.
    """
    # compress: indexing by a mask that follows no pattern takes three times as long.
    open_ = weights.compress(weights >= (1.0 - top_p) * total / len(weights))
    missing = top_p * total
    while len(open_) > _SORTABLE:
        middle = np.median(open_[:: len(open_) // 64])
        above = open_.compress(open_ > middle)
        weight = float(above.sum(dtype=np.float64))
        if weight >= missing:
            open_ = above
            continue
        rest = open_.compress(open_ <= middle)
        if len(rest) == len(open_):
            break  # all that is left is equal, or nearly
        open_, missing = rest, missing - weight
    ordered = np.sort(open_)[::-1]
    # The set ends where what stands before a token reaches p.
    before = ordered.cumsum(dtype=np.float64) - ordered
    size = max(1, int((before < missing).sum()))
    least: np.float32 = ordered[size - 1]
    return least


def pick(weights: Row, draw: float) -> int:
    """The place at which the running sum of the weights passes the draw's part of all weight.

    Args:
        weights: [whole chunks], not negative, at least one positive.
        draw: in [0, 1).

    Returns: a place with a positive weight.
    """
    chunks = weights.reshape(-1, _CHUNK)
    running = chunks.sum(axis=1).cumsum(dtype=np.float64)
    # Rounding may not lift the draw to the whole: behind it there is no token.
    target = min(draw * running[-1], np.nextafter(running[-1], 0.0))
    chunk = int(running.searchsorted(target, side="right"))
    if chunk:
        target -= running[chunk - 1]
    inner = chunks[chunk].cumsum(dtype=np.float64)
    place = int(inner.searchsorted(min(target, np.nextafter(inner[-1], 0.0)), side="right"))
    return chunk * _CHUNK + place
