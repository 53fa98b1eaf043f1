"""Tools and reasoning over the public APIs, on fakes: what the engine is asked, and what comes of what it writes."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from quire.inference.v1 import chat_completion_pb2, chat_pb2, generate_pb2
from quire.sampling.v1 import sampling_pb2

from gateway_fakes import BOS, FakeScheduler, FakeTokenizer  # isort: skip

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
HERMES = "{% for tool in tools %}<tool_call>{% endfor %}"
THINKING = HERMES + "<think></think>"
CALLS = (
    'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


@pytest.fixture
def serve(make_suite):
    """Starts a suite whose model has a template and writes a text."""

    async def start(text: str, template: str = HERMES, **options: Any) -> Any:
        tokenizer = FakeTokenizer(is_text_bytes=True)
        tokenizer.chat_templates = [template]
        names = ("tool_parser", "reasoning_parser", "reasoning_content_alias")
        settings = {name: options.pop(name) for name in names if name in options}
        scheduler = FakeScheduler(text_of=lambda submit, index: text.encode(), **options)
        return await make_suite([scheduler], [tokenizer], **settings)

    return start


async def eventually(condition):
    """Return when `condition` holds; fails the test if it does not come to hold."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def joined(chunks, index=0):
    """Text, reasoning, calls and finish reason of one choice of a stream, put together as clients do."""
    text, thought, calls, reason = "", "", [], None
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        delta = choice["delta"]
        text += delta.get("content") or ""
        thought += delta.get("reasoning", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls) and call["type"] == "function"
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
        reason = reason or choice["finish_reason"]
    return text, thought, calls, reason


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
    await eventually(lambda: not suite.scheduler.running)
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


async def test_tools_can_be_turned_off(serve):
    """With tool_parser none, requests with tools are refused."""
    suite = await serve("Hi", tool_parser="none")
    answer = await suite.client.chat(tools=[NOW])
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools")


# ---- Reasoning ---------------------------------------------------------------------------------------------------

THOUGHT = f"<think>\nI could say END.\n<tool_call>no</tool_call>\n</think>\n\n{CALLS}"


@pytest.mark.parametrize("tokens_per_step", [1, 1000])
async def test_reasoning_is_told_apart(serve, tokens_per_step):
    """What is thought comes as reasoning, and its tokens are counted; calls are read from what is said alone."""
    suite = await serve(THOUGHT, THINKING, tokens_per_step=tokens_per_step)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = (await suite.client.chat(tools=[WEATHER, NOW], **options)).chunks
    text, thought, calls, reason = joined(chunks)
    assert (text, thought) == ("I look.\n", "I could say END.\n<tool_call>no</tool_call>")
    assert [call["name"] for call in calls] == ["get_weather", "now"]
    assert reason == "tool_calls"
    whole = (await suite.client.chat(tools=[WEATHER, NOW])).json
    assert whole["choices"][0]["message"]["reasoning"] == thought
    for usage in (chunks[-1]["usage"], whole["usage"]):
        assert usage["completion_tokens_details"] == {
            "reasoning_tokens": len(THOUGHT.partition("</think>")[0]) + len("</think>")
        }


async def test_reasoning_can_be_left_out(serve):
    """include_reasoning false: the thinking is counted but not told."""
    suite = await serve(THOUGHT, THINKING)
    whole = (await suite.client.chat(include_reasoning=False)).json
    assert "reasoning" not in whole["choices"][0]["message"]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_reasoning_under_its_old_name(serve):
    """With reasoning_content_alias clients of the old name find the reasoning too, streamed and at once."""
    suite = await serve(THOUGHT, THINKING, reasoning_content_alias=True)
    message = (await suite.client.chat()).json["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"]
    chunks = (await suite.client.chat(stream=True)).chunks
    deltas = [
        choice["delta"] for chunk in chunks for choice in chunk["choices"] if "reasoning" in choice["delta"]
    ]
    assert "".join(delta["reasoning_content"] for delta in deltas) == message["reasoning"]


async def test_an_answer_with_reasoning_can_be_sent_back(serve):
    """Messages go back as clients got them; their reasoning reaches the template under the name that templates know."""
    suite = await serve(THOUGHT, THINKING)
    message = (await suite.client.chat(tools=[WEATHER, NOW])).json["choices"][0]["message"]
    body = {"messages": [{"role": "user", "content": "x"}, message], "tools": [WEATHER, NOW]}
    assert (await suite.client.post("ChatCompletions", body)).status == 200
    rendered, _ = suite.tokenizer.rendered[-1]
    assert rendered[1]["reasoning_content"] == message["reasoning"]


async def test_stop_texts_are_not_found_in_reasoning(serve):
    """A stop text ends an answer, never a thought, so that an answer is not silently empty."""
    suite = await serve("<think>END of it.</think>Here. END and more", THINKING)
    choice = (await suite.client.chat(stop=["END"])).json["choices"][0]
    assert choice["message"]["content"] == "Here. "
    assert choice["message"]["reasoning"] == "END of it."
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")


async def test_an_answer_that_ends_while_thinking_says_so(serve):
    """max_tokens inside of the thought: empty content, the thought so far, finish reason length."""
    suite = await serve(THOUGHT, THINKING)
    choice = (await suite.client.chat(max_tokens=20)).json["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning"] == THOUGHT[8:20].rstrip()
    assert choice["finish_reason"] == "length"


async def test_effort_and_budget_reach_template_and_engine(serve):
    """reasoning_effort is a template variable, thinking_token_budget a limit of the engine's reasoning span."""
    suite = await serve(THOUGHT, THINKING)
    await suite.client.chat(reasoning_effort="none", thinking_token_budget=7)
    request = suite.tokenizer.rendered[-1][1]
    assert json.loads(request.template_kwargs_json) == {"reasoning_effort": "none", "enable_thinking": False}
    span = suite.scheduler.submits[-1].sampling.reasoning
    assert bytes(span.start_token_ids) == b"<think>" and bytes(span.end_token_ids) == b"</think>"
    assert span.max_tokens == 7 and not span.starts_open
    await suite.client.chat(thinking_token_budget=-1, chat_template_kwargs={"enable_thinking": True})
    assert not suite.scheduler.submits[-1].sampling.HasField("reasoning")


async def test_a_prompt_that_opens_reasoning(serve):
    """Where the prompt ends with the opening tag, output and span begin inside of it."""
    suite = await serve("Hm.</think>Yes.", THINKING)
    body = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>"}]}
    answer = (await suite.client.post("ChatCompletions", {**body, "thinking_token_budget": 50})).json
    assert answer["choices"][0]["message"]["reasoning"] == "Hm."
    assert answer["choices"][0]["message"]["content"] == "Yes."
    assert suite.scheduler.submits[-1].sampling.reasoning.starts_open


async def test_logprobs_ride_along(serve):
    """Every token's log-probability comes in some chunk, whatever the token came to."""
    suite = await serve(THOUGHT, THINKING)
    options = {"logprobs": True, "stream": True, "return_token_ids": True}
    chunks = (await suite.client.chat(tools=[WEATHER, NOW], **options)).chunks
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    told = [entry["token"] for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert "".join(told) == THOUGHT + "<eos>"
    assert len([i for c in choices for i in c.get("token_ids", ())]) == len(told)
    whole = (await suite.client.chat(tools=[WEATHER, NOW], logprobs=True)).json["choices"][0]
    assert [entry["token"] for entry in whole["logprobs"]["content"]] == told


async def test_special_tokens_that_parsers_need_are_not_shown(serve):
    """Where a mark is a special token it is kept for the parser, and no special token reaches the client."""
    suite = await serve("", reasoning_parser="tags:[|<bos>")
    suite.scheduler.text_of = lambda submit, index: [*b"[Hm.", BOS, *b"Yes, <bo> ", BOS, *b"really."]
    assert (await suite.client.chat(stream=True)).events
    for stream in (False, True):
        answer = await suite.client.chat(stream=stream)
        message = answer.json["choices"][0]["message"] if not stream else None
        found = joined(answer.chunks)[:2] if stream else (message["content"], message["reasoning"])
        assert found == ("Yes, <bo> really.", "Hm.")
    kept = (await suite.client.chat(skip_special_tokens=False)).json["choices"][0]["message"]["content"]
    assert kept == "Yes, <bo> <bos>really.<eos>"


# ---- The typed API -----------------------------------------------------------------------------------------------


def chat_request(**options: Any) -> chat_completion_pb2.ChatRequest:
    """A typed chat with the two tools."""
    tools = [
        chat_pb2.Tool(name="get_weather", parameters_json=json.dumps(WEATHER["function"]["parameters"])),
        chat_pb2.Tool(name="now"),
    ]
    chat = chat_pb2.Chat(messages=[chat_pb2.ChatMessage(role="user", content="hi")], tool_definitions=tools)
    return chat_completion_pb2.ChatRequest(generation=generate_pb2.GenerateRequest(chat=chat), **options)


async def test_the_typed_chat_tells_the_same_events(serve):
    """Chat streams reasoning, text and calls as typed events, then why each choice ended, and the usage."""
    suite = await serve(THOUGHT, THINKING)
    events = [response async for response in suite.client.inference.Chat(chat_request())]
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started" and kinds[-2:] == ["choice_finished", "completed"]
    assert "".join(e.reasoning.text for e in events) == "I could say END.\n<tool_call>no</tool_call>"
    assert "".join(e.text.text for e in events) == "I look.\n"
    assert [e.tool_call_started.name for e in events if e.HasField("tool_call_started")] == [
        "get_weather",
        "now",
    ]
    first = [
        e.tool_arguments.text
        for e in events
        if e.HasField("tool_arguments") and not e.tool_arguments.call_index
    ]
    assert "".join(first) == '{"city": "Paris"}'
    assert kinds.count("tool_call_finished") == 2
    assert events[-2].choice_finished.finish_reason == chat_completion_pb2.CHAT_FINISH_REASON_TOOL_CALLS
    usage = events[-1].completed.usage
    assert 0 < usage.num_reasoning_tokens < usage.num_output_tokens


async def test_the_typed_chat_gives_tokens_on_request(serve):
    """With return_tokens every output token comes in a tokens event."""
    suite = await serve(THOUGHT, THINKING)
    events = [r async for r in suite.client.inference.Chat(chat_request(return_tokens=True))]
    assert sum(len(event.tokens.token_ids) for event in events) == len(THOUGHT) + 1
    request = chat_request()
    request.generation.sampling.num_logprobs = 1
    events = [response async for response in suite.client.inference.Chat(request)]
    assert sum(len(event.tokens.logprobs) for event in events) == len(THOUGHT) + 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda r: r.generation.ClearField("chat"), "generation.chat"),
        (lambda r: setattr(r.tool_choice, "mode", 4), "tool_choice"),
        (lambda r: setattr(r.generation, "detokenize", False), "generation.detokenize"),
        (lambda r: setattr(r.generation.chat.tool_definitions[0], "parameters_json", "{"), "parameters_json"),
        (lambda r: r.generation.chat.tools.add(), "chat.tools"),
        (lambda r: setattr(r.reasoning, "max_tokens", 1), "reasoning.max_tokens"),
    ],
)
async def test_the_typed_chat_refuses_by_name(serve, change, field):
    """What a typed chat cannot have is INVALID_ARGUMENT naming the field."""
    suite = await serve("Hi")
    request = chat_request()
    change(request)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        _ = [response async for response in suite.client.inference.Chat(request)]
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in refused.value.details()


async def test_tools_of_generate_keep_their_order(serve):
    """Generate and Tokenize render tool_definitions and calls as they were written."""
    suite = await serve("Hi")
    request = chat_request().generation
    call = chat_pb2.ToolCall(id="1", name="now", arguments_json='{"z": 1, "a": 2}')
    request.chat.messages.add(role="assistant", calls=[call])
    request.sampling.CopyFrom(sampling_pb2.SamplingParams(max_tokens=2))
    _ = [response async for response in suite.client.inference.Generate(request)]
    messages, rendered = suite.tokenizer.rendered[-1]
    assert list(messages[-1]["tool_calls"][0]["function"]["arguments"]) == ["z", "a"]
    assert [json.loads(tool)["function"]["name"] for tool in rendered.tools_json] == ["get_weather", "now"]
