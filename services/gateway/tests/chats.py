"""What tests of chats share: a model that writes tools and thoughts, and a client that puts a stream together."""

from typing import Any

from gateway_fakes import FakeScheduler, FakeTokenizer

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
THOUGHT = f"<think>\nI could say END.\n<tool_call>no</tool_call>\n</think>\n\n{CALLS}"


def serving(make_suite):
    """Starts a suite whose model has a template and writes a text."""

    async def start(text: str, template: str = HERMES, **options: Any) -> Any:
        tokenizer = FakeTokenizer(is_text_bytes=True)
        tokenizer.chat_templates = [template]
        names = ("tool_parser", "reasoning_parser", "reasoning_content_alias")
        settings = {name: options.pop(name) for name in names if name in options}
        scheduler = FakeScheduler(text_of=lambda submit, index: text.encode(), **options)
        return await make_suite([scheduler], [tokenizer], **settings)

    return start


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
