"""`quire chat`: a conversation in the terminal, through the OpenAI endpoint like any other client.

One job: the terminal. It knows the HTTP API alone, so it also talks to a suite elsewhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

HELP = "/clear forgets the conversation, /exit ends; Ctrl-C stops an answer"


class ChatError(Exception):
    """The server refused, or does not answer; the message is for the user."""


@dataclass
class Chat:
    """One conversation with one model."""

    url: str
    model: str | None = None
    system: str | None = None
    api_key: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        self.client = httpx.Client(
            base_url=self.url.rstrip("/") + "/", headers=headers, timeout=httpx.Timeout(10, read=None)
        )
        self.clear()

    def clear(self) -> None:
        """Forget the conversation."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def pick_model(self) -> str:
        """The model asked for, or the first one served that generates. Raises ChatError without one."""
        if self.model is None:
            try:
                answer = self.client.get("models")
            except httpx.HTTPError as error:
                raise ChatError(
                    f"nothing answers at {self.url} ({error}); start a suite with: quire up"
                ) from error
            check(answer)
            models = answer.json()["data"]
            if not models:
                raise ChatError("the server has no model")
            # Servers that say what a model can do may list one first that does not talk.
            able = [model for model in models if "generate" in model.get("tasks", ("generate",))]
            if not able:
                raise ChatError("no model there generates text")
            self.model = str(able[0]["id"])
        return self.model

    def ask(self, text: str) -> Iterator[str]:
        """The answer's pieces as they come. Of an answer that is cut short, the conversation keeps what came."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": self.pick_model(), "messages": self.messages, "stream": True, **self.options}
        answer = ""
        try:
            for piece in self.pieces("chat/completions", body, _piece):
                answer += piece
                yield piece
        finally:
            if answer:
                self.messages.append({"role": "assistant", "content": answer})
            else:
                self.messages.pop()

    def pieces(
        self, endpoint: str, body: dict[str, Any], text_of: Callable[[dict[str, Any]], str]
    ) -> Iterator[str]:
        """The texts of an endpoint's choices as they come. Raises ChatError for whatever ends them early."""
        try:
            with self.client.stream("POST", endpoint, json=body) as response:
                if response.status_code != 200:
                    response.read()
                check(response)
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield "".join(text_of(choice) for choice in _choices(json.loads(line[6:])))
        except httpx.HTTPError as error:
            raise ChatError(f"the connection was lost: {error}") from error


def _choices(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of one event. Raises ChatError for an error event."""
    if "error" in chunk:
        raise ChatError(str(chunk["error"].get("message", chunk["error"])))
    return list(chunk.get("choices", ()))


def _piece(choice: dict[str, Any]) -> str:
    return choice["delta"].get("content") or ""


def check(response: httpx.Response) -> None:
    """Raise ChatError with what the server says unless it answered well."""
    if response.status_code == 200:
        return
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    raise ChatError(f"{response.status_code}: {message}")


def run_chat(chat: Chat, prompt: str | None) -> int:
    """Answer `prompt` and return, or converse until the input ends; the exit status."""
    try:
        if prompt is not None:
            _print_answer(chat, prompt)
            return 0
        print(f"{chat.pick_model()} at {chat.url} - {HELP}", file=sys.stderr)
        _converse(chat)
    except ChatError as error:
        print(f"quire: {error}", file=sys.stderr)
        return 1
    return 0


def _converse(chat: Chat) -> None:
    if sys.stdin.isatty():
        import readline  # noqa: F401 - line editing and history for input()
    while True:
        try:
            text = input("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text == "/exit":
            return
        if text == "/clear":
            chat.clear()
        elif text.startswith("/"):
            print(HELP)
        elif text:
            try:
                _print_answer(chat, text)
            except KeyboardInterrupt:
                print(" [stopped]")
            except ChatError as error:
                print(f"\nquire: {error}", file=sys.stderr)


def _print_answer(chat: Chat, text: str) -> None:
    for piece in chat.ask(text):
        print(piece, end="", flush=True)
    print()
