"""What a call comes to for a model: any tools are served or refused by name, whatever the formats are."""

import json
from typing import Any

import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_gateway.chat.call import validate_tools
from quire_gateway.chat.formats import ModelFormats
from quire_gateway.chat.plan import ChatPlan, ReasoningTokens
from quire_gateway.openai.chat_request import ChatRequest
from quire_gateway.openai.parameters import parse
from quire_gateway.parsing.registry import REASONING_FORMATS, TOOL_FORMATS, FormatSettings
from quire_gateway.sequences import Finish, FinishReason
from quire_gateway.tokenizer_client import TokenizerInfo
from quire_servicekit.errors import InvalidRequest, QuireError

INFO = TokenizerInfo(
    fingerprint="f",
    vocab_size=258,
    has_chat_template=True,
    max_text_chars=1000,
    special_token_ids=frozenset({256, 257}),
    vocabulary=(*(bytes([value]) for value in range(256)), b"<eos>", b"<bos>"),
    chat_templates=("{{ tools }}",),
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
schemas = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "string", ["object", "null"], 5]),
        "properties": st.dictionaries(
            st.text(max_size=6),
            st.sampled_from(
                [
                    {"type": "string"},
                    {"type": "integer"},
                    {},
                    {"enum": ['a"', "b\n", 1]},
                    {"$ref": "#/$defs/d"},
                    True,
                ]
            ),
            max_size=3,
        )
        | json_values,
        "required": st.lists(st.text(max_size=6), max_size=2) | json_values,
        "$defs": st.just({"d": {"type": "null"}}) | json_values,
        "additionalProperties": st.booleans() | json_values,
    },
)
tools = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["function"] * 9 + ["custom"]),
        "function": st.fixed_dictionaries(
            {"name": st.sampled_from(["f", "g", "h", "no good", ""])},
            optional={"description": st.text(max_size=9), "parameters": schemas, "strict": st.booleans()},
        ),
    }
)
bodies = st.fixed_dictionaries(
    {"messages": st.just([{"role": "user", "content": "x"}]), "tools": st.lists(tools, max_size=3)},
    optional={
        "tool_choice": st.sampled_from(
            ["none", "auto", "required", {"type": "function", "function": {"name": "f"}}, {"type": "x"}]
        ),
        "parallel_tool_calls": st.booleans(),
        "reasoning_effort": st.sampled_from(["none", "low", "high", "x"]),
        "thinking_token_budget": st.integers(-2, 5),
        "response_format": st.sampled_from(
            [
                {"type": "json_object"},
                {"type": "text"},
                {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
            ]
        ),
    },
)


def plan_of(body: Any, tool_parser: str = "auto", reasoning_parser: str = "none") -> ChatPlan:
    """The plan of a body; raises QuireErrors for what is refused."""
    call = parse(json.dumps(body).encode(), ChatRequest).to_call()
    validate_tools(call)
    formats = ModelFormats(FormatSettings(tool_parser, reasoning_parser), INFO)
    tokens = ReasoningTokens(opens=(1,), closes=(2,)) if formats.reasoning else None
    return ChatPlan(call, formats, tokens, {})


@settings(max_examples=300, deadline=None)
@given(
    body=bodies,
    tool_parser=st.sampled_from(["auto", *TOOL_FORMATS]),
    reasoning_parser=st.sampled_from(["none", *REASONING_FORMATS]),
    output=st.text(max_size=40),
)
def test_any_tools_are_served_or_refused(body, tool_parser, reasoning_parser, output):
    """Any body with tools gives a request that can be sent on, and parsers that take any output, or a refusal."""
    try:
        plan = plan_of(body, tool_parser, reasoning_parser)
        request = plan.request()
    except QuireError as refused:
        assert str(refused)
        return
    json.dumps([*request.prompt.messages, *request.prompt.tools, request.prompt.template_kwargs])
    if request.sampling.constraint is not None:
        assert request.sampling.constraint.text or request.sampling.constraint.kind == "json_object"
    if not plan.is_plain:
        parser = plan.choice_parsers("x", INFO.vocabulary)(0)
        events = parser.push(output, [1, 2]) + parser.finish(Finish(FinishReason.STOP))
        assert events and parser.is_done


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_odd_schemas_compile(name):
    """Names and values that need quoting, references and schemas without properties give grammars that compile."""
    function = {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {
                'quo"te': {"type": "string"},
                "li\nne": {"enum": ["a\\b", 'c"d', "e\nf"], "type": "string"},
                "ünï": {"$ref": "#/$defs/d"},
                "any": {},
            },
            "required": ["ünï"],
            "$defs": {"d": {"type": "array", "items": {"type": "number"}}},
        },
    }
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [
            {"type": "function", "function": function},
            {"type": "function", "function": {"name": "g"}},
        ],
        "tool_choice": "required",
    }
    text = plan_of(body, name).request().sampling.constraint.text
    error = llguidance.LLMatcher.validate_grammar("%llguidance {}\n" + text)
    assert not error, error


def test_schemas_nested_too_deeply_are_refused():
    """A schema nested beyond what JSON writers can follow is the client's error, not ours."""
    schema: dict[str, Any] = {}
    for _ in range(900):
        schema = {"items": schema}
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }
    with pytest.raises(InvalidRequest, match="tools"):
        plan_of(body)
