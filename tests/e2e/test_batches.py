"""Files and batch jobs through Envoy: the real openai client, a killed gateway, and the command."""

import json
import os
import signal

import openai
import pytest

pytestmark = pytest.mark.e2e

NUM_LINES = 300


def request(number, **body):
    """One line."""
    body = {"prompt": [5, 6, 7], "max_tokens": 20, "seed": number, "ignore_eos": True, **body}
    return {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions", "body": body}


def jsonl(*documents):
    """A file of them."""
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


@pytest.fixture(scope="module")
def suite(running_suite, tmp_path_factory):
    """A suite without a model that has a folder for batches."""
    gateway = {"batch_folder": str(tmp_path_factory.mktemp("batches")), "batch_concurrency": 4}
    with running_suite("--simulate", "--step-ms", "5", gateway=gateway) as running:
        yield running


@pytest.fixture(scope="module")
def client(suite):
    """The real client."""
    with suite.openai() as opened:
        yield opened


def upload(client, data):
    """The id of a new file."""
    return client.files.create(file=("jobs.jsonl", data), purpose="batch").id


def finished(client, batch_id, wait_until):
    """The job at its end; errors of a gateway that restarts count as not yet."""

    def ended():
        try:
            batch = client.batches.retrieve(batch_id)
        except (openai.APIConnectionError, openai.InternalServerError):
            return None
        return batch if batch.status in ("completed", "failed", "expired", "cancelled") else None

    return wait_until(ended, 120, "the batch's end")


def test_files(client):
    """A file is uploaded, listed, read back byte for byte and deleted."""
    data = jsonl(*map(request, range(50)))
    file = client.files.create(file=("jobs.jsonl", data), purpose="batch")
    assert (file.bytes, file.filename) == (len(data), "jobs.jsonl")
    assert file.id in [found.id for found in client.files.list()]
    assert client.files.content(file.id).read() == data
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_job_survives_a_killed_gateway(client, suite, wait_until):
    """After kill -9 in the middle every line is answered once, and those that were wrong are told apart."""
    wrong = request(NUM_LINES, temperature=9)
    file_id = upload(client, jsonl(*map(request, range(NUM_LINES)), wrong))
    batch = client.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
    for _ in range(2):
        done = client.batches.retrieve(batch.id).request_counts.completed
        wait_until(
            lambda done=done: client.batches.retrieve(batch.id).request_counts.completed > done + 10, 60
        )
        pid = suite.pid_of("gateway")
        os.kill(pid, signal.SIGKILL)
        suite.wait_restarted("gateway", pid)
    ended = finished(client, batch.id, wait_until)
    assert ended.status == "completed"
    assert (ended.request_counts.total, ended.request_counts.completed) == (NUM_LINES + 1, NUM_LINES)
    records = [json.loads(line) for line in client.files.content(ended.output_file_id).text.splitlines()]
    assert [record["custom_id"] for record in records] == [f"r{number}" for number in range(NUM_LINES)]
    assert all(record["response"]["body"]["usage"]["completion_tokens"] == 20 for record in records)
    (failed,) = map(json.loads, client.files.content(ended.error_file_id).text.splitlines())
    assert (failed["custom_id"], failed["response"]["status_code"]) == (f"r{NUM_LINES}", 400)


def test_cancel(client, suite, wait_until):
    """A cancelled job ends, keeps its answers, and leaves nothing running."""
    file_id = upload(client, jsonl(*(request(number, max_tokens=500) for number in range(100))))
    batch = client.batches.create(input_file_id=file_id, endpoint="/v1/completions", completion_window="24h")
    client.batches.cancel(batch.id)
    assert finished(client, batch.id, wait_until).status == "cancelled"
    suite.wait_idle()


def test_the_command(suite, tmp_path):
    """`quire batch FILE` runs the file and writes the answers beside it."""
    file = tmp_path / "jobs.jsonl"
    file.write_bytes(jsonl(*map(request, range(5))))
    done = suite.command("batch", str(file))
    assert done.returncode == 0, done.stderr
    output = tmp_path / "jobs.jsonl.output.jsonl"
    assert done.stdout.strip() == str(output)
    assert len(output.read_text().splitlines()) == 5
