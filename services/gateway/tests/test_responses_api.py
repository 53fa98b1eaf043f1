"""The Responses API over a real gRPC server, with fakes behind: responses, events, what is kept, and errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from gateway_fakes import FakeScheduler, FakeTokenizer
from google.api import httpbody_pb2
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from quire.openai.v1 import responses_service_pb2, responses_service_pb2_grpc
from quire_servicekit.errors import QueueFull

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
HERMES = "{% for tool in tools %}<tool_call>{% endfor %}"
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
CALLS = 'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Client:
    """Calls the service as the edge does."""

    def __init__(self, suite: Any) -> None:
        self._stub = responses_service_pb2_grpc.ResponsesStub(suite.client.channel)

    async def send(self, method: str, request: Any, **metadata: str) -> tuple[int, str, bytes]:
        """(status, content type, body) of one call."""
        pairs = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        call = getattr(self._stub, method)(request, metadata=pairs)
        async with asyncio.timeout(15):
            messages = [message async for message in call]
        headers = {key: str(value) for key, value in await call.initial_metadata()}
        data = b"".join(message.data for message in messages)
        return int(headers.get("x-http-status", "200")), messages[0].content_type, data

    async def create(self, given: Any = "hi", *, expect: int = 200, **options: Any) -> Any:
        """The JSON of one response."""
        tenant = {"x_client_id": options.pop("tenant")} if "tenant" in options else {}
        body = httpbody_pb2.HttpBody(data=json.dumps({"input": given, **options}).encode())
        status, content_type, data = await self.send("CreateResponse", body, **tenant)
        assert (status, content_type) == (expect, "application/json"), data
        document = json.loads(data)
        if status == 200:
            Response.model_validate(document)
        return document

    async def stream(self, given: Any = "hi", **options: Any) -> list[Any]:
        """The events of one response: numbered without a gap, each valid in the client's own types."""
        body = httpbody_pb2.HttpBody(data=json.dumps({"input": given, "stream": True, **options}).encode())
        status, content_type, data = await self.send("CreateResponse", body)
        assert (status, content_type) == (200, "text/event-stream"), data
        return events_of(data)

    async def get(self, response_id: str, method: str = "GetResponse", **fields: Any) -> tuple[int, Any]:
        """Status and JSON of a call about a response that is kept."""
        tenant = {"x_client_id": fields.pop("tenant")} if "tenant" in fields else {}
        message = {
            "GetResponse": responses_service_pb2.GetResponseRequest,
            "CancelResponse": responses_service_pb2.CancelResponseRequest,
            "DeleteResponse": responses_service_pb2.DeleteResponseRequest,
            "ListInputItems": responses_service_pb2.ListInputItemsRequest,
        }[method]
        status, kind, data = await self.send(method, message(response_id=response_id, **fields), **tenant)
        return status, events_of(data) if kind == "text/event-stream" else json.loads(data)


def events_of(data: bytes, first: int = 0) -> list[Any]:
    """The events in the bytes."""
    found = []
    for event in data.decode().removesuffix("\n\n").split("\n\n"):
        name, line = event.split("\n")
        found.append(json.loads(line.removeprefix("data: ")))
        assert found[-1]["type"] == name.removeprefix("event: ")
        _EVENT.validate_python(found[-1])
    start = found[0]["sequence_number"]
    assert [event["sequence_number"] for event in found] == list(range(start, start + len(found)))
    return found


@pytest.fixture
def serve(make_suite: Any) -> Any:
    """Starts a suite whose model has a template and writes a text; the client of it."""

    async def start(text: Any = "Hello, world", template: str = HERMES, **options: Any) -> Client:
        tokenizer = FakeTokenizer(is_text_bytes=True)
        tokenizer.chat_templates = [template]
        settings = {"max_stored_responses": options.pop("max_stored_responses", 0)}
        settings |= {name: options.pop(name) for name in list(options) if name.startswith(("mcp_", "max_s"))}
        text_of = text if callable(text) else lambda submit, index: text.encode()
        suite = await make_suite([FakeScheduler(text_of=text_of, **options)], [tokenizer], **settings)
        client = Client(suite)
        client.suite = suite  # type: ignore[attr-defined]
        return client

    return start


async def test_a_response_has_openais_form(serve: Any) -> None:
    """One JSON object that the client's own type takes: message item, usage, defaults told."""
    client = await serve(num_cached_tokens=4)
    response = await client.create("hi", instructions="be brief", metadata={"a": "b"}, max_output_tokens=50)
    assert response["id"].startswith("resp_")
    assert (response["status"], response["model"], response["error"]) == ("completed", "fake", None)
    (item,) = response["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "Hello, world", "annotations": [], "logprobs": []}
    ]
    prompt = len(b"system: be brief\nuser: hi\n")
    assert response["usage"] == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 13,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + 13,
    }
    assert (response["temperature"], response["top_p"], response["store"]) == (1.0, 1.0, False)
    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "be brief")


async def test_a_stream_is_numbered_events_in_order(serve: Any) -> None:
    """created, in_progress, the item with its part and deltas, and completed with the whole response."""
    client = await serve()
    events = await client.stream()
    names = [event["type"].removeprefix("response.") for event in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(event["delta"] for event in events[4:-4]) == "Hello, world" == events[-4]["text"]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == events[2]["item"]["content"] == []
    final = events[-1]["response"]
    assert final["status"] == "completed"
    assert final["output"] == [events[-2]["item"]]
    assert final["usage"]["output_tokens"] == 13


async def test_an_output_that_was_cut_is_incomplete(serve: Any) -> None:
    """max_output_tokens ends with response.incomplete and its reason; the item says so too."""
    client = await serve()
    events = await client.stream(max_output_tokens=5)
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.incomplete"
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert final["output"][0]["status"] == "incomplete"


@pytest.mark.parametrize("tokens_per_step", [1, 7, 500])
async def test_calls_are_items_with_their_arguments(serve: Any, tokens_per_step: int) -> None:
    """Text and call are two items; the streamed pieces joined are the whole response, for any chunking."""
    client = await serve(CALLS, tokens_per_step=tokens_per_step)
    events = await client.stream(tools=[WEATHER])
    message, call = events[-1]["response"]["output"]
    assert message["content"][0]["text"].strip() == "I look."
    assert (call["type"], call["name"], call["status"]) == ("function_call", "get_weather", "completed")
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    pieces = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call["arguments"]
    whole = await client.create(tools=[WEATHER])
    assert [item["type"] for item in whole["output"]] == ["message", "function_call"]
    assert whole["output"][1]["arguments"] == call["arguments"]


async def test_reasoning_is_an_item(serve: Any) -> None:
    """Thoughts come as a reasoning item with its own events, sealed where the client asks for that."""
    client = await serve("<think>hm, so</think>Yes.", HERMES + "<think></think>")
    events = await client.stream(include=["reasoning.encrypted_content"])
    reasoning, message = events[-1]["response"]["output"]
    assert (reasoning["type"], message["type"]) == ("reasoning", "message")
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm, so"}]
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == "hm, so"
    sealed = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "encrypted_content": reasoning["encrypted_content"],
    }
    again = [{"role": "user", "content": "a"}, sealed, {"role": "assistant", "content": "b"},
             {"role": "user", "content": "c"}]  # fmt: skip
    await client.create(again)
    rendered, _ = client.suite.tokenizer.rendered[-1]
    assert rendered[1]["reasoning_content"] == "hm, so"


async def test_items_become_the_conversation(serve: Any) -> None:
    """Messages of each form, calls and their outputs reach the template as turns."""
    client = await serve()
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"role": "user", "content": "one"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "five"},
    ]
    await client.create(items)
    rendered, _ = client.suite.tokenizer.rendered[-1]
    assert [turn["role"] for turn in rendered] == ["system", "user", "assistant", "tool"]
    assert rendered[2]["tool_calls"][0]["function"]["name"] == "f"
    assert rendered[3]["content"] == "five"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"conversation": "c"}, "conversation"),
        ({"no_such": 1}, "no_such"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "x": 1}]}]}, "input[0].content[0].x"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
async def test_bad_requests_are_refused_by_name(serve: Any, options: dict[str, Any], param: str) -> None:
    """What is wrong, not supported, or needs a store that is off is 400 with the parameter's name."""
    client = await serve()
    answer = await _refused(client, options)
    assert answer["error"]["param"] == param


async def _refused(client: Client, options: dict[str, Any]) -> Any:
    body = httpbody_pb2.HttpBody(data=json.dumps({"input": "hi", **options}).encode())
    status, _, data = await client.send("CreateResponse", body)
    assert status == 400, data
    return json.loads(data)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_refusals_of_the_engine_have_their_status(serve: Any, is_streamed: bool) -> None:
    """A full queue is 429 before the head, streamed or not."""
    client = await serve(reject_with=QueueFull(2.0))
    answer = await client.create(stream=is_streamed, expect=429)
    assert answer["error"]["type"] == "rate_limit_error"


async def test_an_error_after_the_head_is_a_failed_response(serve: Any) -> None:
    """A stream whose engine fails ends with response.failed; the same without a stream is a status."""
    from quire.sampling.v1 import sampling_pb2

    client = await serve("x" * 50, end_with=sampling_pb2.FINISH_REASON_ERROR)
    events = await client.stream()
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][0]["status"] == "incomplete"
    await client.create(expect=500)


async def test_kept_responses_are_found_continued_and_forgotten(serve: Any) -> None:
    """A kept response can be read and gone on from, with its input; another tenant does not see it."""
    client = await serve(max_stored_responses=8)
    first = await client.create("one", tenant="a")
    assert (first["store"], await client.get(first["id"], tenant="a")) == (True, (200, first))
    assert (await client.get(first["id"], tenant="b"))[0] == 404
    second = await client.create("two", previous_response_id=first["id"], tenant="a", instructions="new")
    rendered, _ = client.suite.tokenizer.rendered[-1]
    turns = [(turn["role"], turn["content"]) for turn in rendered]
    assert turns == [("system", "new"), ("user", "one"), ("assistant", "Hello, world"), ("user", "two")]
    assert second["previous_response_id"] == first["id"]
    _, page = await client.get(second["id"], "ListInputItems", tenant="a")
    assert [item["content"][0]["text"] for item in page["data"]] == ["two"]
    assert not page["has_more"]
    status, gone = await client.get(first["id"], "DeleteResponse", tenant="a")
    assert (status, gone) == (200, {"id": first["id"], "object": "response", "deleted": True})
    assert (await client.get(first["id"], tenant="a"))[0] == 404
    # What was made from it still knows it.
    await client.create("three", previous_response_id=second["id"], tenant="a")
    rendered, _ = client.suite.tokenizer.rendered[-1]
    assert rendered[0]["content"] == "one"


async def test_pages_of_input_items(serve: Any) -> None:
    """Order, limit and position are the client's; what is out of range is refused by name."""
    client = await serve(max_stored_responses=8)
    response = await client.create([{"role": "user", "content": str(number)} for number in range(5)])
    _, page = await client.get(response["id"], "ListInputItems", limit=2, order="asc")
    assert [item["content"] for item in page["data"]] == ["0", "1"]
    assert page["has_more"]
    _, page = await client.get(response["id"], "ListInputItems", order="asc", after=page["last_id"])
    assert [item["content"] for item in page["data"]] == ["2", "3", "4"]
    for fields in ({"limit": 0}, {"order": "up"}, {"after": "nothing"}):
        status, answer = await client.get(response["id"], "ListInputItems", **fields)
        assert (status, answer["error"]["param"]) == (400, next(iter(fields)))


async def test_the_store_is_bounded(serve: Any) -> None:
    """The oldest response goes when there are too many; `store: false` keeps none."""
    client = await serve(max_stored_responses=2)
    ids = [(await client.create())["id"] for _ in range(3)]
    assert [(await client.get(response_id))[0] for response_id in ids] == [404, 200, 200]
    private = await client.create(store=False)
    assert (await client.get(private["id"]))[0] == 404


async def test_a_background_response_goes_on_by_itself(serve: Any) -> None:
    """It answers at once, can be read while it is made, and its events can be followed from any number."""
    client = await serve("slowly " * 4, max_stored_responses=4, step_s=0.01)
    response = await client.create(background=True)
    assert response["status"] == "queued"
    _, events = await client.get(response["id"], stream=True)
    names = [event["type"] for event in events]
    assert names[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert names[-1] == "response.completed"
    _, final = await client.get(response["id"])
    assert (final["status"], final["output"][0]["content"][0]["text"]) == ("completed", "slowly " * 4)
    _, rest = await client.get(response["id"], stream=True, starting_after=events[-3]["sequence_number"])
    assert rest == events[-2:]


async def test_a_background_stream_survives_its_client(serve: Any) -> None:
    """A client that goes away leaves a background response running, which it can come back to."""
    client = await serve("on and on", max_stored_responses=4, step_s=0.02)
    body = httpbody_pb2.HttpBody(data=b'{"input": "hi", "background": true, "stream": true}')
    call = client._stub.CreateResponse(body)
    first = await call.read()
    response_id = events_of(first.data)[0]["response"]["id"]
    call.cancel()
    _, events = await client.get(response_id, stream=True)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "on and on"


async def test_cancel_ends_a_background_response(serve: Any) -> None:
    """Cancelling reaches the engine, is idempotent, and refused for a response that is not in the background."""
    client = await serve("x" * 500, max_stored_responses=4, step_s=0.01)
    response = await client.create(background=True)
    while not client.suite.scheduler.running:
        await asyncio.sleep(0.005)
    for _ in range(2):
        status, cancelled = await client.get(response["id"], "CancelResponse")
        assert (status, cancelled["status"]) == (200, "cancelled")
    while client.suite.scheduler.running:
        await asyncio.sleep(0.005)
    assert client.suite.gateway.admission.num_in_flight == 0
    other = await client.create(max_output_tokens=3)
    assert (await client.get(other["id"], "CancelResponse"))[0] == 400


async def test_a_client_that_goes_away_ends_its_response(serve: Any) -> None:
    """A stream that is dropped is aborted at the engine."""
    client = await serve("x" * 500, step_s=0.01)
    call = client._stub.CreateResponse(httpbody_pb2.HttpBody(data=b'{"input": "hi", "stream": true}'))
    await call.read()
    call.cancel()
    while not client.suite.scheduler.aborts:
        await asyncio.sleep(0.005)
    assert client.suite.gateway.admission.num_in_flight == 0


async def test_structured_output_is_asked_of_the_engine(serve: Any) -> None:
    """text.format becomes the sequence's constraint."""
    client = await serve('{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await client.create(text={"format": {"type": "json_schema", "name": "x", "schema": schema}})
    assert json.loads(client.suite.scheduler.submits[-1].sampling.constraint.json_schema) == schema


async def test_truncation_drops_the_oldest_messages(serve: Any) -> None:
    """A conversation that is too long loses its beginning, never its instructions; without truncation it is refused."""
    client = await serve(max_model_len=100)
    items = [{"role": "user", "content": f"{number:02d}" + "x" * 18} for number in range(9)]
    options = {"instructions": "rules", "max_output_tokens": 10}
    await client.create(items, truncation="auto", **options)
    rendered, _ = client.suite.tokenizer.rendered[-1]
    assert rendered[0]["content"] == "rules"
    assert rendered[-1]["content"].startswith("08")
    assert 2 < len(rendered) < 10
    refused = await client.create(items, expect=400, **options)
    assert refused["error"]["code"] == "context_length_exceeded"


async def test_logprobs_come_with_the_text(serve: Any) -> None:
    """With the include, the deltas and the part have their tokens' log-probabilities."""
    client = await serve("Hey")
    events = await client.stream(include=["message.output_text.logprobs"], top_logprobs=2)
    part = events[-1]["response"]["output"][0]["content"][0]
    assert "".join(entry["token"] for entry in part["logprobs"]).startswith("Hey")
    assert len(part["logprobs"][0]["top_logprobs"]) == 2
    deltas = [entry for e in events if e["type"].endswith("text.delta") for entry in e["logprobs"]]
    assert deltas == part["logprobs"]
