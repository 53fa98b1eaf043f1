"""`quire embed` against a small HTTP server, and what a second engine adds to a suite's plan."""

from __future__ import annotations

import http.server
import io
import json
import threading
from pathlib import Path

import pytest

from quire_launcher import plan
from quire_launcher.embed import BATCH, Embedder, EmbedError, read_texts, run_embed
from quire_launcher.layout import Ports, StateFolder
from quire_launcher.model import resolve_model
from quire_launcher.options import UpOptions


class Handler(http.server.BaseHTTPRequestHandler):
    """Two models, of which one makes embeddings: of each text its length."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):
        self.answer(200, {"data": self.server.models})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        if "bad" in body["input"]:
            self.answer(400, {"error": {"message": "input[0] is bad"}})
        else:
            self.answer(200, {"data": [{"embedding": [len(text)]} for text in body["input"]]})

    def answer(self, status, document):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server, and the list of what it was asked."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked = []
    made.models = [{"id": "chatty", "tasks": ["generate"]}, {"id": "vectors", "tasks": ["embed", "score"]}]
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    made.url = f"http://127.0.0.1:{made.server_port}/v1"
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def test_texts_go_in_batches_in_order(server):
    """Every text has its line, whatever the number of requests; the model is the first one that embeds."""
    texts = [f"text {number}" for number in range(BATCH + 5)]
    found = list(Embedder(server.url, dimensions=3).embed(texts))
    assert [(item["index"], item["text"]) for item in found] == list(enumerate(texts))
    assert [item["embedding"] for item in found] == [[len(text)] for text in texts]
    assert [len(body["input"]) for body in server.asked] == [BATCH, 5]
    assert {(body["model"], body["dimensions"]) for body in server.asked} == {("vectors", 3)}


def test_writes_a_file_with_a_line_each(server, tmp_path):
    """Lines of a file in, JSON lines out; empty lines are left out."""
    (tmp_path / "texts").write_text("one\n\nthree\n")
    assert run_embed(Embedder(server.url), [], tmp_path / "texts", tmp_path / "out") == 0
    lines = (tmp_path / "out").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one", "three"]


def test_reads_standard_input(monkeypatch):
    """A dash stands for standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO("a\nb\n"))
    assert read_texts([], Path("-")) == ["a", "b"]


def test_errors_are_sentences(server, tmp_path, capsys):
    """Refusals, no texts, no file, no model and no server: exit status 1 and one line that says why."""
    cases = [
        (Embedder(server.url), ["bad"], None, "400: input[0] is bad"),
        (Embedder(server.url), [], None, "either texts or --file"),
        (Embedder(server.url), ["  "], None, "no text"),
        (Embedder(server.url), [], tmp_path / "none", "cannot read"),
        (Embedder("http://127.0.0.1:9/v1"), ["a"], None, "quire up"),
    ]
    for embedder, texts, file, words in cases:
        assert run_embed(embedder, texts, file, None) == 1
        assert words in capsys.readouterr().err
    server.models = server.models[:1]
    with pytest.raises(EmbedError, match="chatty"):
        list(Embedder(server.url).embed(["a"]))


def test_minilm_is_found_without_importing_its_package():
    """The alias stands for the folder inside the package."""
    model = resolve_model("minilm")
    assert (model.served_name, (model.path / "modules.json").is_file()) == ("all-minilm-l6-v2", True)


def test_a_second_engine_has_processes_and_ports_of_its_own(tmp_path):
    """Tokenizer, scheduler and worker for the embedding model; the gateway is told of both engines and whose tokenizer
    is whose. Their ports are only taken where they are needed."""
    folder = StateFolder(tmp_path)
    specs = plan.services(UpOptions(port=23000, embedding_model="minilm"), folder)
    commands = {spec.command.name: list(spec.command.arguments) for spec in specs}
    assert set(commands) >= {"embed-tokenizer", "embed-scheduler", "embed-worker"}
    gateway = commands["gateway"]
    assert gateway[gateway.index("--schedulers") + 1] == "127.0.0.1:23003,127.0.0.1:23007"
    assert gateway[gateway.index("--engine-tokenizers") + 1] == "127.0.0.1:23007=127.0.0.1:23006"
    worker = commands["embed-worker"]
    assert worker[worker.index("--task") + 1] == "embed"
    alone = {spec.command.name for spec in plan.services(UpOptions(port=23000), folder)}
    assert alone == {"gateway", "tokenizer", "scheduler", "worker"}
    ports = Ports(23000)
    assert {name for name, _ in ports.all()} - {name for name, _ in ports.all(with_embedding=False)} == {
        name + suffix
        for name in ("embed-tokenizer", "embed-scheduler", "embed-worker")
        for suffix in ("", " metrics")
    }
    assert len({number for _, number in ports.all()}) == len(list(ports.all()))
