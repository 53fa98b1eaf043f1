"""Reasoning parsers: what is thought, what is said, and that no chunking changes it."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_gateway.parsing.reasoning.base import Reasoning
from quire_gateway.parsing.registry import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    reasoning_format,
    reasoning_format_of,
    tool_format,
    tool_format_of,
)

NAMES = [*REASONING_FORMATS, "tags:[THINK]|[/THINK]"]
OUTPUTS = {
    "qwen3": "<think>\nLet me think.\n\nYes.\n</think>\n\nIt is 42.",
    "deepseek_r1": "Let me think.\n\nYes.\n</think>\n\nIt is 42.",
    "gpt_oss": "<|channel|>analysis<|message|>Let me think.\n\nYes.<|end|><|start|>assistant<|channel|>final<|message|>"
    "It is 42.<|return|>",
    "tags:[THINK]|[/THINK]": "[THINK]Let me think.\n\nYes.[/THINK]It is 42.",
}


def parse(name, pieces, *, starts_open=None):
    """Thought and said text of an output that comes in `pieces`."""
    chosen = reasoning_format(name)
    parser = chosen.parser(starts_open=chosen.starts_open("") if starts_open is None else starts_open)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert all(event.text for event in events), "empty pieces"
    thought = "".join(event.text for event in events if isinstance(event, Reasoning))
    said = "".join(event.text for event in events if not isinstance(event, Reasoning))
    return thought, said


@pytest.mark.parametrize("name", NAMES)
def test_thought_and_said(name):
    """Each format tells what is thought from what is said, without the marks and the space around them."""
    assert parse(name, [OUTPUTS[name]]) == ("Let me think.\n\nYes.", "It is 42.")


@pytest.mark.parametrize("name", ["qwen3", "tags:[THINK]|[/THINK]", "gpt_oss"])
def test_without_reasoning_all_is_said(name):
    """A model that does not think at all only says something."""
    assert parse(name, ["Just 42, <b>really</b>."]) == ("", "Just 42, <b>really</b>.")


def test_deepseek_r1_always_thinks():
    """DeepSeek R1's output is reasoning up to the closing tag, also where nothing opened it."""
    assert parse("deepseek_r1", ["Hm, but"]) == ("Hm, but", "")


@pytest.mark.parametrize(("name", "tag"), [("qwen3", "<think>"), ("tags:[THINK]|[/THINK]", "[THINK]")])
def test_a_prompt_can_open_reasoning(name, tag):
    """Where the prompt ends with the opening tag, the output begins as reasoning."""
    assert reasoning_format(name).starts_open(f"<|im_start|>assistant\n{tag}\n")
    assert not reasoning_format(name).starts_open("<|im_start|>assistant\n")
    text = OUTPUTS[name].removeprefix(tag)
    assert parse(name, [text], starts_open=True) == ("Let me think.\n\nYes.", "It is 42.")


def test_a_prompt_can_close_reasoning():
    """A prompt that closes the tag turns thinking off, also for DeepSeek R1."""
    assert not reasoning_format("deepseek_r1").starts_open("<｜Assistant｜><think>\n\n</think>\n\n")
    assert not reasoning_format("qwen3").starts_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_tags_behind_the_start_are_text():
    """A tag in the middle of what is said is text: only the start of an output can be reasoning."""
    assert parse("qwen3", ["Write <think> and </think>."]) == ("", "Write <think> and </think>.")


def test_gpt_oss_passes_calls_on():
    """Messages to tools reach the tool parser as they are; thoughts around them are thoughts."""
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
    head = "<|channel|>analysis<|message|>"
    output = f"{head}First.<|end|><|start|>assistant{head}Then.<|end|>{call}"
    assert parse("gpt_oss", [output]) == ("First.\nThen.", call)


def test_gpt_oss_preambles_are_said():
    """A commentary message to nobody is for the user."""
    output = "<|channel|>commentary<|message|>I look it up.<|end|>"
    assert parse("gpt_oss", [output]) == ("", "I look it up.")


_MARKS = sorted({mark for name in NAMES for mark in reasoning_format(name).markers} | set(OUTPUTS.values()))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(
    output=st.lists(
        st.sampled_from([*_MARKS, " ", "\n", "analysis", "final", "to=f"]) | st.text(max_size=6)
    ).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    starts_open=st.booleans(),
)
def test_chunking_changes_nothing(name, output, cuts, starts_open):
    """Streamed pieces, joined, equal what the whole output gives, for any output and any cuts."""
    places = [0, *sorted(min(cut, len(output)) for cut in cuts), len(output)]
    pieces = [output[start:end] for start, end in itertools.pairwise(places)]
    whole = parse(name, [output], starts_open=starts_open)
    assert parse(name, pieces, starts_open=starts_open) == whole
    assert parse(name, output, starts_open=starts_open) == whole


@settings(max_examples=100, deadline=None)
@given(
    thought=st.text(st.characters(exclude_characters="<", codec="utf-8")),
    said=st.text(st.characters(exclude_characters="<")),
)
def test_no_text_is_lost(thought, said):
    """What a model thinks and says comes out whole, but for space around the tags."""
    assert parse("qwen3", [f"<think>{thought}</think>{said}"]) == (thought.strip(), said.lstrip())


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ '<tool_call>' }} {% if enable_thinking %}<think>\n\n</think>", "hermes", "qwen3"),
        ("<tool_call>\n<function=example>", "qwen3_xml", None),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral", None),
        ("<｜Assistant｜><｜tool▁call▁begin｜> <think>", "deepseek", "deepseek_r1"),
        ("<|start|>assistant<|channel|>analysis functions.", "harmony", "gpt_oss"),
        ('<|start_header_id|>ipython {"name": , "parameters": }', "llama3_json", None),
        ("<|header_start|> <|python_start|>", "pythonic", None),
        ("<|im_start|>{{ message['content'] }}<|im_end|>", None, None),
    ],
)
def test_formats_by_template(template, tools, reasoning):
    """A chat template tells in which format its model writes calls and reasoning, or that it is not sure."""
    chosen = tool_format_of(template)
    assert (chosen.name if chosen else None) == tools
    thinking = reasoning_format_of(template)
    assert (thinking.name if thinking else None) == reasoning


@pytest.mark.parametrize(
    ("find", "names"), [(tool_format, TOOL_FORMATS), (reasoning_format, REASONING_FORMATS)]
)
def test_unknown_names_are_refused(find, names):
    """A name that is no format's is refused with the names that are."""
    for name in names:
        assert find(name).name == name
    with pytest.raises(ValueError, match="nonsense.*auto"):
        find("nonsense")
    with pytest.raises(ValueError, match="START"):
        reasoning_format("tags:only")


def test_plugins_are_found(monkeypatch):
    """A class that another distribution registers as an entry point is a format like the built-in ones."""

    class Entry:
        name = "theirs"

        def load(self):
            return TOOL_FORMATS["hermes"]

    monkeypatch.setattr("quire_gateway.parsing.registry.entry_points", lambda group: [Entry()])
    assert tool_format("theirs").name == "hermes"
