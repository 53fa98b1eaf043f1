"""Responses with tools of real MCP servers on loopback: lists, calls, approvals, limits and failures."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from gateway_fakes import FakeScheduler, FakeTokenizer
from google.api import httpbody_pb2
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from quire.openai.v1 import responses_service_pb2_grpc
from quire_gateway.mcp_servers import McpFailure, McpLimits, McpServer, McpServers

_SERVER = Path(__file__).with_name("mcp_server.py")
_STDIO = {"command": [sys.executable, str(_SERVER)]}
_TOOLS = "{% for tool in tools %}<tool_call>{% endfor %}"


def writes(*calls: tuple[str, dict[str, Any]], end: str = "Done.") -> Any:
    """A model that makes the calls one after another, a turn each, and then says `end`."""

    def text_of(submit: Any, index: int) -> bytes:
        prompt = bytes(token for token in submit.prompt_token_ids if token < 256).decode()
        done = prompt.count("tool: ")
        if done >= len(calls):
            return end.encode()
        name, arguments = calls[done]
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>".encode()

    return text_of


@pytest.fixture
def serve(make_suite: Any) -> Any:
    """Starts a suite with a model that writes calls, and the settings of MCP; its `create`."""

    async def start(text_of: Any, **settings: Any) -> Any:
        tokenizer = FakeTokenizer(is_text_bytes=True)
        tokenizer.chat_templates = [_TOOLS]
        scheduler = FakeScheduler(text_of=text_of, max_model_len=1 << 20, tokens_per_step=20)
        suite = await make_suite([scheduler], [tokenizer], **settings)
        stub = responses_service_pb2_grpc.ResponsesStub(suite.client.channel)

        async def create(given: Any = "go", *, stream: bool = False, **options: Any) -> Any:
            body = json.dumps({"input": given, "stream": stream, **options}).encode()
            call = stub.CreateResponse(httpbody_pb2.HttpBody(data=body))
            async with asyncio.timeout(30):
                data = b"".join([message.data async for message in call])
            if not stream:
                return json.loads(data)
            return [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]

        create.scheduler = scheduler  # type: ignore[attr-defined]
        return create

    return start


def tool(label: str = "math", **options: Any) -> dict[str, Any]:
    """The tool of a request that names the server."""
    return {"type": "mcp", "server_label": label, "require_approval": "never", **options}


@pytest.fixture
async def http_server() -> Any:
    """A streamable HTTP server as a process; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, str(_SERVER), str(port))
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.05)
    writer.close()
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    await process.wait()


async def test_a_tool_of_a_stdio_server_is_called(serve: Any) -> None:
    """The model is told of the server's tools, its call is answered by the server, and it goes on with the result."""
    create = await serve(writes(("add", {"a": 2, "b": 3})), mcp_servers={"math": _STDIO})
    response = await create(tools=[tool()])
    Response.model_validate(response)
    listed, call, message = response["output"]
    assert [entry["name"] for entry in listed["tools"]] == ["add", "dotted.name", "fail", "big", "slow"]
    assert (call["type"], call["name"], call["server_label"]) == ("mcp_call", "add", "math")
    assert (call["output"], call["error"], call["status"]) == ("5", None, "completed")
    assert message["content"][0]["text"] == "Done."
    assert len(create.scheduler.submits) == 2
    assert response["usage"]["output_tokens"] > response["output"][1]["arguments"].count("")
    assert (response["status"], response["model"], response["temperature"]) == ("completed", "fake", 1.0)


async def test_a_server_over_http_and_its_events(serve: Any, http_server: str) -> None:
    """A server that the request names by an allowed address is called; each step is an event of its own."""
    create = await serve(writes(("add", {"a": 1, "b": 1})), mcp_allowed_urls=http_server)
    events = await create(stream=True, tools=[tool(server_url=http_server, headers={"x-key": "k"})])
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in events:
        adapter.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"] for event in events]
    order = [
        "response.created", "response.mcp_list_tools.in_progress", "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress", "response.mcp_call_arguments.done", "response.mcp_call.completed",
        "response.output_text.done", "response.completed",
    ]  # fmt: skip
    places = [names.index(name) for name in order]
    assert places == sorted(places)
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert "headers" not in final["tools"][0]


@pytest.mark.parametrize(
    ("name", "said"),
    [("fail", "as ordered"), ("slow", "within 0.5 s"), ("dotted_name", None), ("big", "cut:")],
)
async def test_what_a_tool_does_wrong_is_an_item(serve: Any, name: str, said: str | None) -> None:
    """A tool that fails or takes too long gives a failed call; names and sizes are made to fit; the rest goes on."""
    settings = {"mcp_call_timeout_s": 0.5 if name == "slow" else 20, "mcp_max_result_bytes": 1000}
    create = await serve(writes((name, {})), mcp_servers={"math": _STDIO}, **settings)
    response = await create(tools=[tool()])
    _, call, message = response["output"]
    assert message["content"][0]["text"] == "Done."
    if name in ("fail", "slow"):
        assert call["status"] == "failed"
        assert said in call["error"]["content"][0]["text"]
        assert call["output"] is None
    else:
        assert call["status"] == "completed"
        assert call["output"] == "dotted" if said is None else said in call["output"]
        assert len(call["output"]) < 1100


@pytest.mark.parametrize(
    "server", [{"url": "http://127.0.0.1:9/mcp"}, {"command": [sys.executable, "-c", "0"]}]
)
async def test_a_server_that_is_not_there_is_an_item(serve: Any, server: dict[str, Any]) -> None:
    """A server that cannot be reached gives a list with an error, and the model answers without it."""
    create = await serve(writes(), mcp_servers={"math": server}, mcp_connect_timeout_s=5)
    response = await create(
        tools=[tool()], tool_choice={"type": "mcp", "server_label": "math", "name": "add"}
    )
    Response.model_validate(response)
    listed, message = response["output"]
    assert listed["tools"] == []
    assert listed["error"]
    assert message["content"][0]["text"] == "Done."


async def test_approval_is_asked_for_and_followed(serve: Any) -> None:
    """Without approval the call waits for the client; approved it is made, refused the model is told."""
    create = await serve(
        writes(("add", {"a": 4, "b": 4})), mcp_servers={"math": _STDIO}, max_stored_responses=8
    )
    asked = tool(require_approval="always", allowed_tools=["add"])
    first = await create(tools=[asked])
    listed, request = first["output"]
    assert [entry["name"] for entry in listed["tools"]] == ["add"]
    assert (request["type"], json.loads(request["arguments"])) == ("mcp_approval_request", {"a": 4, "b": 4})
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    second = await create([answer], tools=[asked], previous_response_id=first["id"])
    call, message = second["output"]
    assert (call["output"], call["approval_request_id"]) == ("8", request["id"])
    assert message["content"][0]["text"] == "Done."
    third = await create(
        [answer | {"approve": False, "reason": "no"}], tools=[asked], previous_response_id=first["id"]
    )
    assert [item["type"] for item in third["output"]] == ["message"]
    prompt = bytes(i for i in create.scheduler.submits[-1].prompt_token_ids if i < 256).decode()
    assert "not approved: no" in prompt


async def test_approval_may_depend_on_the_tool(serve: Any) -> None:
    """Tools listed under `never` are called at once, others ask."""
    create = await serve(writes(("add", {"a": 1, "b": 2})), mcp_servers={"math": _STDIO})
    free = await create(tools=[tool(require_approval={"never": {"tool_names": ["add"]}})])
    assert [item["type"] for item in free["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    bound = await create(tools=[tool(require_approval={"always": {"tool_names": ["add"]}})])
    assert bound["output"][-1]["type"] == "mcp_approval_request"


async def test_calls_are_limited(serve: Any) -> None:
    """A model that never stops calling is stopped by max_tool_calls: then it may only answer."""
    calls = [("add", {"a": 1, "b": number}) for number in range(40)]
    create = await serve(writes(*calls), mcp_servers={"math": _STDIO})
    response = await create(tools=[tool()], max_tool_calls=2)
    assert [item["type"] for item in response["output"]][:3] == ["mcp_list_tools", "mcp_call", "mcp_call"]
    assert sum(item["type"] == "mcp_call" for item in response["output"]) == 2


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"label": "other"}, "tools[0].server_label"),
        ({"server_url": "http://169.254.169.254/"}, "tools[0].server_url"),
        ({"headers": {"a": "b"}}, "tools[0].headers"),
        ({"connector_id": "c"}, "tools[0].connector_id"),
    ],
)
async def test_only_listed_servers_are_reached(serve: Any, options: dict[str, Any], param: str) -> None:
    """A label or address that the settings do not have is refused by name before anything is connected."""
    create = await serve(writes(), mcp_servers={"math": _STDIO})
    answer = await create(tools=[tool(**options)])
    assert answer["error"]["param"] == param


async def test_settings_name_one_kind_of_server() -> None:
    """A server is an address or a command; neither or both is an error of the settings."""
    for fields in ({}, {"url": "http://x", "command": ["y"]}):
        with pytest.raises(ValueError, match="a url or a command"):
            McpServer(**fields)


async def test_a_program_ends_with_its_connection() -> None:
    """Closing a connection ends the process that was started for it, also when it never answered."""
    servers = McpServers({"m": McpServer(**_STDIO)}, limits=McpLimits(connect_timeout_s=20))
    connection = servers.connection("m", servers.servers["m"])
    assert await connection.call("add", {"a": 1, "b": 1}) == "2"
    await connection.close()
    silent = McpServer(command=(sys.executable, "-c", "import time; time.sleep(600)"))
    connection = McpServers({"m": silent}, limits=McpLimits(connect_timeout_s=0.5)).connection("m", silent)
    with pytest.raises(McpFailure, match=r"within 0.5 s"):
        await connection.list_tools()
    async with asyncio.timeout(15):
        await connection.close()
