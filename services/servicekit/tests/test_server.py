"""Server, interceptor, health and channel over a real connection."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from quire_servicekit import errors, health
from quire_servicekit.channel import connect, target_of, wait_for_ready
from quire_servicekit.error_details import error_of
from quire_servicekit.server import ServiceServer

from .conftest import SampleSettings


async def requests(*messages: bytes):
    for message in messages:
        yield message


async def collect(call) -> list[bytes]:
    return [message async for message in call]


async def failure_of(awaitable) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value


async def raise_queue_full(request, context):
    raise errors.QueueFull(2.5)


async def test_error_of_a_unary_handler_reaches_the_client_as_itself(handlers, channel):
    """A handler raises one of our errors, and the client can raise the same one."""
    handlers.add("unary_unary", "Call", raise_queue_full)
    failure = await failure_of(channel.unary_unary("/test.Service/Call")(b""))
    assert failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    error = error_of(failure)
    assert isinstance(error, errors.QueueFull)
    assert error.retry_delay_s == 2.5


async def test_error_after_messages_of_a_stream(handlers, channel):
    """Messages sent before the error arrive, then the error does."""

    async def stream(request, context):
        yield b"first"
        raise errors.InvalidRequest("n", "1 to 4", 9)

    handlers.add("unary_stream", "Stream", stream)
    call = channel.unary_stream("/test.Service/Stream")(b"")
    assert await call.read() == b"first"
    error = error_of(await failure_of(call.read()))
    assert (error.field, error.value) == ("n", "9")


async def test_bidi_handlers_of_both_styles(handlers, channel):
    """A handler may yield its answers or write them; both see errors handled."""

    async def yields(incoming, context):
        async for message in incoming:
            yield message.upper()

    async def writes(incoming, context):
        while (message := await context.read()) is not grpc.aio.EOF:
            if message == b"bad":
                raise errors.WorkerLost
            await context.write(message.upper())

    handlers.add("stream_stream", "Yields", yields)
    handlers.add("stream_stream", "Writes", writes)
    for name in ("Yields", "Writes"):
        call = channel.stream_stream(f"/test.Service/{name}")(requests(b"a", b"b"))
        assert await collect(call) == [b"A", b"B"]
    failed = await failure_of(collect(channel.stream_stream("/test.Service/Writes")(requests(b"a", b"bad"))))
    assert isinstance(error_of(failed), errors.WorkerLost)


async def test_a_bug_is_internal_and_keeps_its_text_to_the_log(handlers, channel, quiet_logs):
    """An unexpected exception is INTERNAL without details for the client, and a traceback for us."""

    async def broken(request, context):
        raise KeyError("secret")

    handlers.add("unary_unary", "Broken", broken)
    failure = await failure_of(channel.unary_unary("/test.Service/Broken")(b""))
    assert failure.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in failure.details()
    assert any(event["event"] == "rpc failed" and event["log_level"] == "error" for event in quiet_logs)


async def test_a_method_that_is_not_offered_is_unimplemented_and_no_bug(handlers, channel, quiet_logs):
    """What the generated base class does for a method without an own handler reaches the client as UNIMPLEMENTED."""

    def generated(request, context):
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        context.set_details("Method not implemented!")
        raise NotImplementedError("Method not implemented!")

    async def unfinished(request, context):
        raise NotImplementedError("secret")

    handlers.add("unary_unary", "Pause", generated)
    handlers.add("unary_unary", "Unfinished", unfinished)
    failure = await failure_of(channel.unary_unary("/test.Service/Pause")(b""))
    assert failure.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not any(event["event"] == "rpc failed" for event in quiet_logs)
    failure = await failure_of(channel.unary_unary("/test.Service/Unfinished")(b""))
    assert failure.code() is grpc.StatusCode.INTERNAL


async def test_ids_of_the_caller_are_bound_to_log_lines(handlers, channel, quiet_logs):
    """x-request-id and the trace id of the call are on every line logged inside it."""
    handlers.add("unary_unary", "Call", raise_queue_full)
    metadata = (("x-request-id", "abc"), ("traceparent", "00-0123456789abcdef-01-01"))
    await failure_of(channel.unary_unary("/test.Service/Call")(b"", metadata=metadata))
    line = next(event for event in quiet_logs if event["event"] == "rpc finished")
    assert (line["request_id"], line["trace_id"]) == ("abc", "0123456789abcdef")


async def test_cancel_reaches_the_handler_and_is_no_error(handlers, channel, server, quiet_logs):
    """A client that goes away ends its handler, and nothing is logged as failed."""
    ended = asyncio.Event()

    async def endless(request, context):
        try:
            yield b"one"
            await asyncio.sleep(3600)
        finally:
            ended.set()

    handlers.add("unary_stream", "Endless", endless)
    call = channel.unary_stream("/test.Service/Endless")(b"")
    assert await call.read() == b"one"
    assert server.active.count == 1
    call.cancel()
    await asyncio.wait_for(ended.wait(), 5)
    await asyncio.wait_for(server.active.wait_idle(), 5)
    assert not [event for event in quiet_logs if event["event"] == "rpc failed"]


async def test_unknown_method_is_unimplemented(channel, server):
    """A method that nobody serves is refused as such."""
    failure = await failure_of(channel.unary_unary("/test.Service/Nothing")(b""))
    assert isinstance(error_of(failure), errors.Unsupported)


async def test_health_says_alive_then_ready_then_draining(channel, server):
    """Alive from the start; ready only when the service says so; neither while draining."""
    assert await health.check(channel)
    assert not await health.check(channel, "test.Service")
    await server.ready()
    assert await health.check(channel, "test.Service")
    await server.health.set_ready(False)
    assert not await health.check(channel, "test.Service")
    await server.health.drain()
    await server.health.set_ready(True)
    assert not await health.check(channel)
    assert not await health.check(channel, "test.Service")


async def test_health_of_nobody_is_false():
    """An address where nothing listens is not healthy, and asking it raises nothing."""
    channel = connect("127.0.0.1:1")
    assert not await health.check(channel, timeout_s=0.5)
    await channel.close()


async def test_reflection_lists_the_services(channel, server):
    """A client without the contracts can ask what is served."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    async for answer in stub.ServerReflectionInfo(requests(request)):
        names = {service.name for service in answer.list_services_response.service}
    assert {"test.Service", "grpc.health.v1.Health"} <= names


async def test_taken_port_is_refused_by_address(server):
    """A second server on the same port fails and says which address."""
    second = ServiceServer(SampleSettings(listen=server.address), names=[])
    with pytest.raises(OSError, match=server.address):
        await second.start()


async def test_unix_socket(tmp_path, handlers):
    """A server may listen on a Unix socket."""
    settings = SampleSettings(listen=f"unix:{tmp_path}/s.sock")
    async with ServiceServer(settings, names=[]) as server:
        channel = connect(server.address)
        await wait_for_ready(channel, name="sample", timeout_s=5)
        assert await health.check(channel)
        await channel.close()


async def test_stop_lets_a_running_rpc_end(handlers, channel, server):
    """An RPC that runs when the stop begins ends normally, and health says NOT_SERVING meanwhile."""
    release, entered = asyncio.Event(), asyncio.Event()

    async def slow(request, context):
        entered.set()
        await release.wait()
        return b"done"

    handlers.add("unary_unary", "Slow", slow)
    call = asyncio.ensure_future(_await(channel.unary_unary("/test.Service/Slow")(b"")))
    await entered.wait()
    stop = asyncio.ensure_future(server.stop())
    await asyncio.sleep(0)
    assert not await health.check(channel)
    assert not stop.done()
    release.set()
    assert await call == b"done"
    await asyncio.wait_for(stop, 5)


async def test_stop_gives_up_on_a_stream_that_never_ends(handlers):
    """After the drain time a stream is cut and the server stops all the same."""

    async def endless(request, context):
        yield b"one"
        await asyncio.sleep(3600)

    handlers.add("unary_stream", "Endless", endless)
    settings = SampleSettings(listen="127.0.0.1:0", drain_timeout_s=0.05)
    server = ServiceServer(settings, names=[])
    server.grpc.add_generic_rpc_handlers((handlers,))
    async with server:
        channel = connect(server.address)
        call = channel.unary_stream("/test.Service/Endless")(b"")
        assert await call.read() == b"one"
        await asyncio.wait_for(server.stop(), 10)
        assert (await failure_of(call.read())).code() in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.CANCELLED,
        )
        await channel.close()


async def test_own_drain_is_used(server):
    """A service that knows better than "no RPC runs" gives its own drain."""
    called = asyncio.Event()

    async def drain():
        called.set()

    await server.stop(drain)
    assert called.is_set()


async def _await(call):
    return await call


CHILD = """
import asyncio
from typing import ClassVar
from quire_servicekit.server import ServiceServer
from quire_servicekit.service import run_service
from quire_servicekit.settings import ServiceSettings

class Settings(ServiceSettings):
    service: ClassVar[str] = "child"
    fail: bool = False

async def serve(settings):
    if settings.fail:
        raise ValueError("model: no such file")
    server = ServiceServer(settings, names=[])
    await server.start()
    # Said once the loop turns again, that is after the signal handlers are there.
    asyncio.get_running_loop().call_soon(lambda: print(server.address, flush=True))
    await server.run_until_stopped(lambda: asyncio.sleep(3600))

run_service(Settings, serve)
"""


async def child(*flags: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, *flags, stdout=pipe, stderr=pipe, env=environ
    )


async def test_first_signal_drains_second_exits_at_once():
    """One SIGTERM drains; a second one during the drain ends the process there and then."""
    process = await child("--listen", "127.0.0.1:0", "--drain-timeout-s", "600")
    address = (await process.stdout.readline()).decode().strip()
    channel = connect(address)
    await wait_for_ready(channel, name="child", timeout_s=10)
    process.send_signal(signal.SIGTERM)
    while await health.check(channel):
        await asyncio.sleep(0.01)
    assert process.returncode is None
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 128 + signal.SIGTERM
    await channel.close()


async def test_signal_ends_an_idle_process_with_status_zero():
    """SIGTERM ends a service whose drain is over with success."""
    process = await child("--listen", "127.0.0.1:0", "--drain-timeout-s", "0")
    await process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.communicate(), 10)
    assert process.returncode == 0


async def test_known_cause_at_start_is_one_line():
    """A service that cannot start says why in one line and exits with status 1."""
    process = await child("--fail")
    _, stderr = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 1
    assert b"model: no such file" in stderr
    assert b"Traceback" not in stderr


def test_targets():
    """One address may be a name; several are balanced over and must be numbers."""
    assert target_of(["localhost:1"]) == "dns:///localhost:1"
    assert target_of(["unix:/run/a.sock"]) == "unix:/run/a.sock"
    assert target_of(["127.0.0.1:1", "127.0.0.1:2"]) == "ipv4:127.0.0.1:1,127.0.0.1:2"


@pytest.mark.parametrize("addresses", [[], ["localhost"], ["localhost:1", "127.0.0.1:2"], ["a:b"]])
def test_addresses_that_cannot_work_are_refused(addresses):
    """An address without a port, an empty list and mixed names are user errors."""
    with pytest.raises(ValueError, match="address"):
        target_of(addresses)


async def test_round_robin_over_replicas(handlers):
    """RPCs of one channel are spread over all its servers."""

    def named(name: bytes):
        async def call(request, context):
            return name

        return call

    servers = []
    for name in (b"a", b"b"):
        own = type(handlers)()
        own.add("unary_unary", "Name", named(name))
        server = ServiceServer(SampleSettings(listen="127.0.0.1:0"), names=[])
        server.grpc.add_generic_rpc_handlers((own,))
        await server.start()
        servers.append(server)
    channel = connect([server.address for server in servers])
    answers: set[bytes] = set()
    async with asyncio.timeout(10):
        while answers != {b"a", b"b"}:
            answers.add(await channel.unary_unary("/test.Service/Name")(b""))
    await channel.close()
    for server in servers:
        await server.stop()


async def test_wait_for_ready_names_the_peer():
    """Waiting for a server that is not there ends with its name."""
    channel = connect("127.0.0.1:1")
    with pytest.raises(errors.Unavailable, match="tokenizer"):
        await wait_for_ready(channel, name="tokenizer", timeout_s=0.05)
    await channel.close()
