"""`quire batch` against a small HTTP server that has files and one job."""

from __future__ import annotations

import http.server
import json
import threading

import pytest
from typer.testing import CliRunner

from quire_launcher.batch import BatchClient, run_batch
from quire_launcher.main import app

REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


def job(status, completed=0, failed=0, **more):
    """The job as the server tells it."""
    return {
        "id": "batch_1", "endpoint": "/v1/completions", "status": status, "errors": None,
        "output_file_id": "out" if completed else None, "error_file_id": "err" if failed else None,
        "request_counts": {"total": 2, "completed": completed, "failed": failed}, **more,
    }  # fmt: skip


class Handler(http.server.BaseHTTPRequestHandler):
    """Keeps what it was asked; tells `server.states` one after another."""

    def do_GET(self):
        self.server.asked.append(("GET", self.path, b""))
        if self.path.endswith("/content"):
            self.answer(200, f"{self.path}\n".encode())
        else:
            states = self.server.states
            self.answer(200, json.dumps(states.pop(0) if len(states) > 1 else states[0]).encode())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append(("POST", self.path, body))
        if self.server.refuse:
            self.answer(400, json.dumps({"error": {"message": "no batch_folder"}}).encode())
        elif self.path == "/v1/files":
            self.answer(200, b'{"id": "file-1"}')
        else:
            self.answer(
                200, json.dumps(job("cancelling" if "cancel" in self.path else "validating")).encode()
            )

    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server whose job completes."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.asked, made.refuse = [], False
    made.states = [job("in_progress", completed=1), job("completed", completed=2)]
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    made.url = f"http://127.0.0.1:{made.server_address[1]}/v1"
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture
def requests(tmp_path):
    """A file of requests."""
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps(REQUEST) + "\n")
    return path


def run(server, file, batch_id=None, **options):
    """The command without its command line."""
    options = {"output": None, "errors": None, **options}
    return run_batch(BatchClient(server.url), file, batch_id, poll_s=0.01, **options)


def test_a_file_becomes_answers(server, requests, capsys):
    """The file is uploaded, the job started at the endpoint of its requests and followed, the answers fetched."""
    assert run(server, requests) == 0
    (_, path, form), (_, batches, body) = [entry for entry in server.asked if entry[0] == "POST"]
    assert (path, batches) == ("/v1/files", "/v1/batches")
    assert b'name="purpose"' in form and json.dumps(REQUEST).encode() in form
    assert json.loads(body) == {
        "input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h",
    }  # fmt: skip
    output = requests.with_name("jobs.jsonl.output.jsonl")
    assert output.read_text() == "/v1/files/out/content\n"
    printed = capsys.readouterr()
    assert printed.out.strip() == str(output)
    assert "completed: 2 answered, 0 failed" in printed.err


def test_failed_requests_are_a_failure(server, requests, tmp_path, capsys):
    """The exit status tells of requests that failed; their file is fetched beside the answers."""
    server.states = [job("completed", completed=1, failed=1)]
    errors = tmp_path / "e"
    assert run(server, requests, errors=errors, output=tmp_path / "o") == 1
    assert errors.read_text() == "/v1/files/err/content\n"
    assert "1 failed" in capsys.readouterr().err


def test_what_is_wrong_with_the_input_is_told(server, requests, capsys):
    """A job that could not start says which line is to blame."""
    problem = {"code": "invalid_method", "message": "method must be POST.", "param": "method", "line": 3}
    server.states = [job("failed", errors={"object": "list", "data": [problem]})]
    assert run(server, requests) == 1
    assert "line 3: method must be POST." in capsys.readouterr().err


def test_a_job_can_be_followed_and_ended_later(server, capsys, tmp_path):
    """By its id a job is followed without a file, and ended where that is asked for."""
    assert run(server, None, "batch_1", output=tmp_path / "o") == 0
    assert not [entry for entry in server.asked if entry[0] == "POST"]
    server.states = [job("cancelled")]
    assert run(server, None, "batch_1", cancel=True) == 1
    assert ("POST", "/v1/batches/batch_1/cancel", b"") in server.asked


def test_refusals_are_one_clear_line(server, requests, tmp_path, capsys):
    """What the server says, a file that is not there or no request, and a server that is not there: no traceback."""
    server.refuse = True
    assert run(server, requests) == 1
    assert capsys.readouterr().err == "quire: 400: no batch_folder\n"
    assert run(server, tmp_path / "none") == 1
    assert "cannot read" in capsys.readouterr().err
    requests.write_text("hello\n")
    assert run(server, requests) == 1
    assert "no request" in capsys.readouterr().err
    requests.write_text(json.dumps(REQUEST))
    assert run_batch(BatchClient("http://127.0.0.1:9/v1"), requests, None, output=None, errors=None) == 1
    assert "quire up" in capsys.readouterr().err


def test_the_command_wants_a_file_or_a_job(requests):
    """Neither, or both, is an error of the command line."""
    for arguments in (
        ["batch"],
        ["batch", str(requests), "--id", "batch_1"],
        ["batch", str(requests), "--cancel"],
    ):
        assert CliRunner().invoke(app, arguments).exit_code == 2
