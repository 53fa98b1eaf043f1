"""Everything that can go wrong in a way a caller should know, as exceptions.

One job: name the causes. Domain code raises these; it must not know how they travel (error_details.py has the one
table to gRPC statuses). Each class lists in `fields` the attributes that cross the wire with it, so that the other
side can raise the same exception again.
"""

from __future__ import annotations

from typing import ClassVar


class QuireError(Exception):
    """Base of all causes. `str(error)` is a sentence fit for the client."""

    #: Attributes that travel with the error, and their types; also the constructor's keyword arguments.
    fields: ClassVar[dict[str, type]] = {}
    #: Seconds after which trying again makes sense; None when it does not, or nobody can tell.
    retry_delay_s: float | None = None

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "internal error")

    @property
    def message(self) -> str:
        """The sentence for the client."""
        return str(self.args[0])


class InternalError(QuireError):
    """A bug of ours. The client gets no details; the log has them."""


class InvalidRequest(QuireError):
    """A field of the request has a value outside its limit."""

    fields: ClassVar[dict[str, type]] = {"field": str, "limit": str, "value": str, "code": str}

    def __init__(
        self,
        field: str,
        limit: object = "",
        value: object = "",
        *,
        message: str = "",
        code: str = "invalid_value",
    ) -> None:
        """`field` as the client wrote it; `limit` in words ("1 to 128"); `code` a stable word for programs."""
        self.field, self.limit, self.value, self.code = field, str(limit), _shorten(value), code
        super().__init__(message or f"{field} must be {self.limit}, got {self.value}")


class Unsupported(QuireError):
    """The request uses a parameter, or a value of one, that is not served: refused by name, never ignored."""

    fields: ClassVar[dict[str, type]] = {"parameter": str}

    def __init__(self, parameter: str, *, message: str = "") -> None:
        self.parameter = parameter
        super().__init__(message or f"{parameter} is not supported")


class UnknownModel(QuireError):
    """The request names a model that is not served here."""

    fields: ClassVar[dict[str, type]] = {"model": str}

    def __init__(self, model: str, *, message: str = "") -> None:
        self.model = model
        super().__init__(message or f"The model `{model}` does not exist")


class UnknownRequest(QuireError):
    """A request id (or slot, or stream handle) that is not known, or is no longer."""

    fields: ClassVar[dict[str, type]] = {"request_id": str}

    def __init__(self, request_id: str, *, message: str = "") -> None:
        self.request_id = request_id
        super().__init__(message or f"request {request_id} is not known")


class DuplicateRequest(QuireError):
    """A request id that is in use already."""

    fields: ClassVar[dict[str, type]] = {"request_id": str}

    def __init__(self, request_id: str, *, message: str = "") -> None:
        self.request_id = request_id
        super().__init__(message or f"request {request_id} exists already")


class QueueFull(QuireError):
    """The bounded queue has no room: try again after `retry_delay_s`."""

    fields: ClassVar[dict[str, type]] = {"retry_delay_s": float}

    def __init__(self, retry_delay_s: float = 1.0, *, message: str = "") -> None:
        self.retry_delay_s = float(retry_delay_s)
        super().__init__(message or f"the queue is full, retry in {self.retry_delay_s:g} s")


class OutOfMemory(QuireError):
    """What was asked for does not fit; `needed_bytes` and `available_bytes` say by how much."""

    fields: ClassVar[dict[str, type]] = {"needed_bytes": int, "available_bytes": int}

    def __init__(self, needed_bytes: int, available_bytes: int, *, message: str = "") -> None:
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes
        super().__init__(message or f"{needed_bytes} bytes are needed, {available_bytes} are available")


class DeadlineExceeded(QuireError):
    """The request's deadline passed before it ended."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "the request's deadline has passed")


class RequestAborted(QuireError):
    """The request was ended by its client or an operator."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "the request was aborted")


class Unavailable(QuireError):
    """A service that is needed does not answer, or is not ready, or drains; another replica may do it."""

    fields: ClassVar[dict[str, type]] = {"name": str, "retry_delay_s": float}

    def __init__(self, name: str = "service", retry_delay_s: float = 1.0, *, message: str = "") -> None:
        self.name, self.retry_delay_s = name, float(retry_delay_s)
        super().__init__(message or f"the {name} is not available")


class WorkerLost(Unavailable):
    """The worker went away while it was needed."""

    def __init__(self, name: str = "worker", retry_delay_s: float = 1.0, *, message: str = "") -> None:
        super().__init__(name, retry_delay_s, message=message or f"the connection to {name} was lost")


class FailedPrecondition(QuireError):
    """The call is not possible in this state, for instance Execute before AllocateBlocks."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "not possible in this state")


class FingerprintMismatch(FailedPrecondition):
    """Two services were started with different models or layouts: refused at connect."""

    fields: ClassVar[dict[str, type]] = {"what": str, "expected": str, "actual": str}

    def __init__(self, what: str, expected: str, actual: str, *, message: str = "") -> None:
        self.what, self.expected, self.actual = what, expected, actual
        super().__init__(message or f"{what} differs between services: expected {expected}, got {actual}")


class StaleEpoch(FailedPrecondition):
    """A scheduler that has been replaced tried to write into the worker's pool."""

    fields: ClassVar[dict[str, type]] = {"epoch": int, "current": int}

    def __init__(self, epoch: int, current: int, *, message: str = "") -> None:
        self.epoch, self.current = epoch, current
        super().__init__(message or f"epoch {epoch} is stale, the current one is {current}")


class Unauthenticated(QuireError):
    """No valid credentials."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "missing or unknown API key")


class PermissionDenied(QuireError):
    """The credentials do not allow this."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or "not allowed")


def _shorten(value: object, limit: int = 120) -> str:
    """A value as text for a message: a client's megabyte must not come back in the error."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
