"""The load generator against a scripted server on loopback: counting, errors, keep-alive, both loops."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
import uvloop

from quire_bench.fake_server import SSE_HEAD, chunked, event, fake_server, json_response, text_chunk
from quire_bench.load import Client, closed_loop, open_loop
from quire_bench.models import only_model
from quire_bench.openai_client import ApiOptions, RequestRecord
from quire_bench.workloads import GenerationRequest

REQUEST = GenerationRequest([1, 2, 3], max_tokens=3, num_prompt_tokens=3)
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}
DONE = b"data: [DONE]\n\n"


async def answer(wire: bytes, options: ApiOptions | None = None, **client_options: Any) -> RequestRecord:
    """One request to a server that answers with `wire` and closes."""

    async def respond(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(wire)
        await writer.drain()
        writer.close()

    async with fake_server(respond) as url:
        client = Client(url, options or ApiOptions("m"), **client_options)
        try:
            return await client.generate(REQUEST)
        finally:
            client.close()


def sse(*events: bytes) -> bytes:
    """A whole event stream, a chunk an event."""
    return SSE_HEAD + b"".join(chunked(e) for e in events) + b"0\r\n\r\n"


async def test_usage_counts_coalesced_tokens() -> None:
    """Three tokens in two chunks count as three where the server says so; text and times are of the chunks."""
    wire = sse(event(text_chunk("a")), event(text_chunk("bc", "length")), event(USAGE), DONE)
    record = await answer(wire, keep_text=True)
    assert record.ok
    assert (record.num_output_tokens, record.count_source) == (3, "usage")
    assert record.text_parts == ["a", "bc"]
    assert len(record.chunk_times) == 2
    assert record.sent <= record.chunk_times[0] <= record.chunk_times[1] <= record.finished


async def test_fixed_length_counts_when_there_is_no_usage() -> None:
    """Without usage, an answer that was cut at max_tokens with EOS ignored has max_tokens tokens."""
    record = await answer(sse(event(text_chunk("abc", "length")), DONE))
    assert (record.num_output_tokens, record.count_source) == (3, "fixed-length")


async def test_chunks_count_when_nothing_else_does() -> None:
    """Without usage and with a natural end only chunks can be counted, and the record says so."""
    record = await answer(
        sse(event(text_chunk("ab")), event(text_chunk("c", "stop")), DONE), ApiOptions("m", ignore_eos=False)
    )
    assert (record.num_output_tokens, record.count_source) == (2, "chunks")


async def test_chat_role_chunk_is_not_the_first_token() -> None:
    """A chunk with a role and no text does not end the time to the first token."""
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    text = event({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]})
    record = await answer(sse(role, text, DONE))
    assert record.ok
    assert len(record.chunk_times) == 1


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (json_response(429, {"error": {"message": "queue full"}}), "HTTP 429: queue full"),
        (b"HTTP/1.1 503 X\r\nContent-Length: 4\r\n\r\nbusy", "HTTP 503: busy"),
        (b"HTTP/1.1 204 X\r\n\r\n", "HTTP 204: (empty body)"),
        (
            sse(event(text_chunk("a")), event({"error": {"message": "worker lost"}})),
            "in the stream: worker lost",
        ),
        (sse(event(text_chunk("a")), DONE), "the stream ended without a finish_reason"),
        (sse(event(text_chunk("a", "stop"))), "the stream ended without [DONE]"),
        (SSE_HEAD + chunked(event(text_chunk("a"))), "ConnectionResetError"),
        (SSE_HEAD + b"xyz\r\n", "FramingError"),
        (sse(b"data: {not json\n\n"), "JSONDecodeError"),
        (b"nonsense\r\n\r\n", "ValueError"),
    ],
)
async def test_failures_end_in_the_record(wire: bytes, message: str) -> None:
    """Every way an answer can go wrong becomes the record's error, never an exception and never a good request."""
    record = await answer(wire)
    assert record.error is not None
    assert message in record.error


async def test_nobody_listening_ends_in_the_record() -> None:
    """A refused connection is a failed request."""
    client = Client("http://127.0.0.1:9/v1", ApiOptions("m"))
    record = await client.generate(REQUEST)
    assert record.error is not None
    assert "Error" in record.error


async def test_timeout_ends_in_the_record() -> None:
    """A server that stays silent fails the request after the time allowed."""

    async def respond(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with fake_server(respond) as url:
        record = await Client(url, ApiOptions("m"), timeout_s=0.05).generate(REQUEST)
    assert record.error == "no end within 0.05 s"


async def test_whole_answers_are_read() -> None:
    """Without streaming the answer's usage is the count and its one arrival is the first text."""
    body = {"choices": [{"text": "abc", "finish_reason": "length"}], "usage": {"completion_tokens": 3}}
    record = await answer(json_response(200, body), ApiOptions("m", stream=False))
    assert record.ok
    assert (record.num_output_tokens, len(record.chunk_times)) == (3, 1)


async def test_body_that_ends_with_the_connection_is_whole() -> None:
    """HTTP/1.0 style answers, ended by closing, are complete answers."""
    wire = b"HTTP/1.0 200 OK\r\n\r\n" + event(text_chunk("abc", "length")) + DONE
    assert (await answer(wire)).ok


async def test_extension_field_is_kept_with_its_time() -> None:
    """A named chunk field comes back with the time its chunk arrived."""
    chunk = text_chunk("a", "length") | {"quire": {"sampled_at_unix_us": 5}}
    record = await answer(sse(event(chunk), DONE), extension="quire")
    assert [chunk.value for chunk in record.extension_chunks] == [{"sampled_at_unix_us": 5}]
    assert record.extension_chunks[0].arrived == record.chunk_times[0]


async def test_closed_loop_keeps_so_many_running_over_kept_connections() -> None:
    """Never more than `concurrency` requests run, all are answered, and connections are used again."""
    running, most, writers = 0, 0, set()

    async def respond(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        writers.add(writer)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        writer.write(sse(event(text_chunk("abc", "length")), DONE))

    seen: list[RequestRecord] = []
    async with fake_server(respond) as url:
        client = Client(url, ApiOptions("m"))
        result = await closed_loop(client, [REQUEST] * 12, 3, seen.append)
        client.close()
    assert [r.error for r in result.records] == [None] * 12
    assert seen == result.records
    assert most == 3
    assert len(writers) == 3


async def test_open_loop_starts_on_time_whatever_the_server_does() -> None:
    """Arrivals follow the rate even if no answer comes, and latency counts from the scheduled time."""
    release = asyncio.Event()
    num_arrived = 0

    async def respond(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal num_arrived
        num_arrived += 1
        if num_arrived == 5:
            release.set()
        await release.wait()
        writer.write(sse(event(text_chunk("abc", "length")), DONE))

    async with fake_server(respond) as url:
        client = Client(url, ApiOptions("m"))
        result = await open_loop(client, [REQUEST] * 5, 500.0, poisson=False)
        client.close()
    scheduled = sorted(record.scheduled for record in result.records)
    assert [r.ok for r in result.records] == [True] * 5
    assert [b - a for a, b in itertools.pairwise(scheduled)] == pytest.approx([0.002] * 4)


async def test_request_says_what_the_options_say() -> None:
    """Model, prompt, lengths, stream options and extra fields arrive as given."""
    bodies = []

    async def respond(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        bodies.append((path, body))
        writer.write(sse(event(text_chunk("abc", "length")), DONE))

    options = ApiOptions("m", continuous_usage=True, extra={"seed": 7})
    async with fake_server(respond) as url:
        client = Client(url, options)
        await client.generate(REQUEST)
        client.close()
    assert bodies == [
        (
            "/v1/completions",
            {
                "model": "m",
                "prompt": [1, 2, 3],
                "max_tokens": 3,
                "temperature": 0,
                "stream": True,
                "ignore_eos": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                "seed": 7,
            },
        )
    ]


async def test_only_model_refuses_to_guess() -> None:
    """The model's name is taken from the server when there is one, and asked for when there are more."""
    names = ["a"]

    async def respond(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(json_response(200, {"data": [{"id": name} for name in names]}))

    async with fake_server(respond) as url:
        assert await only_model(url) == "a"
        names.append("b")
        with pytest.raises(ValueError, match="name one"):
            await only_model(url)


def test_client_works_on_uvloop() -> None:
    """The benchmarks run on uvloop, whose transports are not asyncio's: a request works there too."""
    record = uvloop.run(answer(sse(event(text_chunk("abc", "length")), DONE)))
    assert record.ok
