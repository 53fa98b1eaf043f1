"""Reasoning as clients meet it: a span with a budget, then a constraint, on the real model through the edge.

The model was not taught to think. Told that it always does, it starts inside of a thought, and the budget has to end
it.
"""

import json

import jsonschema
import pytest

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m-instruct"
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "maximum": 9, "minimum": 0},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
BUDGET = 12


@pytest.fixture(scope="module")
def client(running_suite):
    """The real openai client of a suite whose model is said to think."""
    with (
        running_suite("--model", "smollm2", gateway={"reasoning_parser": "deepseek_r1"}) as suite,
        suite.openai() as opened,
    ):
        yield opened


def ask(client, extra=None, **options):
    """A chat with a budget for its thought."""
    return client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=150,
        extra_body={"thinking_token_budget": BUDGET, **(extra or {})}, **options,
    )  # fmt: skip


def test_a_budget_ends_the_thought(client):
    """The thought takes its budget and no more, and the answer follows."""
    answer = ask(client)
    message = answer.choices[0].message
    assert message.reasoning
    assert message.content
    assert "</think>" not in message.reasoning + message.content
    # The tokens of the closing tag count too.
    assert BUDGET < answer.usage.completion_tokens_details.reasoning_tokens <= BUDGET + 8


def test_a_schema_holds_behind_the_thought(client):
    """The thought is free text, what is said matches the schema, streamed and at once."""
    extra = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}
    message = ask(client, extra).choices[0].message
    assert message.reasoning
    jsonschema.validate(json.loads(message.content), SCHEMA)
    deltas = [chunk.choices[0].delta for chunk in ask(client, extra, stream=True)]
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == message.reasoning
    assert "".join(delta.content or "" for delta in deltas) == message.content


def test_a_forced_call_follows_the_thought(client):
    """A tool that must be called is called behind the thought, with arguments of its schema."""
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    choice = ask(client, tools=[tool], tool_choice="required", parallel_tool_calls=False).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning
    (call,) = choice.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_a_thought_without_an_end_is_no_answer(client):
    """Without a budget this model thinks on: the content is empty, all of it is reasoning, and the limit is told."""
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=10)
    choice = answer.choices[0]
    assert choice.message.content == ""
    assert choice.message.reasoning
    assert answer.usage.completion_tokens_details.reasoning_tokens == answer.usage.completion_tokens
