"""The running set: which sequence has which slot, in which column order, and the batch's cached columns.

It knows nothing of blocks, budgets or why a sequence joins or leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire_scheduler.request import Sequence
from quire_scheduler.step import SamplingRows


def make_rows(sequences: list[Sequence]) -> SamplingRows:
    """Columns of these sequences."""
    owners = {sequence.request.owner for sequence in sequences}
    return SamplingRows(
        sequences=sequences,
        slots=[sequence.slot for sequence in sequences],
        handles=[sequence.request.handle for sequence in sequences],
        sequence_indices=[sequence.index for sequence in sequences],
        ones=[1] * len(sequences),
        is_single_owner=len(owners) <= 1,
        masked=[sequence for sequence in sequences if sequence.masker is not None],
    )


def join_rows(rows: SamplingRows, more: list[Sequence]) -> SamplingRows:
    """Columns of `rows` and then `more`, as new lists."""
    tail = make_rows(more)
    same_owner = not rows.sequences or not more or rows.sequences[0].request.owner == more[0].request.owner
    return SamplingRows(
        sequences=rows.sequences + tail.sequences,
        slots=rows.slots + tail.slots,
        handles=rows.handles + tail.handles,
        sequence_indices=rows.sequence_indices + tail.sequence_indices,
        ones=rows.ones + tail.ones,
        is_single_owner=rows.is_single_owner and tail.is_single_owner and same_owner,
        masked=rows.masked + tail.masked,
    )


class RunningSet:
    """Sequences with a slot: decoding (one token a step), prefilling, or finishing.

    A finishing sequence has every token it may have in flight: it is not planned again and ends with the next results.
    A slot may be given to another sequence in the very plan that releases it, since a plan names its released slots
    first and results are matched to the plan's own sequences, never to slots.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.decoding: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.finishing: dict[Sequence, None] = {}
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._released_slots: list[int] = []
        self._rows: SamplingRows | None = None

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prefilling) + len(self.finishing)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.decoding
        yield from self.prefilling
        yield from self.finishing

    @property
    def has_free_slot(self) -> bool:
        """Whether one more sequence can run."""
        return bool(self._free_slots)

    def preemptible(self) -> Iterator[Sequence]:
        """Sequences whose preemption frees memory sooner than their own end does."""
        yield from self.decoding
        yield from self.prefilling

    def start(self, sequence: Sequence) -> None:
        """Gives the sequence a slot; it prefills. The caller has checked `has_free_slot`."""
        sequence.slot = self._free_slots.pop()
        self.prefilling.append(sequence)

    def promote(self, sequences: Iterable[Sequence], rows: SamplingRows | None) -> None:
        """These have all their tokens planned: they decode from the next step on, behind those that do already.

        `rows`: the columns of the set that results, where the caller has them.
        """
        for sequence in sequences:
            self.prefilling.remove(sequence)
            self.decoding.append(sequence)
        self._rows = rows

    def set_finishing(self, sequence: Sequence) -> None:
        """A decoding sequence has all the tokens it may have in flight."""
        self.decoding.remove(sequence)
        self.finishing[sequence] = None
        self._rows = None

    def set_awaited(self, sequence: Sequence) -> None:
        """A prefilling sequence whose answer is a vector is planned to its end: its step brings it."""
        self.prefilling.remove(sequence)
        self.finishing[sequence] = None

    def remove(self, sequence: Sequence) -> None:
        """The sequence ended or is preempted: its slot comes free with the next plan."""
        if sequence in self.finishing:
            del self.finishing[sequence]
        elif sequence in self.prefilling:
            self.prefilling.remove(sequence)
        else:
            self.decoding.remove(sequence)
            self._rows = None
        self._free_slots.append(sequence.slot)
        self._released_slots.append(sequence.slot)
        sequence.slot = -1

    def take_released_slots(self) -> list[int]:
        """Slots released since the last call."""
        released, self._released_slots = self._released_slots, []
        return released

    def decode_rows(self) -> SamplingRows:
        """Columns of the decoding sequences; the same object as long as the set stays the same."""
        if self._rows is None:
            self._rows = make_rows(self.decoding.copy())
        return self._rows
