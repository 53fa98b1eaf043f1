"""Chat templates: Hugging Face's rules, the sandbox, and the bounds of a rendering."""

from __future__ import annotations

from datetime import datetime

import jinja2
import pytest

from quire_servicekit.errors import InvalidRequest
from quire_tokenizer.chat_template import ChatTemplate

USER = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "<b>Wetter</b> & \u00e9",
            "parameters": {
                "type": "object",
                "properties": {"zip": {"type": "integer"}, "city": {"type": "string"}},
            },
        },
    }
]
# The shapes that published templates are made of.
TEMPLATES = [
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n    {{- m.content | trim }}\n  {% endif %}\n{% endfor %}\n",
    "{%- for tool in tools or [] %}{{ tool | tojson(indent=2) }}\n{% endfor %}{{ messages[-1]['content'] }}",
    "{{ bos_token }}{% set ns = namespace(n=0) %}"
    "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endfor %}",
    "{% for m in messages %}{% if m['role'] == 'system' %}{% continue %}{% endif %}"
    "{{ m['content'] }}{% break %}{% endfor %}",
    "{% macro line(m) %}<|{{ m.role }}|>{{ m.content }}\n{% endmacro %}"
    "{% for m in messages %}{{ line(m) }}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% if tools is defined and tools %}T{% endif %}{% if add_generation_prompt %}G{% endif %}{{ missing }}",
    "{{ dict(a=1) | tojson }}{{ {'b': [1, 2.5, none, true]} | tojson(separators=(',', ':')) }}",
]


def template(source: str, **limits) -> ChatTemplate:
    """A compiled template with generous limits."""
    return ChatTemplate(source, **{"max_output_chars": 100_000, "max_render_s": 5.0, **limits})


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_rendering_equals_transformers(source, tools, add_generation_prompt):
    """Whitespace, JSON, loop controls, macros, namespaces and tags give what transformers gives."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "  hi <b> "}]
    ours = template(source).render(
        {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": "<s>",
        }
    )
    theirs, _ = render_jinja_template(
        [messages],
        tools=tools,
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
    )
    assert ours == theirs[0]


def test_tool_json_is_written_in_its_own_order_and_not_escaped():
    """Keys stay in the order given, and neither HTML nor ASCII escapes appear: the model has never seen those."""
    text = template("{{ tools[0] | tojson }}").render({"tools": TOOLS})
    assert "<b>Wetter</b> & \u00e9" in text
    assert text.index('"zip"') < text.index('"city"')


def test_refusal_in_the_templates_own_words():
    """raise_exception reaches the client as its message."""
    refusing = template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        refusing.render({"messages": USER})
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[0]['content'] + 1 }}", "can only concatenate str"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_failing_template_is_the_requests_error(source, reason):
    """Whatever a template trips over becomes an error of that request, with the reason."""
    with pytest.raises(InvalidRequest, match=reason):
        template(source).render({"messages": USER})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% for i in range(1000000000) %}{% endfor %}",
    ],
)
def test_sandbox_refuses_what_reaches_out(source):
    """Python's insides, changes to the messages and endless ranges are refused, not executed."""
    messages = [dict(message) for message in USER]
    with pytest.raises(InvalidRequest):
        template(source).render({"messages": messages})
    assert messages == USER


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{% endmacro %}"
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ m() }}{% endfor %}{% endfor %}",
    ],
)
def test_rendering_that_runs_on_is_stopped(source):
    """Nested loops that write nothing end at the time limit."""
    with pytest.raises(InvalidRequest, match=r"longer than 0\.05 s"):
        template(source, max_render_s=0.05).render({"messages": USER})


def test_output_is_bounded():
    """A template that writes without end is stopped at the limit."""
    with pytest.raises(InvalidRequest, match="longer than 1000 characters"):
        template(
            "{% for i in range(9999) %}{{ messages[0].content }}{% endfor %}", max_output_chars=1000
        ).render({"messages": USER})


def test_template_that_is_none_is_a_syntax_error():
    """A broken template is found when it is compiled."""
    with pytest.raises(jinja2.TemplateSyntaxError):
        template("{% for %}")


def test_date_of_today():
    """strftime_now gives the local time in the asked-for layout."""
    before = datetime.now().strftime("%Y-%m-%d")
    text = template("{{ strftime_now('%Y-%m-%d') }}").render({})
    assert text in (before, datetime.now().strftime("%Y-%m-%d"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m['content'] | list %}{{ p }}{% endfor %}{% endfor %}", True),
        ("{% set content = messages[0].content %}{% for p in content %}{{ p }}{% endfor %}", True),
        ("{% for p in messages[0]['contents'] %}{{ p }}{% endfor %}", False),
    ],
)
def test_templates_that_take_parts_are_told_apart(source, expected):
    """Only a template that loops over a message's content takes a list of parts."""
    assert template(source).takes_content_parts is expected
