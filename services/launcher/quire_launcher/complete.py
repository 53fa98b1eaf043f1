"""`quire complete`: text that goes on where a prompt ends, through the OpenAI endpoint, as it comes.

One job: the terminal. Which server and model, and what its errors mean, is the chat's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from quire_launcher.chat import Chat, ChatError


def pieces(server: Chat, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
    """The completion's pieces as they come. Raises ChatError."""
    body = {"model": server.pick_model(), "prompt": prompt, "stream": True, **options}
    return server.pieces("completions", body, lambda choice: str(choice["text"]))


def run_complete(
    server: Chat, prompt: str | None, options: Mapping[str, Any], *, with_prompt: bool = False
) -> int:
    """Print the completion of `prompt`, or of standard input; the exit status. with_prompt: the prompt first."""
    text = sys.stdin.read() if prompt is None else prompt
    if not text:
        print("quire: the prompt is empty", file=sys.stderr)
        return 2
    try:
        if with_prompt:
            print(text, end="", flush=True)
        for piece in pieces(server, text, options):
            print(piece, end="", flush=True)
        print()
    except ChatError as error:
        print(f"quire: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(" [stopped]")
        return 130
    return 0
