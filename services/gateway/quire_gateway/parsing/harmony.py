"""The message syntax of gpt-oss: `<|channel|>NAME to=RECIPIENT <|constrain|>json<|message|>BODY<|end|>`.

One job: read a message's header. The first message's `<|start|>assistant` is the prompt's last part.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from quire_gateway.parsing.reader import ScriptedParser, Step

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
#: What ends a body. A new message ends it too, but is not consumed.
ENDS: Final = (END, CALL, RETURN)
BEGINS: Final = (CHANNEL, START)

_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class Header(NamedTuple):
    """What stands before a body. text: all of it, as written."""

    text: str
    channel: str
    recipient: str


def read_header(parser: ScriptedParser[Any], begin: str) -> Step[Header | None]:
    """The header that begins with `begin`, which is consumed; None if the text ends in it, then nothing more is."""
    parts: list[str] = [begin]
    if not (yield from parser.until(MESSAGE, write=parts.append)):
        parser.buffer = "".join(parts)[len(begin) :] + parser.buffer
        return None
    text = "".join(parts) + MESSAGE
    channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
    return Header(text, channel[1] if channel else "", recipient[1] if recipient else "")
