"""One batch job as it is kept.

One job: its data, its states and what may follow what. Knows neither files nor requests.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class JobStatus(StrEnum):
    """How far a job is; the values are the OpenAI dialect's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


_S = JobStatus
#: What may follow what.
TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    _S.VALIDATING: frozenset({_S.IN_PROGRESS, _S.FAILED, _S.CANCELLING}),
    _S.IN_PROGRESS: frozenset({_S.FINALIZING, _S.CANCELLING, _S.FAILED}),
    # What is written now is whole: there is nothing left to cancel.
    _S.FINALIZING: frozenset({_S.COMPLETED, _S.EXPIRED, _S.FAILED}),
    _S.CANCELLING: frozenset({_S.CANCELLED, _S.FAILED}),
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.CANCELLED: frozenset(),
}
TERMINAL = frozenset(status for status, followers in TRANSITIONS.items() if not followers)


@dataclass(slots=True, kw_only=True)
class Job:
    """A job. Times are Unix seconds."""

    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] = field(default_factory=dict)
    status: JobStatus = JobStatus.VALIDATING
    #: By status: when it was reached.
    reached_at: dict[str, int] = field(default_factory=dict)
    #: What is wrong with the input: code, message, param, line.
    errors: list[dict[str, Any]] = field(default_factory=list)
    num_lines: int = 0
    num_completed: int = 0
    num_failed: int = 0
    has_output: bool = False
    has_errors: bool = False

    @property
    def is_over(self) -> bool:
        """Nothing will change."""
        return self.status in TERMINAL

    def enter(self, status: JobStatus, now: float) -> None:
        """Go on to `status`. Raises ValueError where that cannot follow."""
        if status not in TRANSITIONS[self.status]:
            raise ValueError(f"a job that is {self.status} cannot become {status}")
        self.status = status
        self.reached_at[status] = int(now)

    def to_document(self) -> dict[str, Any]:
        """As it stands on disk."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Job:
        """From what `to_document` gave."""
        return cls(**document | {"status": JobStatus(document["status"])})
