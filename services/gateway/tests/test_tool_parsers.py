"""Tool parsers: what they make of well-formed and malformed calls, and that no chunking changes it."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.registry import TOOL_FORMATS, tool_format
from quire_gateway.parsing.tools.base import CallArguments, CallFinished, CallStarted, Text

TOOLS = (
    Tool(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": ["string", "null"]},
                "tags": {"type": "array"},
                "where": {"type": "object"},
            },
            "required": ["city"],
        },
    ),
    Tool(name="now"),
)
CALL = ("get_weather", {"city": "São Paulo", "days": 3})
NOW = ("now", {})

#: Per format: an output with text (where there may be any) and two calls, as models write them.
TWO_CALLS = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "São Paulo", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>',
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "São Paulo", "days": 3}}; '
    '{"name": "now", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "São Paulo", "days": 3}}, '
    '{"name": "now", "arguments": {}}]',
    "pythonic": "[get_weather(city='São Paulo', days=3), now()]",
    "qwen3_xml": "<tool_call>\n<function=get_weather>\n<parameter=city>\nSão Paulo\n</parameter>\n<parameter=days>\n3\n"
    "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "São Paulo", "days": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n'
    "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "harmony": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "São Paulo", "days": 3}'
    "<|call|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
}
#: Formats that take calls behind text.
BEHIND_TEXT = ("hermes", "mistral", "qwen3_xml", "deepseek", "harmony")

#: Outputs that hold something like a call but none, with what of them must stay in the text.
MALFORMED = {
    "hermes": [
        "<tool_call>no JSON</tool_call>",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": "now" "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "no\\ud800w", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "argu',
        "<tool_cal",
    ],
    "llama3_json": [
        '{"name": "unknown", "parameters": {}}',
        '{"answer": 42}',
        "{}",
        '{"name": "now"',
        "Hi {",
    ],
    "mistral": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] []",
        '[TOOL_CALLS] [{"x": 1}]',
        "[TOOL_CALLS]now",
        "[TOOL_CALL",
    ],
    "pythonic": [
        "[1, 2, 3]",
        "[unknown(a=1)]",
        "[now(1)]",
        "[now(",
        "[now(a=b)]",
        "[now(a='x]",
        "[]",
        "now()",
    ],
    "qwen3_xml": [
        "<tool_call>now</tool_call>",
        "<function=unknown>",
        "<tool_call><function=",
        "<tool_call>\n",
    ],
    "deepseek": ["<｜tool▁call▁begin｜>now", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>x", "<｜tool▁call▁beg"],
    "harmony": ["<|channel|>final", "plain"],
}


def parse(name, pieces):
    """Text and calls of an output that comes in `pieces`."""
    parser = tool_format(name).parser(TOOLS)
    events = [event for piece in pieces for event in parser.push(piece)]
    return collect(events + parser.finish())


def collect(events):
    """Text, and [name, arguments] of each call; checks that calls begin and end in order."""
    text, calls, is_open = "", [], False
    for event in events:
        if isinstance(event, Text):
            assert not is_open, "text inside of a call"
            assert event.text, "empty text"
            text += event.text
        elif isinstance(event, CallStarted):
            assert not is_open, "a call inside of a call"
            is_open = True
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            assert is_open and event.text
            calls[-1][1] += event.text
        else:
            assert isinstance(event, CallFinished) and is_open
            is_open = False
    assert not is_open, "a call that never ends"
    return text, calls


def loaded(calls):
    """The calls with their arguments as data."""
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("name", TWO_CALLS)
def test_two_calls(name):
    """Each format's calls come out with their names and arguments, and leave no text."""
    text, calls = parse(name, [TWO_CALLS[name]])
    assert text == ""
    assert loaded(calls) == [CALL, NOW]


@pytest.mark.parametrize("name", BEHIND_TEXT)
def test_calls_behind_text(name):
    """Text before the calls stays text."""
    text, calls = parse(name, ["Let me see.\n\n" + TWO_CALLS[name]])
    assert text == "Let me see.\n\n"
    assert loaded(calls) == [CALL, NOW]


def test_every_format_is_tested():
    """A new built-in format needs its examples here."""
    assert set(TWO_CALLS) == set(MALFORMED) == set(TOOL_FORMATS)


@pytest.mark.parametrize(
    ("name", "output"), [(name, output) for name in MALFORMED for output in MALFORMED[name]]
)
def test_malformed_calls_are_text(name, output):
    """What is no call stays in the text, all of it but the format's own markers, and makes no call."""
    text, calls = parse(name, [output])
    assert calls == []
    markers = tool_format(name).markers if name in ("deepseek", "harmony") else ()
    for marker in markers:
        output, text = output.replace(marker, ""), text.replace(marker, "")
    assert text == output


def test_a_call_that_breaks_off_is_cut_short():
    """An output that ends inside of a call gives the arguments as far as they came, none of them twice."""
    whole = TWO_CALLS["hermes"].partition("\n</tool_call>")[0]
    for end in range(whole.index("{", whole.index("arguments")) + 1, len(whole)):
        text, calls = parse("hermes", [whole[:end]])
        assert text == ""
        assert calls[0][0] == "get_weather"
        assert '{"city": "São Paulo", "days": 3}'.startswith(calls[0][1])
        assert calls[0][1] == whole[whole.index('{"city"') : end][: len(calls[0][1])]


def test_arguments_stream_before_the_call_is_whole():
    """Arguments are handed out while they are written, not at the call's end."""
    parser = tool_format("hermes").parser(TOOLS)
    events = parser.push('<tool_call>{"name": "get_weather", "arguments": {"city": "Par')
    assert events == [CallStarted("get_weather"), CallArguments('{"city": "Par')]


def test_raw_line_ends_in_arguments_are_mended():
    """A line end that a model wrote raw inside of a string is escaped, so that the arguments are JSON."""
    _, calls = parse("hermes", ['<tool_call>{"name": "now", "arguments": {"a": "x\ny\tz"}}</tool_call>'])
    assert loaded(calls) == [("now", {"a": "x\ny\tz"})]


def test_arguments_as_json_text():
    """Arguments in a string, as OpenAI's own messages have them, are unpacked."""
    _, calls = parse("hermes", ['<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>'])
    assert loaded(calls) == [("now", {"a": 1})]


def test_mistral_named_calls():
    """Newer Mistral models write the name in front of the arguments."""
    text, calls = parse(
        "mistral",
        ['[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{"city": "São Paulo", "days": 3}[TOOL_CALLS]now{}'],
    )
    assert (text, loaded(calls)) == ("", [CALL, NOW])


def test_deepseek_newer_calls():
    """DeepSeek V3.1 writes the name before the separator and no fence."""
    text, calls = parse(
        "deepseek",
        [
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "São Paulo", "days": 3}'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ],
    )
    assert (text, loaded(calls)) == ("", [CALL])


def test_qwen3_xml_values_follow_the_schema():
    """A bare value is what the schema says: text stays text even if it looks like a number."""
    parameters = {"city": "42", "days": "7", "units": "null", "tags": '["a", 1]', "where": '{"x": True}'}
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    _, calls = parse(
        "qwen3_xml", [f"<tool_call>\n<function=get_weather>\n{written}</function>\n</tool_call>"]
    )
    assert loaded(calls) == [
        ("get_weather", {"city": "42", "days": 7, "units": None, "tags": ["a", 1], "where": '{"x": True}'})
    ]


def test_pythonic_literals():
    """Python's and JSON's literals, nested, become JSON."""
    output = "[get_weather(city='it\\'s \"x\"', tags=[True, false, None, -1.5, (1, 2)], where={'a': {\"b\": null}})]"
    _, calls = parse("pythonic", [output])
    assert loaded(calls) == [
        (
            "get_weather",
            {"city": 'it\'s "x"', "tags": [True, False, None, -1.5, [1, 2]], "where": {"a": {"b": None}}},
        )
    ]


def test_mistral_ids_fit_its_templates():
    """Ids have the form that Mistral's templates insist on."""
    call_id = tool_format("mistral").new_call_id()
    assert len(call_id) == 9 and call_id.isalnum()


# ---- Any chunking ------------------------------------------------------------------------------------------------

_FRAGMENTS = sorted(
    {
        marker
        for name in TOOL_FORMATS
        for marker in (
            *tool_format(name).markers,
            *TWO_CALLS[name].split(" "),
            *MALFORMED[name],
            TWO_CALLS[name],
        )
    }
)
outputs = st.lists(
    st.sampled_from(
        [*_FRAGMENTS, " ", "\n", "{", "}", '"', "\\", ",", "[", "]", "now", "(", ")", "=", "1e", "tru"]
    )
    | st.text(max_size=8),
    max_size=12,
).map("".join)


def chunked(draw, output):
    """The output cut at random places."""
    cuts = sorted(draw(st.lists(st.integers(0, len(output)), max_size=12)))
    return [output[start:end] for start, end in zip([0, *cuts], [*cuts, len(output)], strict=True)]


@pytest.mark.parametrize("name", TWO_CALLS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_chunking_changes_nothing(name, data):
    """Streamed pieces, joined, equal what the whole output gives, for any output and any cuts."""
    output = data.draw(outputs | st.just(TWO_CALLS[name]) | st.just("x" + TWO_CALLS[name] + "y"))
    assert parse(name, chunked(data.draw, output)) == parse(name, [output])
    assert parse(name, output) == parse(name, [output])


@pytest.mark.parametrize("name", TWO_CALLS)
@settings(max_examples=150, deadline=None)
@given(output=st.text(st.characters(exclude_characters="<[{", codec="utf-8"), max_size=60))
def test_plain_text_is_untouched(name, output):
    """Text without any sign of a call comes out as it went in."""
    assert parse(name, [output]) == (output, [])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    arguments=st.dictionaries(st.text(), json_values, max_size=4), ascii_only=st.booleans(), data=st.data()
)
def test_any_arguments_survive(arguments, ascii_only, data):
    """Whatever JSON object is written as arguments comes out as exactly that text, for any chunking."""
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    output = f'<tool_call>{{"name": "now", "arguments": {written}}}</tool_call>'
    text, calls = parse("hermes", chunked(data.draw, output))
    assert (text, calls) == ("", [["now", written]])
