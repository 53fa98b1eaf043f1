"""langchain-openai: chat models, structured output, tools, embeddings."""

from __future__ import annotations

import pytest
from langchain_core.tools import tool as make_tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


@pytest.fixture(scope="module")
def chat(url, model):
    """The chat model."""
    return ChatOpenAI(
        model=model, base_url=f"{url}/v1", api_key="none", temperature=0, max_tokens=100, max_retries=0
    )


@pytest.mark.shows("/v1/chat/completions", "answer")
def test_invoke(chat):
    """A message answers."""
    assert "Paris" in chat.invoke("What is the capital of France?").content


@pytest.mark.shows("/v1/chat/completions", "stream")
def test_stream(chat):
    """The stream's pieces are the answer."""
    assert "Paris" in "".join(str(piece.content) for piece in chat.stream("What is the capital of France?"))


@pytest.mark.shows("/v1/chat/completions", "JSON schema")
def test_structured_output(chat):
    """with_structured_output gives the model's class."""
    assert isinstance(
        chat.with_structured_output(Person, method="json_schema").invoke("Invent a person."), Person
    )


@pytest.mark.shows("/v1/chat/completions", "tools, required")
def test_tools(chat):
    """A bound tool is called."""

    @make_tool
    def get_weather(city: str) -> str:
        """Weather of a city."""
        return "sunny"

    answer = chat.bind_tools([get_weather], tool_choice="get_weather").invoke("Weather in Rome?")
    assert answer.tool_calls[0]["name"] == "get_weather" and "city" in answer.tool_calls[0]["args"]


@pytest.mark.shows("/v1/embeddings", "float, dimensions")
def test_embeddings(url):
    """Token ids as input, as this client sends them, become a vector."""
    embeddings = OpenAIEmbeddings(
        model="all-minilm-l6-v2", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    assert len(embeddings.embed_query("a cat")) == 384
