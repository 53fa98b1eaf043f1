"""litellm, which many gateways and agents stand on."""

from __future__ import annotations

import json

import litellm
import pytest

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def options(url, model):
    """How to reach the suite."""
    return {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}


@pytest.mark.shows("/v1/chat/completions", "answer")
def test_chat(options):
    """A chat completion answers."""
    answer = litellm.completion(messages=FRANCE, temperature=0, max_tokens=20, **options)
    assert "Paris" in answer.choices[0].message.content


@pytest.mark.shows("/v1/chat/completions", "stream")
def test_stream(options):
    """The stream's pieces are the answer."""
    chunks = litellm.completion(messages=FRANCE, temperature=0, max_tokens=20, stream=True, **options)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.shows("/v1/chat/completions", "tools, required")
def test_tool(options, tool):
    """A required tool is called."""
    answer = litellm.completion(
        messages=[{"role": "user", "content": "Weather in Rome?"}],
        tools=[tool],
        tool_choice="required",
        max_tokens=80,
        **options,
    )
    assert set(json.loads(answer.choices[0].message.tool_calls[0].function.arguments)) == {"city"}


@pytest.mark.shows("/v1/embeddings", "float, dimensions")
def test_embeddings(url):
    """A vector comes back."""
    answer = litellm.embedding(
        model="openai/all-minilm-l6-v2", input=["a cat"], api_base=f"{url}/v1", api_key="none"
    )
    assert len(answer.data[0]["embedding"]) == 384


@pytest.mark.shows("errors", "classes")
def test_errors(url):
    """An unknown model is litellm's NotFoundError."""
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(
            model="openai/nobody", messages=FRANCE, api_base=f"{url}/v1", api_key="none", max_retries=0
        )
