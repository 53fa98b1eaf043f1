"""EncoderRunner: carries out one plan over an encoder: whole texts in, vectors out. Decides nothing.

Fulfils engine.Runner. Keeps no block and no table: a sequence lives in the one step that computes it.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from quire_worker.encoders.model import Encoder
from quire_worker.pooling.params import (
    PooledVectors,
    PoolingDefaults,
    PoolingMethod,
    PoolingParams,
    PoolingTask,
    Vector,
)
from quire_worker.pooling.vectors import class_values, embedding, pooled
from quire_worker.step import NewSequence, StepOutcome, StepPlan, StepTimes


class EncoderRunner:
    """Runs plans, one at a time, on one thread."""

    def __init__(self, encoder: Encoder, defaults: PoolingDefaults, device: torch.device) -> None:
        self._encoder = encoder
        self._defaults = defaults
        self._device = device
        self._sequences: dict[int, NewSequence] = {}

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one step to its end. ValueError: a plan that no encoder can run; the slots are then to be reset."""
        started = time.perf_counter_ns()
        for slot in plan.released_slots:
            if self._sequences.pop(slot, None) is None:
                raise ValueError(f"slot {slot} is released but empty")
        for sequence in plan.new_sequences:
            self._check(sequence)
            self._sequences[sequence.slot] = sequence
        batch = self._batch(plan)
        prepared = time.perf_counter_ns()
        vectors = self._vectors(batch) if batch else []
        computed = time.perf_counter_ns()
        return StepOutcome(
            step_id=plan.step_id,
            slots=[],
            token_ids=[],
            pooled=PooledVectors([sequence.slot for sequence in batch], vectors) if batch else None,
            times=StepTimes(
                prepare_us=(prepared - started) // 1000, forward_us=(computed - prepared) // 1000
            ),
            sampled_at_unix_us=time.time_ns() // 1000,
        )

    def reset(self) -> None:
        """Forget every sequence."""
        self._sequences.clear()

    def _check(self, sequence: NewSequence) -> None:
        spec, where = self._encoder.spec, f"slot {sequence.slot}"
        params = sequence.pooling
        if params is None:
            raise ValueError(f"{where}: an encoder generates nothing")
        if (spec.classifier is not None) != (params.task is PoolingTask.CLASSIFY):
            raise ValueError(f"{where}: this model does not make {params.task.name} vectors")
        if sequence.slot in self._sequences:
            raise ValueError(f"{where} is still occupied")
        if sequence.num_computed_tokens or not 1 <= len(sequence.token_ids) <= spec.max_model_len:
            raise ValueError(
                f"{where}: {len(sequence.token_ids)} tokens, {sequence.num_computed_tokens} of them computed; a whole "
                f"text of 1 to {spec.max_model_len} is wanted"
            )

    def _batch(self, plan: StepPlan) -> list[NewSequence]:
        batch = []
        for slot, count in zip(plan.slots, plan.num_new_tokens, strict=True):
            sequence = self._sequences.get(slot)
            if sequence is None or count != len(sequence.token_ids):
                known = 0 if sequence is None else len(sequence.token_ids)
                raise ValueError(
                    f"slot {slot}: {count} tokens of a text of {known}; encoders take whole texts"
                )
            batch.append(sequence)
        return batch

    def _vectors(self, batch: list[NewSequence]) -> list[Vector]:
        lengths = [len(sequence.token_ids) for sequence in batch]
        token_ids = np.concatenate([np.asarray(s.token_ids, dtype=np.int64) for s in batch])
        token_types = np.concatenate([self._types(s) for s in batch])
        hidden = self._encoder.hidden(
            torch.from_numpy(token_ids).to(self._device),
            torch.from_numpy(token_types).to(self._device),
            lengths,
        )
        ends = np.cumsum(lengths).tolist()
        starts = [end - length for end, length in zip(ends, lengths, strict=True)]
        params = [self._params(sequence) for sequence in batch]
        classifier = self._encoder.spec.classifier
        if classifier is not None:
            logits = self._encoder.class_logits(hidden[starts]).float().cpu().numpy()
            return [
                class_values(row, p, classifier.activation) for row, p in zip(logits, params, strict=True)
            ]
        states = hidden.float().cpu().numpy()
        spans = zip(starts, ends, params, strict=True)
        return [self._embedding(states[start:end], p) for start, end, p in spans]

    def _embedding(self, states: Vector, params: PoolingParams) -> Vector:
        defaults = self._defaults
        if params.task is PoolingTask.TOKEN_EMBED:
            return embedding(states, params, normalize=defaults.normalize)
        return embedding(pooled(states, defaults.method), params, normalize=defaults.normalize)

    def _types(self, sequence: NewSequence) -> np.ndarray:
        """Token types: 1 from the second text on, where the model has two."""
        types = np.zeros(len(sequence.token_ids), dtype=np.int64)
        start = self._params(sequence).second_text_start
        if start is not None and self._encoder.spec.num_token_types > 1:
            types[start:] = 1
        return types

    @staticmethod
    def _params(sequence: NewSequence) -> PoolingParams:
        assert sequence.pooling is not None, "checked when it was placed"
        return sequence.pooling


# How an encoder pools where its files do not say: nearly all that were trained for embeddings take the mean.
DEFAULT_METHOD = PoolingMethod.MEAN
