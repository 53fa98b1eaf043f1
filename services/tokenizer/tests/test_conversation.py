"""From a conversation to the prompt's text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire_servicekit.errors import InvalidRequest, Unsupported
from quire_tokenizer.conversation import ChatLimits, Conversation, ConversationRenderer
from quire_tokenizer.errors import ModelFormatError

PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TRIMMING = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}!{% endfor %}"
PARTS = "{% for m in messages %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endfor %}"


@pytest.fixture
def renderer(smollm2):
    """Makes renderers for made-up templates over SmolLM2's vocabulary."""

    def make(source: str = PLAIN, *, tool_use: str = "", **limits: Any) -> ConversationRenderer:
        templates = {"default": source} if source else {}
        if tool_use:
            templates["tool_use"] = tool_use
        return ConversationRenderer(
            templates, smollm2.vocabulary, ChatLimits(**{"max_chars": 10_000, **limits})
        )

    return make


def chat(*messages: dict[str, Any], **options: Any) -> Conversation:
    """A conversation of `messages`."""
    return Conversation([json.dumps(message) for message in messages], **options)


def said(content: Any, role: str = "user") -> dict[str, Any]:
    """One message."""
    return {"role": role, "content": content}


def test_golden_conversations_render_to_the_reference_text(smollm2, golden):
    """The model's own template gives the reference's prompts, its default system message included."""
    renderer = ConversationRenderer(smollm2.chat_templates, smollm2.vocabulary, ChatLimits(max_chars=100_000))
    conversations = [item for item in golden if item["kind"] == "chat"]
    assert len(conversations) >= 4
    for item in conversations:
        assert renderer.render(chat(*item["prompt"])) == item["prompt_text"], item["name"]


def test_generation_prompt_is_added_unless_refused(renderer):
    """Unset means yes; false leaves the header of the assistant's turn out."""
    assert renderer().render(chat(said("hi"))) == "[user]hi\n[assistant]"
    assert renderer().render(chat(said("hi"), add_generation_prompt=False)) == "[user]hi\n"


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (PLAIN, "The answer is ", "[user]hi\n[assistant]The answer is "),
        (TRIMMING, "The answer is ", "[user]hi![assistant]The answer is"),
        (TRIMMING, "The answer is", "[user]hi![assistant]The answer is"),
        (PARTS, [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}], "<h><i><one><two "),
    ],
)
def test_final_message_is_continued(renderer, source, content, expected):
    """The text ends where the last message's text ends, with the space that the template keeps or strips."""
    first = [{"text": "h"}, {"text": "i"}] if source is PARTS else "hi"
    messages = [said(first), said(content, "assistant")]
    assert renderer(source).render(chat(*messages, continue_final_message=True)) == expected


def test_message_that_the_template_drops_cannot_be_continued(renderer):
    """A template that leaves the last message out has nothing to continue."""
    with pytest.raises(InvalidRequest, match="does not write the final message"):
        renderer("fixed").render(chat(said("x", "assistant"), continue_final_message=True))


@pytest.mark.parametrize("content", [None, [], [{"type": "image"}], 7])
def test_final_message_without_text_cannot_be_continued(renderer, content):
    """The last message needs a text."""
    with pytest.raises(InvalidRequest, match=r"messages\[0\]\.content"):
        renderer(PARTS).render(chat(said(content), continue_final_message=True))


def test_continuing_and_starting_a_message_exclude_each_other(renderer):
    """Both at once is refused, as the contract says."""
    with pytest.raises(InvalidRequest, match="continue_final_message"):
        renderer().render(chat(said("x"), continue_final_message=True, add_generation_prompt=True))


def test_text_parts_are_joined_where_the_template_takes_a_text(renderer):
    """A list of text parts becomes one text; a template that loops over parts gets the list."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert renderer().render(chat(said(parts))) == "[user]a\nb\n[assistant]"
    assert renderer(PARTS).render(chat(said(parts))) == "<a><b>"


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {}}, "text", {"type": "text", "text": 3}]
)
def test_other_parts_are_refused_by_name(renderer, part):
    """A part that the model can't read is refused, never printed into the prompt."""
    with pytest.raises(InvalidRequest, match=r"messages\[1\]\.content must be text"):
        renderer().render(chat(said("x"), said([part])))


def test_null_fields_are_as_absent(renderer):
    """Clients send null for what isn't there; a template that asks for the key must not see one."""
    source = "{{ 'tool_calls' in messages[0] }} {{ messages[0].content is defined }}"
    message = {"role": "assistant", "content": None, "tool_calls": None}
    assert renderer(source).render(chat(message)) == "False False"


def test_tools_reach_the_template_and_choose_it(renderer):
    """With tools the template for tools is used, and no tools are none, not an empty list."""
    both = renderer("{{ tools is none }}", tool_use="{{ tools[0] | tojson }}")
    tool = '{"type": "function", "z": 1, "a": 2}'
    assert both.render(chat(said("x"))) == "True"
    assert both.render(chat(said("x"), tools_json=[tool])) == tool
    assert renderer("{{ tools | length }}").render(chat(said("x"), tools_json=[tool, tool])) == "2"


def test_special_tokens_and_further_variables_reach_the_template(renderer):
    """Templates write BOS and EOS by name, and take switches such as enable_thinking."""
    source = "{{ bos_token }}{{ eos_token }}{{ enable_thinking }}"
    text = renderer(source).render(chat(said("x"), template_kwargs_json='{"enable_thinking": false}'))
    assert text == "<|im_start|><|im_end|>False"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_further_variables_cannot_replace_the_conversation(renderer, name):
    """A variable that the request sets elsewhere is refused."""
    with pytest.raises(InvalidRequest, match=name):
        renderer().render(chat(said("x"), template_kwargs_json=json.dumps({name: []})))


@pytest.mark.parametrize(
    ("conversation", "field"),
    [
        (Conversation([]), "messages"),
        (Conversation(["{"]), "messages[0]"),
        (Conversation(['{"role": "user"}', "[]"]), "messages[1]"),
        (Conversation(['{"content": "x"}']), "messages[0].role"),
        (Conversation(['{"role": 3}']), "messages[0].role"),
        (Conversation(['{"role": "user"}'], tools_json=["1"]), "tools[0]"),
        (Conversation(['{"role": "user"}'], template_kwargs_json="[]"), "template_kwargs"),
        (Conversation(["[" * 100_000]), "messages[0]"),
    ],
)
def test_malformed_conversation_names_the_field(renderer, conversation, field):
    """The error says which message or tool is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        renderer(max_chars=1_000_000).render(conversation)
    assert caught.value.field == field


def test_lone_surrogate_is_refused(renderer):
    """Half of a surrogate pair, which JSON can write, is the client's error; a whole pair is a character."""
    whole = Conversation(['{"role": "user", "content": "\\ud83d\\ude00"}'])
    assert renderer().render(whole) == "[user]\U0001f600\n[assistant]"
    with pytest.raises(InvalidRequest, match="surrogates"):
        renderer().render(Conversation(['{"role": "user", "content": "\\ud83d"}']))


def test_long_conversation_is_refused_with_numbers(renderer):
    """The limit and the length given are in the message."""
    with pytest.raises(InvalidRequest, match="at most 100 characters, got") as caught:
        renderer(max_chars=100).render(chat(said("x" * 200)))
    assert caught.value.field == "messages"


def test_model_without_a_template_takes_no_messages(renderer):
    """The client learns why, and has_template says it beforehand."""
    assert renderer().has_template and not renderer("").has_template
    with pytest.raises(InvalidRequest, match="no chat template"):
        renderer("").render(chat(said("x")))


def test_template_of_a_request_needs_permission(renderer):
    """A request's own template is refused by default, and used where the operator allows it."""
    conversation = chat(said("x"), chat_template="<{{ messages[0].content }}>")
    with pytest.raises(Unsupported) as caught:
        renderer().render(conversation)
    assert caught.value.parameter == "chat_template"
    assert renderer(allow_request_templates=True).render(conversation) == "<x>"
    with pytest.raises(InvalidRequest, match="line 1"):
        renderer(allow_request_templates=True).render(chat(said("x"), chat_template="{% if %}"))


def test_broken_template_of_the_model_stops_the_start(renderer):
    """The operator learns the template's name and line."""
    with pytest.raises(ModelFormatError, match="'default', line 2"):
        renderer("\n{% endfor %}")
