"""The bounded waiting queue: counts, limits and the delay a refused client is told; the order is the policy's.

The limits refuse new requests only. What was accepted once comes back (preempted, worker lost) however full it is.
"""

from __future__ import annotations

from collections import OrderedDict

from quire_scheduler.errors import QueueFull
from quire_scheduler.policies import Policy
from quire_scheduler.request import Sequence, SequenceStatus

MIN_RETRY_DELAY_S = 1.0
MAX_RETRY_DELAY_S = 60.0
# The drain rate is averaged over windows of this length, each new one weighing half.
RATE_WINDOW_S = 1.0


class DrainRate:
    """How many waiting tokens a second get admitted, lately."""

    def __init__(self) -> None:
        self.tokens_per_s = 0.0
        self._window_start_s: float | None = None
        self._window_tokens = 0

    def add(self, num_tokens: int, now_s: float) -> None:
        """Counts an admission."""
        if self._window_start_s is None:
            self._window_start_s = now_s
        elapsed_s = now_s - self._window_start_s
        if elapsed_s >= RATE_WINDOW_S:
            rate = self._window_tokens / elapsed_s
            self.tokens_per_s = rate if self.tokens_per_s == 0 else (self.tokens_per_s + rate) / 2
            self._window_start_s = now_s
            self._window_tokens = 0
        self._window_tokens += num_tokens


class WaitingQueue:
    """Sequences that wait for a slot and blocks, in the policy's order; siblings that wait for a prompt are counted."""

    def __init__(self, policy: Policy, max_sequences: int, max_tokens: int) -> None:
        self.policy = policy
        self.max_sequences = max_sequences
        self.max_tokens = max_tokens
        # Siblings in state HELD: they will want a slot, but their prompt is counted once, with sequence 0.
        self.num_held = 0
        self.num_tokens = 0
        self.drain_rate = DrainRate()
        # Waiting sequences with the tokens counted for each; roughly oldest first.
        self._tokens_of: OrderedDict[Sequence, int] = OrderedDict()

    def __len__(self) -> int:
        """Sequences that wait, held siblings included."""
        return len(self._tokens_of) + self.num_held

    def check_room(self, num_sequences: int, num_tokens: int) -> None:
        """Raises QueueFull unless a new request of that size fits. An empty queue takes any single request."""
        if not len(self):
            return
        if len(self) + num_sequences > self.max_sequences:
            raise QueueFull("sequences", self.max_sequences, len(self), self.retry_delay_s())
        if self.num_tokens + num_tokens > self.max_tokens:
            raise QueueFull("tokens", self.max_tokens, self.num_tokens, self.retry_delay_s())

    def retry_delay_s(self) -> float:
        """When half of what waits will have been admitted, at the present rate."""
        rate = self.drain_rate.tokens_per_s
        estimate_s = self.num_tokens / 2 / rate if rate > 0 else MIN_RETRY_DELAY_S
        return min(max(estimate_s, MIN_RETRY_DELAY_S), MAX_RETRY_DELAY_S)

    def push(self, sequence: Sequence) -> None:
        """Adds a sequence in state WAITING or PREEMPTED."""
        tokens = sequence.num_tokens
        self._tokens_of[sequence] = tokens
        if sequence.status is SequenceStatus.PREEMPTED:
            self._tokens_of.move_to_end(sequence, last=False)
        self.num_tokens += tokens
        self.policy.push(sequence)

    def hold(self, sequence: Sequence) -> None:
        """Counts a sequence in state HELD."""
        assert sequence.status is SequenceStatus.HELD, f"{sequence} is not held"
        self.num_held += 1

    def release(self, sequence: Sequence) -> None:
        """A held sequence waits in order from now on."""
        self.num_held -= 1
        sequence.move_to(SequenceStatus.WAITING)
        self.push(sequence)

    def peek(self) -> Sequence | None:
        """The next to admit."""
        return self.policy.peek()

    def remove(self, sequence: Sequence) -> int:
        """Takes out a sequence that is admitted or ends, held or waiting; answers the tokens it was counted with."""
        if sequence.status is SequenceStatus.HELD:
            self.num_held -= 1
            return 0
        tokens = self._tokens_of.pop(sequence)
        self.num_tokens -= tokens
        self.policy.remove(sequence)
        return tokens

    def admit(self, sequence: Sequence, now_s: float) -> None:
        """Takes out a sequence that gets a slot."""
        self.drain_rate.add(self.remove(sequence), now_s)

    def oldest_arrival_s(self) -> float | None:
        """When the longest-waiting request arrived."""
        for sequence in self._tokens_of:
            return sequence.request.arrival_s
        return None
