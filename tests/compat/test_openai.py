"""The official openai client."""

from __future__ import annotations

import json

import jsonschema
import openai
import pytest

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(url):
    """The client."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.shows("/v1/chat/completions", "answer")
def test_chat(client, model):
    """A chat completion answers and counts its tokens."""
    answer = client.chat.completions.create(model=model, messages=FRANCE, temperature=0, max_tokens=20)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.shows("/v1/chat/completions", "stream")
def test_chat_stream(client, model):
    """The stream's pieces are the answer, and its last chunk has the usage."""
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=FRANCE,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "Paris" in text
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.shows("/v1/chat/completions", "JSON schema")
def test_json_schema(client, model):
    """The answer is of the schema."""
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Invent a person."}],
        response_format=FORMAT,
        max_tokens=100,
        seed=3,
    )
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)


@pytest.mark.shows("/v1/chat/completions", "tools, required")
def test_required_tool(client, model, tool):
    """A required tool is called with arguments of its schema."""
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Weather in Rome?"}],
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=80,
    )
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather" and set(json.loads(call.function.arguments)) == {"city"}


@pytest.mark.shows("/v1/chat/completions", "tools, streamed")
def test_streamed_tool(client, model, tool):
    """The streamed pieces of a call join to JSON."""
    pieces, names = [], []
    for chunk in client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Weather in Rome?"}],
        tools=[tool],
        max_tokens=80,
        stream=True,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    ):
        for call in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            pieces.append(call.function.arguments or "")
            names += [call.function.name] if call.function.name else []
    assert names == ["get_weather"] and set(json.loads("".join(pieces))) == {"city"}


@pytest.mark.shows("/v1/chat/completions", "n, seed, stop, logprobs")
def test_sampling(client, model):
    """n choices, each with log-probabilities; the same seed gives the same texts."""
    wanted = {
        "model": model,
        "messages": FRANCE,
        "n": 2,
        "seed": 7,
        "max_tokens": 8,
        "stop": ["zzz"],
        "logprobs": True,
        "top_logprobs": 2,
    }
    first, second = (client.chat.completions.create(**wanted) for _ in range(2))
    assert [c.message.content for c in first.choices] == [c.message.content for c in second.choices]
    assert all(len(c.logprobs.content[0].top_logprobs) == 2 for c in first.choices)


@pytest.mark.shows("/v1/completions", "answer, echo")
def test_completion(client, model):
    """A completion goes on from its prompt, which echo puts in front."""
    answer = client.completions.create(
        model=model, prompt="Once upon a time", max_tokens=5, echo=True, temperature=0
    )
    assert answer.choices[0].text.startswith("Once upon a time")


@pytest.mark.shows("/v1/responses", "answer, stream")
def test_responses(client, model):
    """A response's text, and the same from its events."""
    wanted = {
        "model": model,
        "input": "What is the capital of France?",
        "temperature": 0,
        "max_output_tokens": 20,
    }
    whole = client.responses.create(**wanted)
    events = list(client.responses.create(**wanted, stream=True))
    assert "Paris" in whole.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].type == "response.completed"


@pytest.mark.shows("/v1/embeddings", "float, dimensions")
def test_embeddings(client):
    """Vectors of the wanted length, in the order of the inputs."""
    answer = client.embeddings.create(model="all-minilm-l6-v2", input=["a cat", "a dog"], dimensions=64)
    assert [len(item.embedding) for item in answer.data] == [64, 64]


@pytest.mark.shows("/v1/models", "list, get")
def test_models(client, model):
    """The models are listed and can be asked for by name."""
    assert model in [found.id for found in client.models.list()]
    assert client.models.retrieve(model).id == model


@pytest.mark.shows("errors", "classes")
def test_errors(client, model):
    """Each error is the client's own class."""
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nobody", messages=FRANCE)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=model, messages=FRANCE, temperature=9)
