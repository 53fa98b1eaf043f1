"""The real anthropic client through Envoy, on the real model."""

import anthropic
import httpx
import pytest

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m-instruct"
ANSWER = "The capital of France is Paris."
ASKED = {
    "model": MODEL,
    "max_tokens": 32,
    # This client's newest version leaves temperature to extra_body.
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(smollm2_suite):
    """The real client."""
    with anthropic.Anthropic(base_url=smollm2_suite.url, api_key="unused", max_retries=0) as opened:
        yield opened


def test_message(client):
    """A message has its text, stop reason and usage."""
    message = client.messages.create(**ASKED)
    assert message.content[0].text == ANSWER
    assert (message.stop_reason, message.role, message.model) == ("end_turn", "assistant", MODEL)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == 37
    assert message.usage.output_tokens == 8
    assert message._request_id


def test_stream(client):
    """The client's own accumulator makes the same message of the events, in several pieces."""
    with client.messages.stream(**ASKED) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == ANSWER == final.content[0].text
    assert len(pieces) >= 4
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 8)


def test_stop_sequence_and_max_tokens(client):
    """Why a message ended is told in the dialect's words."""
    stopped = client.messages.create(**ASKED, stop_sequences=["France is"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "France is")
    assert stopped.content[0].text == "The capital of "
    cut = client.messages.create(**ASKED | {"max_tokens": 2})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)


def test_a_last_assistant_turn_is_continued(client):
    """The answer goes on where the given first words end."""
    begun = [*ASKED["messages"], {"role": "assistant", "content": "The capital of France"}]
    message = client.messages.create(**ASKED | {"messages": begun})
    assert message.content[0].text.strip().startswith("is")


def test_system_changes_the_input(client):
    """The system prompt counts as input, and counting says what the message says."""
    plain = client.messages.count_tokens(model=MODEL, messages=ASKED["messages"])
    longer = client.messages.count_tokens(
        model=MODEL, messages=ASKED["messages"], system="You are a pirate, ahoy!"
    )
    assert plain.input_tokens == 37
    assert longer.input_tokens != plain.input_tokens
    used = client.messages.create(**ASKED, system="You are a pirate, ahoy!").usage
    assert used.input_tokens + used.cache_read_input_tokens == longer.input_tokens


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_forced_tool_is_called_with_valid_input(client, is_streamed):
    """A named tool gives a tool_use block whose input has the schema, and its result can be answered."""
    choice = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 64}
    if is_streamed:
        with client.messages.stream(**ASKED | choice) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**ASKED | choice)
    call = next(block for block in message.content if block.type == "tool_use")
    assert message.stop_reason == "tool_use"
    assert call.name == "get_weather"
    assert list(call.input) == ["city"] and isinstance(call.input["city"], str)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It is sunny."}
    turns = [
        *ASKED["messages"],
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(**ASKED | {"messages": turns, "tools": [TOOL]})
    assert answer.usage.output_tokens >= 1


def test_structured_output(client):
    """output_config asks for JSON of a schema, and gets it at any temperature."""
    import json

    schema = TOOL["input_schema"]
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = client.messages.create(
        **ASKED | {"extra_body": {"temperature": 1}, "max_tokens": 64}, output_config=config
    )
    assert list(json.loads(message.content[0].text)) == ["city"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"extra_body": {"temperature": 2}}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"no_such": 1}}, "no_such"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ],
)
def test_bad_requests_name_the_parameter(client, options, named):
    """What is wrong or not supported is BadRequestError with its name."""
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ASKED | options)
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    assert named in refused.value.body["error"]["message"]


def test_unknown_model_and_path(client, smollm2_suite):
    """A model that is not served and a path that is not there are not_found_error."""
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**ASKED | {"model": "claude"})
    answer = httpx.post(f"{smollm2_suite.url}/v1/messages/batches", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


async def test_the_async_client(smollm2_suite):
    """The asynchronous client streams too."""
    async with (
        anthropic.AsyncAnthropic(base_url=smollm2_suite.url, auth_token="unused") as client,
        client.messages.stream(**ASKED) as stream,
    ):
        text = "".join([piece async for piece in stream.text_stream])
    assert text == ANSWER


def test_a_client_that_goes_away_frees_everything(client, smollm2_suite):
    """Closing a stream early returns every block."""
    with client.messages.stream(
        **ASKED | {"max_tokens": 4000, "messages": [{"role": "user", "content": "Count."}]}
    ) as s:
        next(iter(s.text_stream))
    smollm2_suite.wait_idle()
