"""All engines of this gateway: every request finds one, and finds another when its own is lost.

One job: place requests, apply what frames say to them, and place them again. A client's stream only pauses: what its
sequences have received goes along as their output so far. A request that no engine can take waits, up to the resume
timeout. Knows the contract only through wire.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.model.v1 import model_pb2
from quire.scheduler.v1 import serve_pb2
from quire_gateway.active_request import ActiveRequest
from quire_gateway.detokenizing import Detokenizer
from quire_gateway.models import ModelTask, ServedModel
from quire_gateway.routing import Replica, RoutingPolicy, affinity_key, choose, session_key
from quire_gateway.scheduler_connection import SchedulerConnection
from quire_gateway.sequences import SequenceState
from quire_gateway.wire import (
    FINISH_REASONS,
    Row,
    error_of_finish,
    error_of_rejection,
    prompt_scores_of,
    rows_of,
    vectors_of,
)
from quire_servicekit.errors import (
    InternalError,
    InvalidRequest,
    QueueFull,
    QuireError,
    RequestAborted,
    Unavailable,
    UnknownModel,
)
from quire_servicekit.logging import get_logger

log = get_logger("scheduler pool")

#: Losses that a request survives. One that brings down engine after engine must not go on to the last of them.
MAX_MOVES = 8


class SchedulerPool:
    """Places requests on scheduler replicas."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        resume_timeout_s: float = 30.0,
        routing: RoutingPolicy | None = None,
        refusal_of: Callable[[ServedModel], str | None] = lambda model: None,
        on_change: Callable[[], None] = lambda: None,
        on_resume: Callable[[int], None] = lambda num_requests: None,
    ) -> None:
        """Hooks.

        refusal_of: why an engine with that model cannot be used, or None. on_change: the set of connected engines
        changed. on_resume: requests were moved after a loss.
        """
        #: Who makes text of tokens; may be changed only while there are no requests.
        self.detokenizer = detokenizer
        self._resume_timeout_s, self._routing = resume_timeout_s, routing or RoutingPolicy()
        self._refusal_of, self._on_change, self._on_resume = refusal_of, on_change, on_resume
        self._connections: dict[str, SchedulerConnection] = {}
        self._parked: list[ActiveRequest] = []
        # Models stay known while their engine restarts: a pause is no 404.
        self._served: dict[str, tuple[ServedModel, model_pb2.ModelInfo]] = {}

    def add(self, connection: SchedulerConnection) -> None:
        """One more replica; the pool starts it."""
        self._connections[connection.address] = connection
        connection.start()

    async def close(self) -> None:
        """End all streams and fail what waits."""
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))
        for request in list(self._parked):
            self._unpark(request)
            request.fail(Unavailable("gateway", message="the gateway is shutting down"))

    @property
    def connections(self) -> list[SchedulerConnection]:
        """One for each scheduler, connected or not, in the order in which they were added."""
        return list(self._connections.values())

    @property
    def is_ready(self) -> bool:
        """At least one engine takes requests."""
        return any(connection.is_ready for connection in self._connections.values())

    @property
    def ready_addresses(self) -> set[str]:
        """Engines that take requests."""
        return {address for address, connection in self._connections.items() if connection.is_ready}

    @property
    def num_requests(self) -> int:
        """Requests on any engine or waiting for one."""
        return len(self._parked) + sum(len(c.requests) for c in self._connections.values())

    @property
    def num_parked(self) -> int:
        """Requests waiting for an engine."""
        return len(self._parked)

    def models(self) -> list[ServedModel]:
        """The served models by name, including those whose engines are just coming back."""
        by_name: dict[str, ServedModel] = {}
        for model, _ in self._served.values():
            other = by_name.get(model.id)
            # A request may land on any engine of its model, so the smallest limit is the model's.
            if other is None or model.max_model_len < other.max_model_len:
                by_name[model.id] = model
        return [by_name[name] for name in sorted(by_name)]

    def model_infos(self) -> list[model_pb2.ModelInfo]:
        """As `models`, as the contract's message."""
        by_name = {model.id: info for model, info in self._served.values()}
        return [by_name[name] for name in sorted(by_name)]

    def model(self, name: str, task: ModelTask | None = ModelTask.GENERATE) -> ServedModel:
        """The model of that name, which can do `task` (None: whatever it can); empty: the only one that can.

        Raises UnknownModel, InvalidRequest for no name among several or for a model that can't, or Unavailable if none
        was ever seen.
        """
        models = self.models()
        if not models:
            raise Unavailable("scheduler", message="no engine is connected yet")
        if name:
            model = next((model for model in models if model.id == name), None)
            if model is None:
                raise UnknownModel(name)
        else:
            # A model that can't is only chosen where there is nothing to choose: then the error says what it can.
            able = models if task is None else [m for m in models if task in m.tasks] or models
            if len(able) > 1:
                reason = "several are served"
                if task is not None and task not in able[0].tasks:
                    reason = f"none of the served ones supports the task {task.value}"
                raise InvalidRequest("model", message=f"model is missing: {reason}")
            model = able[0]
        if task is not None and (reason := model.inability(task)):
            raise InvalidRequest("model", message=reason, code="unsupported_task")
        return model

    def submit(self, request: ActiveRequest) -> None:
        """Place a request. Its outcome, errors included, comes through its outlet."""
        if request.spec.detokenize:
            for sequence in request.sequences:
                self.detokenizer.open(request, sequence)
        self._place(request)

    def release(self, request: ActiveRequest) -> None:
        """Nothing more is wanted: abort it wherever it is. Idempotent."""
        if request.is_closed:
            return
        request.is_closed = True
        self._unpark(request)
        connection = self._connections.get(request.address or "")
        if connection is not None:
            connection.forget(request, abort=not all(s.is_engine_done for s in request.sequences))
        for sequence in request.sequences:
            self.detokenizer.drop(sequence)

    def stop_sequence(self, request: ActiveRequest, sequence: SequenceState) -> None:
        """A stop text ended one sequence while others go on: its engine ends it too."""
        sequence.is_engine_done = True
        self.detokenizer.drop(sequence)
        connection = self._connections.get(request.address or "")
        if connection is not None:
            connection.stop_sequence(request, sequence.index)

    # ---- Placing -----------------------------------------------------------------------------------------------

    def _place(self, request: ActiveRequest) -> None:
        """Submit to the best engine; without one, wait for it or give up."""
        wanted = request.spec.model
        ready = {
            address: connection
            for address, connection in self._connections.items()
            if connection.model is not None
            and (connection.model.id, connection.model.fingerprint) == (wanted.id, wanted.fingerprint)
        }
        address = self._choose(request, ready)
        if address is not None:
            ready[address].submit(request)
        elif request.rejected_by and not request.has_begun and set(ready) <= set(request.rejected_by):
            self._refuse(request)
        else:
            self._park(request)

    def _choose(self, request: ActiveRequest, ready: dict[str, SchedulerConnection]) -> str | None:
        replicas = [_replica(connection) for connection in ready.values()]
        if not replicas:
            return None
        spec = request.spec
        if spec.pooling is not None:
            # It reads no cached prefix: the least loaded engine is as good as any.
            return choose(
                replicas, None, {*request.rejected_by, request.avoided or ""}, self._routing
            ) or choose(replicas, None, set(request.rejected_by), self._routing)
        block_size = next(iter(ready.values())).block_size
        key = session_key(spec.session_id) or affinity_key(
            spec.prompt_token_ids, block_size, spec.cache_salt, self._routing.num_affinity_blocks
        )
        exclude = set(request.rejected_by)
        if request.avoided is not None:
            chosen = choose(replicas, key, exclude | {request.avoided}, self._routing)
            if chosen is not None:
                return chosen
        return choose(replicas, key, exclude, self._routing)

    def _refuse(self, request: ActiveRequest) -> None:
        """Every engine said no. A full queue is the client's business; everything else may pass, so wait."""
        full = [error for error in request.rejected_by.values() if isinstance(error, QueueFull)]
        if full:
            request.fail(min(full, key=lambda error: error.retry_delay_s or 0.0))
        else:
            self._park(request)

    def _park(self, request: ActiveRequest) -> None:
        loop = asyncio.get_running_loop()
        if request.parked is None:
            request.parked = loop.call_later(self._resume_timeout_s, self._expire, request)
        self._parked.append(request)
        if request.rejected_by:
            # Engines that refused may have changed their mind by then.
            delay_s = min(error.retry_delay_s or 1.0 for error in request.rejected_by.values())
            loop.call_later(min(delay_s, 1.0), self._retry, request)

    def _retry(self, request: ActiveRequest) -> None:
        if request in self._parked:
            self._parked.remove(request)
            request.rejected_by.clear()
            self._place(request)

    def _expire(self, request: ActiveRequest) -> None:
        if request in self._parked:
            self._unpark(request)
            reason = next(iter(request.rejected_by.values()), None)
            request.fail(
                reason or Unavailable("scheduler", message="no engine could take the request in time")
            )

    def _unpark(self, request: ActiveRequest) -> None:
        if request in self._parked:
            self._parked.remove(request)
        if request.parked is not None:
            request.parked.cancel()
            request.parked = None

    # ---- News --------------------------------------------------------------------------------------------------

    def refusal_of(self, model: ServedModel) -> str | None:
        """Why an engine with this model cannot be used; None if it can."""
        return self._refusal_of(model)

    def on_ready(self, connection: SchedulerConnection) -> None:
        """An engine came: place what waits."""
        if connection.model is not None and connection.model_info is not None:
            self._served[connection.address] = (connection.model, connection.model_info)
        waiting, self._parked = self._parked, []
        for request in waiting:
            request.rejected_by.pop(connection.address, None)
            self._place(request)
        self._on_change()

    def on_lost(self, connection: SchedulerConnection, requests: list[ActiveRequest]) -> None:
        """An engine went: its requests go on elsewhere, with the tokens they have."""
        moved = [request for request in requests if not request.is_closed]
        if moved:
            log.warning("requests move to another engine", lost=connection.address, num_requests=len(moved))
            self._on_resume(len(moved))
        self._on_change()
        for request in moved:
            request.avoided = connection.address
            request.num_moves += 1
            if request.num_moves > MAX_MOVES:
                request.fail(InternalError("engines were lost again and again while they ran the request"))
            elif request.unfinished:
                self._place(request)

    def on_frame(self, connection: SchedulerConnection, frame: serve_pb2.StepFrame) -> None:
        """Apply one step's news."""
        requests = connection.requests
        for handle, num_cached in zip(frame.started_handles, frame.num_cached_tokens, strict=True):
            request = requests.get(handle)
            if request is not None:
                self._accepted(request, num_cached)
        if frame.HasField("prompt_logprobs"):
            # Before the rows: a prompt's last ones come in the frame of its first output.
            for score in prompt_scores_of(frame.prompt_logprobs):
                request = requests.get(score.handle)
                if request is not None:
                    request.add_prompt_logprob(score.position, score.logprob, score.rank, score.top)
        if frame.pooled_handles:
            for handle, vector in vectors_of(frame):
                if (pooled := requests.get(handle)) is not None:
                    pooled.vector = vector
        if frame.handles:
            for row in rows_of(frame):
                request = requests.get(row.handle)
                if request is not None:
                    self._apply(connection, request, row, frame.sampled_at_unix_us)
            self.detokenizer.flush()
        for rejection in frame.rejections:
            request = requests.get(rejection.handle)
            if request is not None:
                self._rejected(connection, request, error_of_rejection(rejection.status))

    def _accepted(self, request: ActiveRequest, num_cached_tokens: int) -> None:
        request.accept(num_cached_tokens)
        if request.parked is not None:
            request.parked.cancel()
            request.parked = None

    def _apply(
        self, connection: SchedulerConnection, request: ActiveRequest, row: Row, sampled_at_unix_us: int
    ) -> None:
        if not request.is_accepted:
            self._accepted(request, 0)
        sequence = request.sequences[row.sequence_index]
        if sequence.is_engine_done:
            # A stop text ended it while this was under way.
            return
        # Every token that is received is also fed: an engine that goes on elsewhere goes on behind it.
        sequence.received_token_ids += row.token_ids
        reason = FINISH_REASONS.get(row.finish_reason)
        if reason is not None:
            sequence.is_engine_done = True
            connection.num_dispatched -= 1
            request.num_on_engine -= 1
        if request.spec.detokenize:
            self.detokenizer.feed(sequence, row.token_ids, row.logprobs, sampled_at_unix_us, reason)
        else:
            sequence.deliver("", row.token_ids, row.logprobs, sampled_at_unix_us, reason)
        if request.is_closed:
            # Its text was delivered at once and held a stop text: nothing is left to say.
            return
        error = error_of_finish(row.finish_reason) if row.finish_reason else None
        if error is not None:
            connection.forget(request, abort=True)
            self._failed(connection, request, error)
        elif reason is not None and not request.unfinished:
            connection.forget(request, abort=False)

    def _rejected(self, connection: SchedulerConnection, request: ActiveRequest, error: QuireError) -> None:
        connection.forget(request, abort=False)
        self._failed(connection, request, error)

    def _failed(self, connection: SchedulerConnection, request: ActiveRequest, error: QuireError) -> None:
        """One engine could not: another may, if the reason lies with the engine."""
        if isinstance(error, QueueFull | Unavailable | RequestAborted):
            request.rejected_by[connection.address] = error
            self._place(request)
        else:
            request.fail(error)


def _replica(connection: SchedulerConnection) -> Replica:
    load = connection.load
    return Replica(
        address=connection.address,
        num_reported=load.num_waiting + load.num_running,
        num_dispatched=connection.num_dispatched,
        block_pressure=load.num_used_blocks / load.num_total_blocks if load.num_total_blocks else 0.0,
    )
