"""instructor: typed answers by tools and by JSON schema."""

from __future__ import annotations

import instructor
import openai
import pytest
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)


@pytest.mark.shows("/v1/chat/completions", "tools, required")
def test_tools_mode(url, model):
    """Mode TOOLS gives the class."""
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=instructor.Mode.TOOLS
    )
    found = client.chat.completions.create(
        model=model,
        response_model=Person,
        messages=[{"role": "user", "content": "Invent a person."}],
        max_tokens=100,
        max_retries=0,
    )
    assert isinstance(found, Person)


@pytest.mark.shows("/v1/chat/completions", "JSON schema")
def test_schema_mode(url, model):
    """Mode JSON_SCHEMA gives the class."""
    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{url}/v1", api_key="none"), mode=instructor.Mode.JSON_SCHEMA
    )
    found = client.chat.completions.create(
        model=model,
        response_model=Person,
        messages=[{"role": "user", "content": "Invent a person."}],
        max_tokens=100,
        max_retries=0,
    )
    assert isinstance(found, Person)
