"""The terminal chat against a small HTTP server that speaks the OpenAI dialect."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from quire_launcher.chat import Chat, ChatError, run_chat
from quire_launcher.complete import run_complete


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the events of `server.events`, and keeps what it was asked."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        self.answer(200, json.dumps({"data": [{"id": "tiny"}]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        if self.server.refuse:
            self.answer(429, json.dumps({"error": {"message": "the queue is full"}}).encode())
        else:
            self.answer(200, b"".join(b"data: " + event + b"\n\n" for event in self.server.events))

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def delta(text: str) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


@pytest.fixture
def server():
    """A server that says "Hello", and the list of what it was asked."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.refuse = [], False
    made.events = [b'{"choices": [{"delta": {"role": "assistant"}}]}', delta("Hel"), delta("lo"), b"[DONE]"]
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    made.url = f"http://127.0.0.1:{made.server_port}/v1"
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_complete_prints_the_pieces_behind_the_prompt(server, capsys):
    """`quire complete --echo` prints prompt and completion as one text, and asks the completions endpoint."""
    server.events = [b'{"choices": [{"text": " jumps"}]}', b'{"choices": [{"text": " over"}]}', b"[DONE]"]
    assert run_complete(Chat(server.url), "The fox", {"max_tokens": 5}, with_prompt=True) == 0
    assert capsys.readouterr().out == "The fox jumps over\n"
    assert server.asked == [{"model": "tiny", "prompt": "The fox", "stream": True, "max_tokens": 5}]


def test_complete_says_what_the_server_said(server, capsys):
    """A refusal is a readable line and exit status 1; an empty prompt asks nobody."""
    server.refuse = True
    assert run_complete(Chat(server.url), "x", {}) == 1
    assert "429: the queue is full" in capsys.readouterr().err
    assert run_complete(Chat(server.url), "", {}) == 2
    assert len(server.asked) == 1


@pytest.fixture
def chat(server):
    """A conversation with `server`."""
    made = Chat(url=server.url, system="Be brief.", options={"temperature": 0})
    yield made
    made.client.close()


def test_pieces_come_and_the_conversation_grows(chat, server):
    """The second question carries the first one and its answer."""
    assert list(chat.ask("Hi")) == ["", "Hel", "lo"]
    list(chat.ask("And?"))
    assert server.asked[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "And?"},
    ]
    assert (server.asked[1]["model"], server.asked[1]["temperature"], server.asked[1]["stream"]) == (
        "tiny",
        0,
        True,
    )


def test_an_error_event_is_an_error(chat, server):
    """An error in the middle of the stream is shown, and what came before it is kept."""
    server.events = [delta("Hel"), b'{"error": {"message": "the worker was lost"}}']
    with pytest.raises(ChatError, match="the worker was lost"):
        list(chat.ask("Hi"))
    assert chat.messages[-1] == {"role": "assistant", "content": "Hel"}


def test_a_refusal_leaves_the_conversation_as_it_was(chat, server):
    """A question that got no answer can be asked again."""
    server.refuse = True
    with pytest.raises(ChatError, match="429: the queue is full"):
        list(chat.ask("Hi"))
    assert [message["role"] for message in chat.messages] == ["system"]


def test_one_question_on_the_command_line(chat, capsys):
    """`quire chat TEXT` prints the answer and returns."""
    assert run_chat(chat, "Hi") == 0
    assert capsys.readouterr().out == "Hello\n"


def test_nobody_there_is_one_line(capsys):
    """Without a server the command fails and says how to start one."""
    chat = Chat(url="http://127.0.0.1:1/v1")
    assert run_chat(chat, "Hi") == 1
    assert "quire up" in capsys.readouterr().err
    chat.client.close()


def test_a_conversation_with_commands(chat, server, monkeypatch, capsys):
    """/clear forgets, an unknown command shows help, /exit ends."""
    lines = iter(["Hi", "/clear", "Again", "/what", "", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert run_chat(chat, None) == 0
    assert [len(asked["messages"]) for asked in server.asked] == [2, 2]
    assert "/clear forgets" in capsys.readouterr().out
