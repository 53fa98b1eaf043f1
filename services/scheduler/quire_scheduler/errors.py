"""What the scheduler refuses or fails with; it knows nothing of gRPC statuses."""

from __future__ import annotations


class SchedulerError(Exception):
    """Base of everything the scheduler's domain raises on purpose."""


class InvalidRequest(SchedulerError, ValueError):
    """A request that can never run: names the field, the limit and the value."""

    def __init__(self, field: str, limit: object, value: object, *, message: str = "") -> None:
        """message: in place of the sentence that field, limit and value make."""
        super().__init__(message or f"{field} must be {limit}, got {value}")
        self.message = message
        self.field = field
        self.limit = limit
        self.value = value


class UnsupportedParameter(SchedulerError):
    """A parameter that this scheduler does not serve."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class TokenizerMissing(SchedulerError):
    """A constraint needs the tokenizer's vocabulary, and no tokenizer has answered."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"constraint: the tokenizer has not told its vocabulary within {timeout_s:g} s")


class QueueFull(SchedulerError):
    """The waiting queue is at its limit; the same request may fit after `retry_delay_s`."""

    def __init__(self, what: str, limit: int, value: int, retry_delay_s: float) -> None:
        super().__init__(f"queue full: {value} waiting {what}, limit {limit}; retry in {retry_delay_s:.1f} s")
        self.what = what
        self.limit = limit
        self.value = value
        self.retry_delay_s = retry_delay_s


class Draining(SchedulerError):
    """The scheduler finishes what it has and takes no new request."""

    def __init__(self) -> None:
        super().__init__("the scheduler is draining and takes no new request")


class UnexpectedResult(SchedulerError):
    """A step result that does not answer the oldest step in flight: the worker broke the contract."""


class IllegalTransition(SchedulerError):
    """A sequence was moved between states that have no edge: a bug of ours."""
