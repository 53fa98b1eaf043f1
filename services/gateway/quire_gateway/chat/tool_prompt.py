"""Conversations with tools for models whose chat template knows of none.

One job: say in plain messages what such a template would leave out: which tools there are and how to call them, which
were called, and what came back. In the way of Hermes, which its parser reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire_gateway.chat.call import Tool

_INSTRUCTIONS = """You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def plain_messages(messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The messages with everything about tools written into their text."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    definitions = "\n".join(json.dumps(tool.definition(), ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=definitions)
    if plain and plain[0].get("role") == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{instructions}"}, *plain[1:]]
    return [{"role": "system", "content": instructions}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>",
        }
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message.get("content") else []
    for call in calls:
        written = {name: call.get("function", {}).get(name) for name in ("name", "arguments")}
        texts.append(f"<tool_call>\n{json.dumps(written, ensure_ascii=False)}\n</tool_call>")
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": "\n".join(texts)}
