"""The official anthropic client."""

from __future__ import annotations

import anthropic
import pytest

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(url):
    """The client."""
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.shows("/v1/messages", "answer")
def test_message(client, model):
    """A message answers, with its stop reason and usage."""
    answer = client.messages.create(
        model=model, max_tokens=20, messages=FRANCE, extra_body={"temperature": 0}
    )
    assert "Paris" in answer.content[0].text
    assert answer.stop_reason == "end_turn" and answer.usage.output_tokens > 0


@pytest.mark.shows("/v1/messages", "stream")
def test_stream(client, model):
    """The helper of the client assembles the stream to the same message."""
    with client.messages.stream(
        model=model, max_tokens=20, messages=FRANCE, extra_body={"temperature": 0}
    ) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().content[0].text == text
    assert "Paris" in text


@pytest.mark.shows("/v1/messages", "tools")
def test_tool(client, model, tool):
    """A forced tool is used with an input of its schema."""
    function = tool["function"]
    answer = client.messages.create(
        model=model,
        max_tokens=100,
        messages=[{"role": "user", "content": "Weather in Rome?"}],
        tools=[{"name": function["name"], "description": "Weather", "input_schema": function["parameters"]}],
        tool_choice={"type": "tool", "name": "get_weather"},
    )
    use = next(block for block in answer.content if block.type == "tool_use")
    assert answer.stop_reason == "tool_use" and set(use.input) == {"city"}


@pytest.mark.shows("/v1/messages/count_tokens", "answer")
def test_count(client, model):
    """Counting gives what the message's usage says."""
    counted = client.messages.count_tokens(model=model, messages=FRANCE)
    answer = client.messages.create(model=model, max_tokens=1, messages=FRANCE)
    # What the prefix cache had is counted by itself.
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


@pytest.mark.shows("errors", "classes")
def test_errors(client):
    """Each error is the client's own class."""
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nobody", max_tokens=5, messages=FRANCE)
