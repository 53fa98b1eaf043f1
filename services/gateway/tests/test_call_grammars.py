"""Grammars of calls: the compiler takes them, they admit what the format's parser reads, and nothing else."""

import json
import random

import jsonschema
import llguidance
import numpy as np
import pytest

from quire_gateway.chat.call import Tool
from quire_gateway.parsing.registry import TOOL_FORMATS, tool_format
from quire_gateway.parsing.tools.base import CallArguments, CallStarted, Text

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 8},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["C", "F"], "type": "string"},
            "place": {"$ref": "#/$defs/place"},
        },
        "required": ["city", "place"],
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
    },
)
NOW = Tool(name="now", parameters={"type": "object", "properties": {"utc": {"type": "boolean"}}})
TOOLS = (WEATHER, NOW)

#: Chat templates decide between dialects of a format.
TEMPLATES = [
    *((name, "") for name in TOOL_FORMATS),
    ("mistral", "[TOOL_CALLS]name[ARGS]"),
    ("deepseek", "```json"),
]
EOS = 256


class Vocabulary:
    """Bytes, an end, and special tokens."""

    def __init__(self, special_texts):
        self.eos_token_id, self.bos_token_id = EOS, None
        self.tokens = [bytes([value]) for value in range(256)]
        self.tokens += [b"\xff" + text.encode() for text in ("<eos>", *special_texts)]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.ids = {text: EOS + 1 + index for index, text in enumerate(special_texts)}

    def __call__(self, text):
        return list(text if isinstance(text, bytes) else text.encode())

    def encode(self, text):
        """Ids of a text, special tokens in it as such."""
        token_ids = []
        while text:
            special = next((token for token in self.ids if text.startswith(token)), None)
            token_ids += [self.ids[special]] if special else list(text[0].encode())
            text = text[len(special or text[0]) :]
        return token_ids

    def text(self, token_ids):
        pieces = [self.tokens[i].removeprefix(b"\xff") if i >= 256 else self.tokens[i] for i in token_ids]
        return b"".join(pieces).decode()


def open_matcher(vocabulary, grammar):
    """A matcher of the grammar, which must compile."""
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary), slices=[])
    matcher = llguidance.LLMatcher(tokenizer, "%llguidance {}\n" + grammar, log_level=0)
    assert not matcher.get_error(), matcher.get_error()
    return matcher


def sample(vocabulary, grammar, generator, max_tokens=600):
    """A random output that the grammar admits; letters are likelier than what ends nothing."""
    matcher, output = open_matcher(vocabulary, grammar), []
    while len(output) < max_tokens and not matcher.is_stopped():
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = [i for i in range(len(vocabulary.tokens)) if mask[i // 8] >> (i % 8) & 1]
        if EOS in allowed:
            break
        likely = [i for i in allowed if i >= 257 or 32 <= i < 127]
        output.append(generator.choice(likely or allowed))
        assert matcher.consume_token(output[-1])
    return vocabulary.text(output), len(output) < max_tokens


def admits(vocabulary, grammar, text):
    """Whether the grammar admits the whole of `text`."""
    matcher = open_matcher(vocabulary, grammar)
    for token in vocabulary.encode(text):
        if not matcher.consume_token(token):
            return False
    return matcher.is_accepting()


def read(name, text):
    """Text and calls."""
    parser = tool_format(name).parser(TOOLS)
    said, calls = "", []
    for event in parser.push(text) + parser.finish():
        if isinstance(event, Text):
            said += event.text
        elif isinstance(event, CallStarted):
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            calls[-1][1] += event.text
    return said, calls


@pytest.mark.parametrize("are_special", [True, False])
@pytest.mark.parametrize(("name", "template"), TEMPLATES)
def test_forced_outputs_are_calls(name, template, are_special):
    """Whatever a forced grammar admits parses into calls whose arguments match their tools' schemas, and no text."""
    chosen, generator = tool_format(name), random.Random(7)
    vocabulary = Vocabulary(chosen.markers if are_special else ())
    grammar = chosen.grammar(TOOLS, template).forced(vocabulary.ids, is_parallel=True)
    num_whole = 0
    for _ in range(4):
        output, is_whole = sample(vocabulary, grammar, generator)
        if not is_whole:
            continue
        num_whole += 1
        said, calls = read(name, output)
        assert said == "", output
        assert calls, output
        for called, arguments in calls:
            tool = WEATHER if called == "get_weather" else NOW
            assert called == tool.name
            jsonschema.validate(json.loads(arguments), dict(tool.parameters))
    assert num_whole


NOW_CALLS = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral": '[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
    "qwen3_xml": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "harmony": "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}",
    "llama3_json": '{"name": "now", "parameters": {}}',
    "pythonic": "[now()]",
}


@pytest.mark.parametrize("are_special", [True, False])
@pytest.mark.parametrize("name", NOW_CALLS)
def test_one_call_where_calls_are_not_parallel(name, are_special):
    """Without parallel calls a forced grammar admits exactly one, of a tool that is offered."""
    chosen, call = tool_format(name), NOW_CALLS[name]
    vocabulary = Vocabulary(chosen.markers if are_special else ())
    grammar = chosen.grammar([NOW], "").forced(vocabulary.ids, is_parallel=False)
    assert admits(vocabulary, grammar, call)
    assert not admits(vocabulary, grammar, call.replace("now", "get_weather"))
    assert not admits(vocabulary, grammar, f"{call}\n{call}")
    assert not admits(vocabulary, grammar, "It is noon.")


@pytest.mark.parametrize("are_special", [True, False])
@pytest.mark.parametrize("name", NOW_CALLS)
def test_free_outputs_bind_calls_alone(name, are_special):
    """A free grammar admits any text; what begins as a call has to be one of an offered tool."""
    chosen, call = tool_format(name), NOW_CALLS[name]
    vocabulary = Vocabulary(chosen.markers if are_special else ())
    grammar = chosen.grammar([NOW], "").free(vocabulary.ids, is_parallel=True)
    assert admits(vocabulary, grammar, "It is noon.\n\nReally.")
    assert admits(vocabulary, grammar, "")
    assert admits(vocabulary, grammar, call)
    assert not admits(vocabulary, grammar, call.replace("now", "get_weather"))
    if chosen.grammar([NOW], "").trigger:
        is_messages = name == "harmony" and are_special
        before = (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" if is_messages else "Let me see: "
        )
        assert admits(vocabulary, grammar, before + call)
        assert not admits(vocabulary, grammar, before + call.replace("now", "get_weather"))


@pytest.mark.parametrize("name", NOW_CALLS)
def test_calls_or_json(name):
    """Where the text has a schema too, an output is calls, or JSON that matches it."""
    chosen, call = tool_format(name), NOW_CALLS[name]
    vocabulary = Vocabulary(chosen.markers)
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    grammar = chosen.grammar([NOW], "").or_json(schema, vocabulary.ids, is_parallel=True)
    assert admits(vocabulary, grammar, call)
    assert admits(vocabulary, grammar, '{"answer": 42}')
    assert not admits(vocabulary, grammar, '{"answer": "x"}')
    assert not admits(vocabulary, grammar, "It is noon.")
