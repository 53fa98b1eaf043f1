"""The typed API over a real gRPC server, with fakes behind."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from gateway_fakes import EOS, FakeScheduler
from google.protobuf.json_format import ParseDict

from quire.admin.v1 import admin_service_pb2, admin_service_pb2_grpc
from quire.inference.v1 import chat_pb2, generate_pb2, models_pb2, tokens_pb2
from quire.sampling.v1 import sampling_pb2
from quire_gateway.native_requests import chat_prompt


async def _generate(suite: Any, metadata: Any = (), **fields: Any) -> list[generate_pb2.GenerateResponse]:
    call = suite.client.inference.Generate(generate_pb2.GenerateRequest(**fields), metadata=metadata)
    return [event async for event in call]


async def test_events_come_in_the_contracts_order(suite: Any) -> None:
    """started, deltas, sequence_finished, completed; text, tokens and counts agree."""
    suite.scheduler.num_cached_tokens = 2
    events = await _generate(suite, text="hi", sampling=sampling_pb2.SamplingParams(seed=9))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "started" and kinds[-2:] == ["sequence_finished", "completed"]
    assert set(kinds[1:-2]) == {"delta"}
    started = events[0].started
    assert (started.model, started.num_prompt_tokens, started.seed) == ("fake", 3, 9)
    assert started.request_id == suite.scheduler.submits[0].request_id
    assert "".join(event.delta.text for event in events) == "Hello, world"
    token_ids = [i for event in events for i in event.delta.token_ids]
    assert token_ids == [*b"Hello, world", EOS]
    assert events[1].delta.sampled_at_unix_us > 1000
    finished = events[-2].sequence_finished
    assert (finished.finish_reason, finished.num_output_tokens) == (sampling_pb2.FINISH_REASON_STOP, 13)
    assert finished.WhichOneof("stop_match") is None
    usage = events[-1].completed.usage
    assert (usage.num_prompt_tokens, usage.num_output_tokens, usage.num_cached_tokens) == (3, 13, 2)


async def test_n_sequences_stops_and_logprobs(make_suite: Any) -> None:
    """Each sequence has its index and end; log-probabilities carry bytes."""
    scheduler = FakeScheduler(text_of=lambda submit, index: [b"one. more", b"two"][index])
    suite = await make_suite([scheduler])
    sampling = sampling_pb2.SamplingParams(num_logprobs=1, stop_token_ids=[ord("o")])
    events = await _generate(suite, text="x", n=2, stop=["."], sampling=sampling)
    ends = {
        e.sequence_finished.sequence_index: e.sequence_finished
        for e in events
        if e.HasField("sequence_finished")
    }
    # "one" begins with the stop token; "two" ends with it.
    assert (ends[0].stop_token_id, ends[1].stop_token_id) == (ord("o"), ord("o"))
    logprobs = [entry for e in events for entry in e.delta.logprobs if e.delta.sequence_index == 1]
    assert [entry.token_bytes for entry in logprobs] == [b"t", b"w", b"o"]
    assert logprobs[0].top[0].token_bytes == b"t"
    events = await _generate(
        suite, token_ids=generate_pb2.TokenIds(ids=[1]), n=2, stop=["."], include_stop_text=True
    )
    text = "".join(e.delta.text for e in events if e.delta.sequence_index == 0)
    ends = {
        e.sequence_finished.sequence_index: e.sequence_finished
        for e in events
        if e.HasField("sequence_finished")
    }
    assert (text, ends[0].stop_text) == ("one.", ".")


async def test_tokens_without_text(suite: Any) -> None:
    """detokenize: false leaves text out and asks no tokenizer; stop texts are then refused."""
    events = await _generate(suite, token_ids=generate_pb2.TokenIds(ids=[1, 2]), detokenize=False)
    assert all(not event.delta.text for event in events)
    assert [i for event in events for i in event.delta.token_ids] == [*b"Hello, world", EOS]
    assert suite.tokenizer.num_batches == 0
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _generate(suite, text="x", detokenize=False, stop=["."])
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "stop" in (refused.value.details() or "")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "input"),
        ({"text": "x", "sampling": sampling_pb2.SamplingParams(temperature=3)}, "temperature"),
        (
            {"text": "x", "sampling": sampling_pb2.SamplingParams(num_prompt_logprobs=21)},
            "num_prompt_logprobs",
        ),
        ({"text": "x", "truncation": generate_pb2.Truncation(max_tokens=0)}, "truncation.max_tokens"),
        ({"text": "x", "bad_words": [" "]}, "bad_words"),
        ({"text": "x", "stream_interval": 0}, "stream_interval"),
        ({"chat": chat_pb2.Chat(documents_json=["[]"])}, "documents_json"),
        ({"text": "x" * 20_000}, "text"),
        ({"token_ids": generate_pb2.TokenIds(ids=[258])}, "token_ids"),
        ({"token_ids": generate_pb2.TokenIds()}, "token_ids"),
        ({"chat": chat_pb2.Chat()}, "messages"),
        ({"text": "x", "n": 200}, "n"),
    ],
)
async def test_bad_requests_are_invalid_argument_naming_the_field(
    suite: Any, fields: dict[str, Any], name: str
) -> None:
    """A status with the field's name, and nothing reached the engine."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await _generate(suite, **fields)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert name in (refused.value.details() or "")
    assert suite.scheduler.submits == []


async def test_an_unknown_model_is_not_found(suite: Any) -> None:
    """Generate, Tokenize and GetModel agree on it."""
    stub = suite.client.inference
    for call in (
        stub.Tokenize(tokens_pb2.TokenizeRequest(model="other", text="x")),
        stub.Detokenize(tokens_pb2.DetokenizeRequest(model="other")),
        stub.GetModel(models_pb2.GetModelRequest(model="other")),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await call
        assert missing.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_late_error_is_a_status_on_grpc_and_an_event_on_rest(make_suite: Any) -> None:
    """The edge's header tells which; a REST client cannot see a status after the first message."""
    suite = await make_suite([FakeScheduler(end_with=5)])
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await _generate(suite, text="x")
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    events = await _generate(suite, (("x-envoy-original-path", "/quire/v1/generate"),), text="x")
    assert events[0].HasField("started")
    assert events[-1].error.code == grpc.StatusCode.INTERNAL.value[0]
    # Before the first message a status is right for both.
    with pytest.raises(grpc.aio.AioRpcError):
        await _generate(suite, (("x-envoy-original-path", "/quire/v1/generate"),), text="x", n=200)


async def test_tokenize_and_detokenize(suite: Any) -> None:
    """Text and conversations to ids, and ids to text."""
    stub = suite.client.inference
    plain = await stub.Tokenize(tokens_pb2.TokenizeRequest(text="ab"))
    assert (list(plain.token_ids), plain.max_model_len) == ([257, 97, 98], 1024)
    bare = await stub.Tokenize(tokens_pb2.TokenizeRequest(text="ab", add_special_tokens=False))
    assert list(bare.token_ids) == [97, 98]
    chat = chat_pb2.Chat(messages=[chat_pb2.ChatMessage(role="user", content="x")])
    rendered = await stub.Tokenize(tokens_pb2.TokenizeRequest(chat=chat))
    assert rendered.rendered_text == "user: x\n" and bytes(rendered.token_ids) == b"user: x\n"
    text = await stub.Detokenize(tokens_pb2.DetokenizeRequest(token_ids=[97, 256, 98]))
    assert text.text == "ab"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Tokenize(tokens_pb2.TokenizeRequest())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_conversation_reaches_the_template(suite: Any) -> None:
    """Messages, tools and variables as JSON, whole numbers as such."""
    chat = ParseDict(
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "toolCalls": [{"id": "1", "args": {"a": 1, "b": [1.5, 2]}}]},
                {"role": "tool", "content": "y", "name": "f", "toolCallId": "1"},
            ],
            "tools": [{"type": "function"}],
            "addGenerationPrompt": True,
            "templateKwargs": {"enable_thinking": False},
        },
        chat_pb2.Chat(),
    )
    prompt = chat_prompt(chat)
    assert repr(prompt.messages[1]["tool_calls"][0]["args"]["b"]) == "[1.5, 2]"
    assert prompt.tools == ({"type": "function"},)
    events = await _generate(suite, chat=chat)
    assert events[-1].HasField("completed")
    messages, request = suite.tokenizer.rendered[0]
    assert messages[2] == {"role": "tool", "content": "y", "name": "f", "tool_call_id": "1"}
    assert request.add_generation_prompt and request.template_kwargs_json == '{"enable_thinking": false}'


async def test_models_as_messages(suite: Any) -> None:
    """ListModels and GetModel give the engine's own description."""
    listed = await suite.client.inference.ListModels(models_pb2.ListModelsRequest())
    assert [model.id for model in listed.models] == ["fake"]
    found = await suite.client.inference.GetModel(models_pb2.GetModelRequest(model="fake"))
    assert found.model.fingerprint == "0123456789abcdef"


async def test_admin_status_drain_and_resume(make_suite: Any) -> None:
    """Draining refuses new work, waits for what runs, and is undone by Resume."""
    suite = await make_suite([FakeScheduler(is_paused=True)])
    stub = admin_service_pb2_grpc.AdminStub(suite.client.channel)
    status = await stub.GetStatus(admin_service_pb2.GetStatusRequest())
    assert (status.service, status.state) == ("gateway", admin_service_pb2.SERVICE_STATE_SERVING)
    running = suite.client.inference.Generate(generate_pb2.GenerateRequest(text="x"))
    await running.read()
    request = admin_service_pb2.DrainRequest()
    request.timeout.FromMilliseconds(20)
    assert (await stub.Drain(request)).num_in_flight == 1
    status = await stub.GetStatus(admin_service_pb2.GetStatusRequest())
    assert (status.state, status.num_in_flight) == (admin_service_pb2.SERVICE_STATE_DRAINING, 1)
    refused = await suite.client.complete()
    assert refused.status == 503 and not suite.gateway.server.health.ready
    suite.scheduler.is_paused = False
    assert (await stub.Drain(admin_service_pb2.DrainRequest())).num_in_flight == 0
    await stub.Resume(admin_service_pb2.ResumeRequest())
    assert (await suite.client.complete()).status == 200
    await suite.schedulers[0].kill()
    while suite.gateway.pool.is_ready:
        status = await stub.GetStatus(admin_service_pb2.GetStatusRequest())
    status = await stub.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_DEGRADED


async def test_admin_of_a_gateway_that_has_never_served(make_suite: Any) -> None:
    """Without an engine since its start it is starting; requests that name no known model wait for nobody."""
    suite = await make_suite([FakeScheduler(vocab_size=10)], wait=False)
    stub = admin_service_pb2_grpc.AdminStub(suite.client.channel)
    status = await stub.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_STARTING
    assert (await suite.client.complete()).status == 503
