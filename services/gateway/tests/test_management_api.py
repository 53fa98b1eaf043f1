"""Operators and monitors: what the gateway tells them and lets them do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire.management.v1 import management_service_pb2 as messages
from quire.management.v1 import management_service_pb2_grpc


class FakeAdmin(admin_service_pb2_grpc.AdminServicer):
    """A scheduler's Admin service that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.state = admin_service_pb2.SERVICE_STATE_SERVING

    async def GetStatus(self, request: Any, context: Any) -> admin_service_pb2.GetStatusResponse:
        """Serving."""
        return admin_service_pb2.GetStatusResponse(service="scheduler", state=self.state)

    async def Pause(self, request: Any, context: Any) -> admin_service_pb2.PauseResponse:
        """Paused."""
        self.asked.append("pause")
        return admin_service_pb2.PauseResponse()

    async def Drain(self, request: Any, context: Any) -> admin_service_pb2.DrainResponse:
        """Two requests are left."""
        self.asked.append(f"drain {request.timeout.ToMilliseconds()}")
        return admin_service_pb2.DrainResponse(num_in_flight=2)


def management(suite: Any) -> Any:
    """The stub of the suite's gateway."""
    return management_service_pb2_grpc.ManagementStub(suite.client.channel)


@pytest.fixture
async def engine_admin() -> AsyncIterator[tuple[str, FakeAdmin]]:
    """A server with an Admin service alone, and its address."""
    server, admin = grpc.aio.server(), FakeAdmin()
    admin_service_pb2_grpc.add_AdminServicer_to_server(admin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", admin
    await server.stop(0)


def operate(suite: Any, address: str) -> None:
    """Let the suite's operations go to another server than its fake scheduler, which has no Admin service."""
    from quire_gateway.engine_operations import EngineOperations

    channel = grpc.aio.insecure_channel(address)
    suite.gateway.managing._operations = EngineOperations({address: channel})


async def test_ready_says_200_while_everything_is_there(suite: Any) -> None:
    """A probe that follows readiness gets true."""
    call = management(suite).GetReady(messages.GetReadyRequest())
    assert json.loads((await call).data) == {"ready": True}
    assert "x-http-status" not in dict(await call.initial_metadata())


async def test_ready_says_503_and_why_while_draining(suite: Any) -> None:
    """A gateway that drains is not ready, and says so."""
    suite.gateway.admission.is_draining = True
    call = management(suite).GetReady(messages.GetReadyRequest())
    assert json.loads((await call).data) == {"ready": False, "reason": "draining"}
    assert dict(await call.initial_metadata())["x-http-status"] == "503"


async def test_ready_says_503_while_every_engine_sleeps(
    suite: Any, engine_admin: tuple[str, FakeAdmin]
) -> None:
    """An engine that is connected but asleep serves nothing; the reason says so."""
    address, admin = engine_admin
    operate(suite, address)
    admin.state = admin_service_pb2.SERVICE_STATE_ASLEEP
    call = management(suite).GetReady(messages.GetReadyRequest())
    assert json.loads((await call).data) == {"ready": False, "reason": "no engine serves: asleep"}
    admin.state = admin_service_pb2.SERVICE_STATE_SERVING
    call = management(suite).GetReady(messages.GetReadyRequest())
    assert json.loads((await call).data) == {"ready": True}


async def test_metrics_hold_the_gateway_s_counters_and_each_engine_s_load(suite: Any) -> None:
    """One page has what routers and dashboards read."""
    await suite.client.complete(max_tokens=2)
    page = (await management(suite).GetMetrics(messages.GetMetricsRequest())).data.decode()
    assert 'quire_gateway_requests_total{route="completions",status="ok"} 1.0' in page
    assert f'quire_num_requests_running{{engine="{suite.schedulers[0].address}",model_name="fake"}}' in page


async def test_load_lists_every_engine_connected_or_not(make_suite: Callable[..., Any]) -> None:
    """An engine that is gone is listed as not connected instead of being left out."""
    suite = await make_suite()
    answer = await management(suite).GetLoad(messages.GetLoadRequest())
    assert [(e.model, e.is_connected) for e in answer.engines] == [("fake", True)]
    await suite.schedulers[0].kill()
    async with asyncio.timeout(5):
        while (await management(suite).GetLoad(messages.GetLoadRequest())).engines[0].is_connected:
            await asyncio.sleep(0.01)


async def test_operations_reach_the_engine_and_say_how_they_ended(
    suite: Any, engine_admin: tuple[str, FakeAdmin]
) -> None:
    """Pause and drain arrive; what an engine does not offer is its outcome's status, not the call's."""
    address, admin = engine_admin
    operate(suite, address)
    paused = await management(suite).Pause(messages.PauseRequest())
    assert [(o.engine, o.status.code) for o in paused.outcomes] == [(address, 0)]
    drained = await management(suite).Drain(messages.DrainRequest(engine=address, timeout_s=1.5))
    assert drained.num_in_flight == 2
    assert admin.asked == ["pause", "drain 1500"]
    resumed = await management(suite).Resume(messages.ResumeRequest())
    assert resumed.outcomes[0].status.code != 0


async def test_an_unknown_engine_is_refused_by_name(suite: Any) -> None:
    """NOT_FOUND, and the engines that there are."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await management(suite).Pause(messages.PauseRequest(engine="10.0.0.1:1"))
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND
    assert suite.schedulers[0].address in (failure.value.details() or "")


async def test_only_named_clients_may_operate_where_the_edge_has_keys(
    make_suite: Callable[..., Any], engine_admin: tuple[str, FakeAdmin]
) -> None:
    """A client with a key of its own cannot pause everybody, unless it is named; reading the load is free to all."""
    suite = await make_suite(management_clients="ops")
    operate(suite, engine_admin[0])
    stub = management(suite)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.Pause(messages.PauseRequest(), metadata=(("x-client-id", "alice"),))
    assert failure.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await stub.GetLoad(messages.GetLoadRequest(), metadata=(("x-client-id", "alice"),))
    answer = await stub.Pause(messages.PauseRequest(), metadata=(("x-client-id", "ops"),))
    assert answer.outcomes[0].status.code == 0


async def test_an_operator_ends_requests_by_either_id(make_suite: Callable[..., Any]) -> None:
    """The client whose id is named gets an error at once, the other goes on."""
    suite = await make_suite()
    suite.scheduler.is_paused = True
    first = asyncio.ensure_future(suite.client.complete(request_id="mine"))
    second = asyncio.ensure_future(suite.client.complete(request_id="other"))
    async with asyncio.timeout(5):
        while len(suite.scheduler.submits) < 2:
            await asyncio.sleep(0.005)
    answer = await management(suite).AbortRequests(messages.AbortRequestsRequest(request_ids=["mine", "?"]))
    assert answer.num_aborted == 1
    ended = await first
    assert ended.status >= 400
    assert "operator" in ended.json["error"]["message"]
    suite.scheduler.is_paused = False
    assert (await second).status == 200


async def test_too_many_ids_are_refused_with_the_limit(suite: Any) -> None:
    """The error names the field, the limit and the number."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await management(suite).AbortRequests(messages.AbortRequestsRequest(request_ids=["x"] * 1025))
    assert "1024" in (failure.value.details() or "") and "1025" in (failure.value.details() or "")


async def test_adapters_are_refused_as_unimplemented(suite: Any) -> None:
    """The contract names the call; until adapters are served it says so."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await management(suite).LoadAdapter(messages.LoadAdapterRequest(lora_name="a", lora_path="/b"))
    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
