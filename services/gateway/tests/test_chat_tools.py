"""Tools over the OpenAI API, on fakes: what the engine is asked, and what comes of what it writes."""

import asyncio
import json

import pytest
from gateway_chats import CALLS, NOW, WEATHER, joined

from quire_servicekit.errors import InvalidRequest


@pytest.mark.parametrize("tokens_per_step", [1, 3, 7, 1000])
async def test_calls_streamed_equal_calls_at_once(serve, tokens_per_step):
    """However many tokens a step brings, the streamed pieces joined equal the answer that was not streamed."""
    suite = await serve(CALLS, tokens_per_step=tokens_per_step)
    streamed = await suite.client.chat(tools=[WEATHER, NOW], stream=True)
    text, _, calls, reason = joined(streamed.chunks)
    whole = (await suite.client.chat(tools=[WEATHER, NOW])).json["choices"][0]
    assert (text, reason) == ("I look.\n", "tool_calls")
    assert (whole["message"]["content"], whole["finish_reason"]) == (text, reason)
    made = [
        (call["function"]["name"], call["function"]["arguments"]) for call in whole["message"]["tool_calls"]
    ]
    assert made == [(call["name"], call["arguments"]) for call in calls]
    assert made == [("get_weather", '{"city": "Paris"}'), ("now", "{}")]
    assert len({call["id"] for call in calls}) == 2


async def test_a_calls_first_chunk_names_it_and_the_rest_are_arguments(serve):
    """The chunk shapes are OpenAI's: id, type and name with empty arguments first, then pieces of arguments alone."""
    suite = await serve(CALLS)
    chunks = (await suite.client.chat(tools=[WEATHER, NOW], stream=True)).chunks
    deltas = [
        c["choices"][0]["delta"]["tool_calls"][0] for c in chunks if "tool_calls" in c["choices"][0]["delta"]
    ]
    first = deltas[0]
    assert first == {
        "index": 0, "id": first["id"], "type": "function", "function": {"name": "get_weather", "arguments": ""},
    }  # fmt: skip
    assert all(delta.keys() == {"index", "function"} for delta in deltas if "id" not in delta)
    assert len(deltas) > 5, "arguments come in pieces"


async def test_without_text_content_is_null(serve):
    """An answer that is nothing but calls has null content."""
    suite = await serve(CALLS.removeprefix("I look.\n"))
    message = (await suite.client.chat(tools=[WEATHER, NOW])).json["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 2


async def test_tool_choice_none_leaves_the_model_in_the_dark(serve):
    """With tool_choice none the template gets no tools, and what looks like a call is text."""
    suite = await serve(CALLS)
    answer = await suite.client.chat(tools=[WEATHER, NOW], tool_choice="none")
    assert answer.json["choices"][0]["message"] == {"role": "assistant", "content": CALLS, "refusal": None}
    assert not suite.tokenizer.rendered[-1][1].tools_json


async def test_tools_reach_the_template_in_their_order(serve):
    """The template gets each tool as it was written, with its keys in order."""
    suite = await serve("Hi")
    await suite.client.chat(tools=[WEATHER, NOW])
    tools = list(suite.tokenizer.rendered[-1][1].tools_json)
    assert json.loads(tools[0]) == WEATHER
    assert tools[0].index('"name"') < tools[0].index('"description"') < tools[0].index('"parameters"')
    assert json.loads(tools[1])["function"]["name"] == "now"


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        ("required", ["get_weather", "now"]),
        ({"type": "function", "function": {"name": "now"}}, ["now"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "now"}}],
                },
            },
            ["now"],
        ),
    ],
)
async def test_forced_choices_constrain_the_output(serve, choice, offered):
    """required and named choices give the engine a grammar of the offered calls."""
    suite = await serve(CALLS)
    await suite.client.chat(tools=[WEATHER, NOW], tool_choice=choice)
    grammar = suite.scheduler.submits[-1].sampling.constraint.grammar
    assert [name for name in ("get_weather", "now") if f'\\"name\\": \\"{name}\\"' in grammar] == offered


async def test_free_choices_constrain_only_strict_tools(serve):
    """auto leaves the output free, unless a tool is strict."""
    suite = await serve(CALLS)
    await suite.client.chat(tools=[WEATHER, NOW], tool_choice="auto")
    assert not suite.scheduler.submits[-1].sampling.HasField("constraint")
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    await suite.client.chat(tools=[strict])
    assert "trigger" in suite.scheduler.submits[-1].sampling.constraint.grammar


async def test_a_schema_beside_tools_leaves_both_open(serve):
    """With response_format and tools the output is JSON of the schema or calls; other constraints exclude tools."""
    suite = await serve(CALLS)
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    await suite.client.chat(tools=[NOW], **body)
    grammar = suite.scheduler.submits[-1].sampling.constraint.grammar
    assert '"answer"' in grammar and "<tool_call>" in grammar
    await suite.client.chat(tools=[NOW], tool_choice="required", **body)
    assert '"answer"' not in suite.scheduler.submits[-1].sampling.constraint.grammar
    await suite.client.chat(tools=[NOW], tool_choice="none", **body)
    assert suite.scheduler.submits[-1].sampling.constraint.json_schema
    refused = await suite.client.chat(tools=[NOW], structured_outputs={"regex": "a+"})
    assert (refused.status, refused.json["error"]["param"]) == (400, "tools")


async def test_a_choice_with_its_one_call_stops_at_the_engine(serve):
    """Once the only call that is wanted is there, no tokens are spent on what would follow."""
    suite = await serve(CALLS + "x" * 500)
    answer = await suite.client.chat(tools=[WEATHER, NOW], parallel_tool_calls=False, n=2, stream=True)
    assert [joined(answer.chunks, index)[3] for index in (0, 1)] == ["tool_calls", "tool_calls"]
    async with asyncio.timeout(5):
        while suite.scheduler.running:
            await asyncio.sleep(0.005)
    usage = (
        await suite.client.chat(
            tools=[WEATHER, NOW],
            stream=True,
            parallel_tool_calls=False,
            stream_options={"include_usage": True},
        )
    ).chunks[-1]["usage"]
    assert usage["completion_tokens"] < len(CALLS)


async def test_without_parallel_calls_the_first_ends_the_choice(serve):
    """parallel_tool_calls false: one call, and nothing behind it."""
    suite = await serve(CALLS)
    for stream in (True, False):
        answer = await suite.client.chat(tools=[WEATHER, NOW], parallel_tool_calls=False, stream=stream)
        if stream:
            _, _, calls, reason = joined(answer.chunks)
            names = [call["name"] for call in calls]
        else:
            choice = answer.json["choices"][0]
            names = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
            reason = choice["finish_reason"]
        assert (names, reason) == (["get_weather"], "tool_calls")


async def test_calls_that_are_cut_short_end_by_length(serve):
    """max_tokens inside of a call gives the arguments so far, and finish reason length."""
    suite = await serve(CALLS)
    answer = await suite.client.chat(tools=[WEATHER, NOW], max_tokens=75)
    choice = answer.json["choices"][0]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert '{"city": "Paris"}'.startswith(call["function"]["arguments"])


async def test_several_choices_have_calls_of_their_own(serve):
    """n choices are parsed apart, each with its own ids."""
    suite = await serve(CALLS)
    chunks = (await suite.client.chat(tools=[WEATHER, NOW], n=3, stream=True)).chunks
    found = [joined(chunks, index) for index in range(3)]
    assert all(reason == "tool_calls" and len(calls) == 2 for _, _, calls, reason in found)
    assert len({call["id"] for _, _, calls, _ in found for call in calls}) == 6


async def test_earlier_calls_reach_the_template_as_objects(serve):
    """A conversation with calls and their results is rendered with the arguments as data."""
    suite = await serve("It is noon.")
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"b": 1, "a": 2}'}}
    messages = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    answer = await suite.client.post("ChatCompletions", {"messages": messages, "tools": [NOW]})
    assert answer.json["choices"][0]["message"]["content"] == "It is noon."
    rendered, _ = suite.tokenizer.rendered[-1]
    assert list(rendered[1]["tool_calls"][0]["function"]["arguments"].items()) == [("b", 1), ("a", 2)]
    assert rendered[2] == {"role": "tool", "content": "12:00", "tool_call_id": "c1"}


async def test_models_without_tools_in_their_template_are_told_in_text(serve):
    """Where the template knows of no tools, they stand in the system message, and calls and results in the text."""
    suite = await serve(CALLS, template="{{ messages }}")
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    answer = await suite.client.post("ChatCompletions", {"messages": messages, "tools": [WEATHER]})
    assert answer.json["choices"][0]["finish_reason"] == "tool_calls"
    rendered, request = suite.tokenizer.rendered[-1]
    assert not request.tools_json
    assert [message["role"] for message in rendered] == ["system", "user", "assistant", "user"]
    assert '"get_weather"' in rendered[0]["content"]
    assert '{"name": "now", "arguments": {}}' in rendered[2]["content"]
    assert "12:00" in rendered[3]["content"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{**NOW, "function": {"name": "no spaces"}}]}, "tools[0].name"),
        ({"tools": [NOW, NOW]}, "tools[1].name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [{**NOW, "function": {"name": f"f{n}"}} for n in range(129)]}, None),
        ({"functions": [{"name": "now"}]}, "functions"),
        ({"function_call": {"name": "now"}}, "function_call"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"reasoning_effort": "immense"}, "reasoning_effort"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_name(serve, body, param):
    """Tools and reasoning options that are wrong, or that the model has not, are refused with the field's name."""
    suite = await serve("Hi")
    answer = await suite.client.chat(**body)
    assert answer.status == 400
    if param is not None:
        assert answer.json["error"]["param"].startswith(param)
    assert not suite.scheduler.submits


async def test_a_schema_that_does_not_compile_names_the_tools(serve):
    """What the engine refuses of the grammar is an error of the tools to the client, who wrote no grammar."""
    suite = await serve(CALLS)
    suite.scheduler.reject_with = InvalidRequest(
        "constraint.grammar", message="constraint.grammar: no such keyword"
    )
    answer = await suite.client.chat(tools=[NOW], tool_choice="required")
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")
    assert "grammar" not in answer.json["error"]["message"]


async def test_tools_can_be_turned_off(serve):
    """With tool_parser none, requests with tools are refused."""
    suite = await serve("Hi", tool_parser="none")
    answer = await suite.client.chat(tools=[NOW])
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")
