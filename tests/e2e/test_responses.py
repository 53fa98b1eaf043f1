"""The real openai client's responses through Envoy, on the real model, with a store and an MCP server."""

import json
import sys
from pathlib import Path

import openai
import pytest

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m-instruct"
ANSWER = "The capital of France is Paris."
ASKED = {"model": MODEL, "input": "What is the capital of France?", "temperature": 0}
SERVER = Path(__file__).resolve().parents[2] / "services/gateway/tests/mcp_server.py"
TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def suite(running_suite):
    """A suite that keeps responses and knows an MCP server."""
    servers = {"math": {"command": [sys.executable, str(SERVER)]}}
    gateway = {"max_stored_responses": 16, "mcp_servers": servers}
    with running_suite("--model", "smollm2", gateway=gateway) as running:
        yield running


@pytest.fixture(scope="module")
def client(suite):
    """The real client."""
    with suite.openai() as opened:
        yield opened


def test_response(client):
    """A response has its text, status and usage."""
    response = client.responses.create(**ASKED)
    assert response.output_text == ANSWER
    assert (response.status, response.model) == ("completed", MODEL)
    assert (response.usage.input_tokens, response.usage.output_tokens) == (37, 8)


def test_stream(client):
    """Events are numbered without a gap; their text is the response's."""
    events = list(client.responses.create(**ASKED, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text == ANSWER
    assert len(deltas) >= 4


def test_the_clients_own_accumulator(client):
    """The client's stream helper accepts every event and ends with the response."""
    with client.responses.stream(**ASKED) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == ANSWER


def test_conversation_by_id(client):
    """A response goes on from the one before it, which can be read, listed and deleted."""
    first = client.responses.create(**ASKED)
    assert client.responses.retrieve(first.id).output_text == ANSWER
    second = client.responses.create(
        model=MODEL, input="And of Italy?", previous_response_id=first.id, temperature=0
    )
    assert second.usage.input_tokens > first.usage.total_tokens
    (item,) = client.responses.input_items.list(second.id).data
    assert item.content[0].text == "And of Italy?"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_background(client, suite):
    """A background response is made while nobody waits, can be followed, and ended."""
    response = client.responses.create(**ASKED, background=True)
    assert response.status in ("queued", "in_progress")
    events = list(client.responses.retrieve(response.id, stream=True))
    assert events[-1].response.output_text == ANSWER
    long = client.responses.create(
        model=MODEL, input="Count to a million.", background=True, max_output_tokens=4000
    )
    assert client.responses.cancel(long.id).status in ("cancelled", "completed")
    suite.wait_idle()


def test_function_call_and_its_output(client):
    """A forced call has valid arguments; with its output the conversation goes on."""
    choice = {"type": "function", "name": "get_weather"}
    response = client.responses.create(**ASKED, tools=[TOOL], tool_choice=choice, max_output_tokens=64)
    call = next(item for item in response.output if item.type == "function_call")
    assert list(json.loads(call.arguments)) == ["city"]
    answer = client.responses.create(
        model=MODEL,
        previous_response_id=response.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        max_output_tokens=8,
    )
    assert answer.status in ("completed", "incomplete")


def test_structured_output(client):
    """text.format gives JSON of the schema at any temperature."""
    text = {"format": {"type": "json_schema", "name": "city", "schema": TOOL["parameters"]}}
    response = client.responses.create(**ASKED | {"temperature": 1}, text=text, max_output_tokens=64)
    assert list(json.loads(response.output_text)) == ["city"]


def test_a_tool_of_an_mcp_server(client):
    """A forced call of an MCP tool is answered by the real server, and the model goes on."""
    server = {"type": "mcp", "server_label": "math", "require_approval": "never", "allowed_tools": ["add"]}
    response = client.responses.create(
        **ASKED,
        tools=[server],
        tool_choice={"type": "mcp", "server_label": "math", "name": "add"},
        max_tool_calls=1,
        max_output_tokens=100,
    )
    kinds = [item.type for item in response.output]
    assert kinds[:2] == ["mcp_list_tools", "mcp_call"]
    call = response.output[1]
    arguments = json.loads(call.arguments)
    assert call.output == str(arguments["a"] + arguments["b"])


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"extra_body": {"no_such": 1}}, "no_such"),
        ({"temperature": 3}, "temperature"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)
def test_bad_requests_name_the_parameter(client, options, param):
    """What is wrong or not supported is BadRequestError with its name."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**ASKED | options)
    assert refused.value.param == param
