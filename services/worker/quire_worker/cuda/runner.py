"""DeviceRunner: carries out plans on the device without waiting for it. `launch` is one thread's, `finish` another's.

Decides nothing; knows neither gRPC nor threads. The host's tables run ahead of the device: they know how many tokens
each sequence has, not which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quire_worker.cuda.columns import ColumnBuilder, StepColumns
from quire_worker.cuda.device_logprobs import DeviceLogprobs, PendingLogprobs
from quire_worker.cuda.device_sampling import DeviceSampling
from quire_worker.cuda.graphs import Size, StepGraphs
from quire_worker.cuda.model import DeviceModel
from quire_worker.cuda.operations import StepShape, Stream
from quire_worker.cuda.prompt_rows import PromptRows
from quire_worker.cuda.results import PendingTokens, ResultBuffers
from quire_worker.cuda.shared_prefix import PrefixFinder, SharedPrefix
from quire_worker.cuda.staging import Staging
from quire_worker.cuda.step_packing import PackedStep, Placement, StepPacker
from quire_worker.masks import MaskBox, Words
from quire_worker.slots import SlotTables
from quire_worker.step import (
    PromptLogprobs,
    StepOutcome,
    StepPlan,
    StepTimes,
)


@dataclass(frozen=True, slots=True)
class Launched:
    """A step under way. rows: which of `pending`'s entries are tokens; slots: of those."""

    step_id: int
    slots: NDArray[np.int64]
    rows: NDArray[np.int64]
    pending: PendingTokens
    started_ns: int
    launched_ns: int
    logprobs: PendingLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    mask_wait_us: int = 0


class DeviceRunner:
    """Runs plans in order."""

    def __init__(self, model: DeviceModel, staging: Staging, graphs: StepGraphs, max_tokens: int) -> None:
        limits = model.limits
        # Where masks of plans with masked slots arrive; how long the step being launched waited for them.
        self.masks = MaskBox()
        self._mask_wait_us = 0
        self._model = model
        self._staging = staging
        self._graphs = graphs
        self._packer = StepPacker(staging, limits, model.tile_tokens)
        self._tables = SlotTables(limits)
        self._columns = ColumnBuilder(self._tables, max_tokens)
        self._prefixes = PrefixFinder(self._tables)
        rows, device = limits.max_num_seqs, model.loaded.device
        self._sampling = DeviceSampling(model.loaded.spec.vocab_size, rows, device)
        self._logprobs = DeviceLogprobs(rows, device)
        self._prompts = PromptRows(rows)
        self._results = ResultBuffers(limits.max_num_seqs, model.loaded.device)
        # When the step before this one was known to have ended; written by `finish`.
        self._last_end_ns = 0

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Start a step. ValueError: a plan that contradicts what the worker knows; the slots are then to be reset."""
        started = time.perf_counter_ns()
        self._admit(plan)
        columns = self._columns.build(plan)
        self._check_copies(plan)
        # A graph samples all rows of its size; hidden states of a prompt are for the eager way.
        prefix = self._shared_prefix(plan, columns)
        size = None
        if not self._prompts.are_wanted(plan.slots):
            size = self._graphs.size_for(columns, has_prefix=prefix is not None)
        self._staging.begin()
        packed = self._packer.pack(
            plan,
            columns,
            [new.sampling for new in plan.new_sequences],
            is_graph=size is not None,
            prefix=prefix,
        )
        self._staging.send()
        self._apply(packed)
        if size is None:
            return self._run_eager(plan, columns, packed, started)
        return self._run_graph(plan, columns, size, started)

    def _shared_prefix(self, plan: StepPlan, columns: StepColumns) -> SharedPrefix | None:
        if plan.new_sequences or plan.released_slots:
            self._prefixes.forget()
        if not self._graphs.can_share or columns.num_leading_decodes < len(columns.slots):
            return None
        return self._prefixes.find(columns)

    def finish(self, launched: Launched) -> StepOutcome:
        """Wait for a step's tokens. Steps are finished in the order in which they were launched."""
        tokens = launched.pending.wait()[launched.rows]
        ended = time.perf_counter_ns()
        began = max(launched.started_ns, self._last_end_ns)
        self._last_end_ns = ended
        return StepOutcome(
            step_id=launched.step_id,
            slots=launched.slots.tolist(),
            token_ids=tokens.tolist(),
            logprobs=None if launched.logprobs is None else launched.logprobs.columns(),
            prompt_logprobs=launched.prompt_logprobs,
            times=StepTimes(
                prepare_us=(launched.launched_ns - launched.started_ns) // 1000,
                forward_us=(ended - began) // 1000 - launched.mask_wait_us,
                mask_wait_us=launched.mask_wait_us,
            ),
            sampled_at_unix_us=time.time_ns() // 1000,
        )

    def reset(self) -> None:
        """Forget every sequence; blocks keep their content."""
        self._tables.release_all()
        self._prefixes.forget()
        self._prompts.forget_all()
        self.masks.reset()

    def _admit(self, plan: StepPlan) -> None:
        """Releases and new sequences into the tables."""
        for slot in plan.released_slots:
            self._tables.release(slot)
            self._prompts.forget(slot)
        for sequence in plan.new_sequences:
            self._tables.place(sequence)
            self._prompts.admit(sequence)
            self._sampling.admit(sequence)
            self._logprobs.admit(sequence)

    def _check_copies(self, plan: StepPlan) -> None:
        sources, targets = plan.copy_source_block_ids, plan.copy_target_block_ids
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} copy sources for {len(targets)} targets")
        for block_id in (*sources, *targets):
            if not 0 < block_id < self._model.limits.num_blocks:
                raise ValueError(f"block id {block_id} is outside 1..{self._model.limits.num_blocks - 1}")

    def _apply(self, packed: PackedStep) -> None:
        if packed.copy_sources is not None and packed.copy_targets is not None:
            # By their bits: eight-bit floats can't be put in place by index everywhere.
            pool = self._model.pool
            pool = pool.view(torch.uint8) if pool.element_size() == 1 else pool
            pool[:, packed.copy_targets.long()] = pool[:, packed.copy_sources.long()]
        if packed.placement is not None:
            self._place(packed.placement)
        if packed.far_blocks is not None:
            slots, entries, ids = packed.far_blocks
            self._model.tables.block_tables[slots.long(), entries.long()] = ids

    def _place(self, placement: Placement) -> None:
        model, slots = self._model, placement.slots.long()
        model.loaded.kernels.place_sequences(
            placement.packed, model.tables, num_sequences=placement.num_sequences,
            max_tokens=placement.max_tokens, max_blocks=placement.max_blocks,
        )  # fmt: skip
        sampling = model.sampling
        sampling.temperature[slots], sampling.top_p[slots], sampling.min_p[slots] = placement.floats.unbind()
        sampling.top_k[slots], sampling.sequence_index[slots] = placement.integers.unbind()
        sampling.seed[slots] = placement.seeds

    def _run_graph(self, plan: StepPlan, columns: StepColumns, size: Size, started: int) -> Launched:
        rows = np.flatnonzero(columns.samples)
        slots, num_rows = columns.slots[rows], len(columns.slots)
        filtered = self._sampling.is_filtered(slots)
        logits = self._graphs.compute(size)
        if plan.masked_slots or self._sampling.adjusts(slots):
            here = self._model.packed_slots(num_rows)
            self._sample_adjusted(plan, logits[:num_rows], here, columns.slots, filtered)
        else:
            self._graphs.sample(size, filtered=filtered)
        logprobs = self._logprobs.start(logits, self._model.chosen, slots, rows)
        pending = self._results.start(self._model.chosen[:num_rows])
        return self._launched(plan, slots, rows, pending, started, logprobs)

    def _run_eager(self, plan: StepPlan, columns: StepColumns, packed: PackedStep, started: int) -> Launched:
        model, rows = self._model, np.flatnonzero(columns.samples)
        slots = columns.slots[rows]
        assert packed.sample_rows is not None and packed.sample_slots is not None
        if len(columns.slots) == 0:
            return self._launched(
                plan, slots, rows, PendingTokens(np.zeros(0, dtype=np.int32), None), started
            )
        longest = int(columns.counts.max())
        wants_prompt = self._prompts.are_wanted(plan.slots)
        model.prepare(len(columns.slots), longest)
        stream = model.compute(
            StepShape(
                num_tokens=columns.num_tokens,
                num_rows=len(columns.slots),
                num_decodes=columns.num_leading_decodes,
                max_query_len=longest,
                kept_rows=None if wants_prompt or not len(rows) else packed.sample_rows,
                num_cached=int(columns.starts[columns.num_leading_decodes :].sum()),
            )
        )
        if not len(rows) and not wants_prompt:
            return self._launched(plan, slots, rows, self._results.start(model.chosen[:0]), started)
        is_kept = len(stream.residual) == len(rows) != columns.num_tokens
        logits = model.logits(stream, None if is_kept else packed.sample_rows)
        filtered = self._sampling.is_filtered(slots)
        if plan.masked_slots or self._sampling.adjusts(slots):
            self._sample_adjusted(plan, logits, packed.sample_slots, slots, filtered)
        else:
            model.sample(logits, packed.sample_slots, filtered=filtered)
        places = np.arange(len(rows))
        logprobs = self._logprobs.start(logits, model.chosen, slots, places)
        pending = self._results.start(model.chosen[: len(rows)])
        prompts = None
        if wants_prompt:
            starts = np.append(columns.query_starts, columns.num_tokens)
            prompts = self._prompts.collect(columns.slots, starts, self._rows_of(stream))
        return self._launched(plan, slots, places, pending, started, logprobs, prompts)

    def _rows_of(self, stream: Stream) -> Callable[[NDArray[np.int32]], torch.Tensor]:
        def of_rows(rows: NDArray[np.int32]) -> torch.Tensor:
            return self._model.logits(stream, torch.from_numpy(rows).to(self._model.loaded.device))

        return of_rows

    def _sample_adjusted(
        self,
        plan: StepPlan,
        logits: torch.Tensor,
        slots: torch.Tensor,
        host_slots: NDArray[np.int64],
        filtered: bool,
    ) -> None:
        """Sample rows of which some ask for more than filters. The decoder is under way: only this waits for masks."""
        model = self._model
        masks: Mapping[int, Words] = {}
        if plan.masked_slots:
            masks, self._mask_wait_us = self.masks.wait(plan.step_id, plan.masked_slots)
        adjusted = self._sampling.adjust(model.loaded.kernels, logits, slots, host_slots, model.tables, masks)
        model.sample(adjusted, slots, filtered=filtered)

    def _launched(
        self,
        plan: StepPlan,
        slots: NDArray[np.int64],
        rows: NDArray[np.int64],
        pending: PendingTokens,
        started: int,
        logprobs: PendingLogprobs | None = None,
        prompt_logprobs: PromptLogprobs | None = None,
    ) -> Launched:
        now = time.perf_counter_ns()
        mask_wait_us, self._mask_wait_us = self._mask_wait_us, 0
        return Launched(
            plan.step_id, slots, rows, pending, started, now, logprobs, prompt_logprobs, mask_wait_us
        )
