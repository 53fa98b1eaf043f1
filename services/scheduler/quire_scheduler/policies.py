"""In which order waiting sequences are admitted and running ones preempted; knows nothing of blocks, budgets or steps.

A policy is one object; the planner asks it and never looks at priorities or tenants itself. In every policy a sequence
keeps its age (order of arrival) for life and sequences are admitted without skipping, so that a preempted sequence is
older than all that waits in its priority: it stands at the front without being told to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Protocol

from quire_scheduler.request import Sequence, SequenceStatus

Key = tuple[int, ...]


class Policy(Protocol):
    """Order of admission and preemption."""

    # Whether `charge` wants to be told of every token.
    charges_tokens: bool

    def push(self, sequence: Sequence) -> None:
        """Adds a sequence that waits: new, sibling, or preempted (told by its status)."""
        ...

    def peek(self) -> Sequence | None:
        """The next to admit, None when nothing waits."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Takes a pushed sequence out, wherever it stands: admitted or ended."""
        ...

    def victim_key(self, sequence: Sequence) -> Key:
        """Among running sequences the one with the greatest key is preempted first."""
        ...

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Tokens planned for a tenant (only called where `charges_tokens`)."""
        ...


class SequenceHeap:
    """A heap of sequences by key, from which any can be removed: it is marked, and skipped when it surfaces."""

    def __init__(self, key: Callable[[Sequence], Key]) -> None:
        self._key = key
        # [key, push count (breaks ties between an entry and its stale forerunner), sequence or None when removed]
        self._heap: list[tuple[Key, int, list[Sequence | None]]] = []
        self._num_pushes = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, sequence: Sequence) -> None:
        """Adds the sequence."""
        cell: list[Sequence | None] = [sequence]
        sequence.queue_entry = (self, cell)
        self._num_pushes += 1
        self._size += 1
        heappush(self._heap, (self._key(sequence), self._num_pushes, cell))

    def peek(self) -> Sequence | None:
        """The least one."""
        heap = self._heap
        while heap:
            sequence = heap[0][2][0]
            if sequence is not None:
                return sequence
            heappop(heap)
        return None

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that is in this heap."""
        _, cell = sequence.queue_entry
        cell[0] = None
        sequence.queue_entry = None
        self._size -= 1


class FcfsPolicy:
    """First come, first served; priorities are ignored."""

    charges_tokens = False

    def __init__(self) -> None:
        self._heap = SequenceHeap(self.victim_key)

    def push(self, sequence: Sequence) -> None:
        """See Policy."""
        self._heap.push(sequence)

    def peek(self) -> Sequence | None:
        """See Policy."""
        return self._heap.peek()

    def remove(self, sequence: Sequence) -> None:
        """See Policy."""
        self._heap.remove(sequence)

    def victim_key(self, sequence: Sequence) -> Key:
        """The youngest goes first."""
        return sequence.order

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Nothing to pay."""


class PriorityPolicy(FcfsPolicy):
    """Lower priority number first, then first come, first served."""

    def victim_key(self, sequence: Sequence) -> Key:
        """The youngest of the lowest priority (highest number) goes first."""
        return (sequence.request.priority, *sequence.order)


class FairPolicy:
    """Per-tenant virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", 2024).

    The tenant with the least service is admitted next; prompt tokens count 1, output tokens 2 (they cost a step each).
    A tenant that comes back from idling is lifted to the least counter among those that wait, so that idling saves
    nothing up. Inside a tenant: priority, then age. Preempted sequences come before everything: their tenant has
    paid for them already.
    """

    charges_tokens = True
    PROMPT_WEIGHT = 1
    OUTPUT_WEIGHT = 2
    # Counters kept for tenants that are away; beyond it those that lifting would overwrite anyway are forgotten.
    MAX_COUNTERS = 4096

    def __init__(self) -> None:
        self._returning = SequenceHeap(self.victim_key)
        self._waiting: dict[str, SequenceHeap] = {}
        self._counters: dict[str, int] = {}
        # Service of the tenant last served: where newcomers start when nobody waits.
        self._floor = 0

    @property
    def counters(self) -> Mapping[str, int]:
        """Service per tenant, weighted tokens."""
        return self._counters

    def push(self, sequence: Sequence) -> None:
        """See Policy."""
        if sequence.status is SequenceStatus.PREEMPTED:
            self._returning.push(sequence)
            return
        tenant = sequence.request.tenant
        heap = self._waiting.get(tenant)
        if heap is None:
            heap = self._waiting[tenant] = self._join(tenant)
        heap.push(sequence)

    def _join(self, tenant: str) -> SequenceHeap:
        if self._waiting:
            self._floor = min(self._counters[other] for other in self._waiting)
        self._counters[tenant] = max(self._counters.get(tenant, 0), self._floor)
        if len(self._counters) > self.MAX_COUNTERS:
            self._counters = {
                name: count
                for name, count in self._counters.items()
                if count > self._floor or name == tenant or name in self._waiting
            }
        return SequenceHeap(self.victim_key)

    def peek(self) -> Sequence | None:
        """See Policy."""
        returning = self._returning.peek()
        if returning is not None:
            return returning
        if not self._waiting:
            return None
        tenant = min(self._waiting, key=self._counters.__getitem__)
        return self._waiting[tenant].peek()

    def remove(self, sequence: Sequence) -> None:
        """See Policy."""
        heap, _ = sequence.queue_entry
        heap.remove(sequence)
        tenant = sequence.request.tenant
        if heap is not self._returning and len(heap) == 0:
            del self._waiting[tenant]
            self._floor = max(self._floor, self._counters[tenant])

    def victim_key(self, sequence: Sequence) -> Key:
        """The youngest of the lowest priority goes first: preemption is about memory, not about shares."""
        return (sequence.request.priority, *sequence.order)

    def charge(self, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Adds to the tenant's counter."""
        cost = num_prompt_tokens * self.PROMPT_WEIGHT + num_output_tokens * self.OUTPUT_WEIGHT
        self._counters[tenant] = self._counters.get(tenant, self._floor) + cost


def make_policy(name: str) -> Policy:
    """The policy of that name: fcfs, priority or fair."""
    makers: dict[str, Callable[[], Policy]] = {
        "fcfs": FcfsPolicy,
        "priority": PriorityPolicy,
        "fair": FairPolicy,
    }
    if name not in makers:
        raise ValueError(f"policy must be one of {', '.join(makers)}, got {name}")
    return makers[name]()
