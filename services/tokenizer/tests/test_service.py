"""The contract quire.tokenizer.v1 over a real server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import sys

import grpc
import pytest
from prometheus_client import CollectorRegistry

from quire.admin.v1 import admin_service_pb2
from quire.admin.v1.admin_service_pb2_grpc import AdminStub, add_AdminServicer_to_server
from quire.tokenizer.v1 import detokenize_pb2, encode_pb2, vocabulary_pb2
from quire.tokenizer.v1.tokenizer_service_pb2_grpc import TokenizerStub, add_TokenizerServicer_to_server
from quire_servicekit.error_details import error_of
from quire_servicekit.errors import InvalidRequest, Unsupported
from quire_servicekit.health import check
from quire_servicekit.server import ServiceServer, add
from quire_tokenizer.conversation import ChatLimits
from quire_tokenizer.encode import TextLimits
from quire_tokenizer.metrics import TokenizerMetrics
from quire_tokenizer.servicer import SERVICE_NAME, TokenizerServicer
from quire_tokenizer.servicer_admin import TokenizerAdmin
from quire_tokenizer.settings import TokenizerSettings
from quire_tokenizer.text_pool import PoolLimits, TextPool

Batch = detokenize_pb2.DetokenizeStreamRequest
Open = detokenize_pb2.OpenStream


@pytest.fixture
def registry() -> CollectorRegistry:
    """The metrics of one server."""
    return CollectorRegistry()


@pytest.fixture
async def servicer(smollm2, smollm2_path, registry):
    """The servicer with small limits."""
    settings = TokenizerSettings(
        model=smollm2_path, max_text_chars=5000, max_inline_chars=100, max_decode_tokens=500
    )
    pool = TextPool(settings.pool_limits())
    yield TokenizerServicer(
        smollm2,
        pool,
        TokenizerMetrics(registry),
        text_limits=settings.text_limits(),
        chat_limits=settings.chat_limits(),
        max_streams=100,
    )
    pool.close()


@pytest.fixture
async def server(servicer, smollm2_path):
    """A server on a free port."""
    settings = TokenizerSettings(model=smollm2_path, listen="127.0.0.1:0", drain_timeout_s=5)
    server = ServiceServer(settings, names=[SERVICE_NAME])
    add(server, add_TokenizerServicer_to_server, servicer)
    add(server, add_AdminServicer_to_server, TokenizerAdmin(server.health, servicer.work, drain_timeout_s=5))
    async with server:
        await server.ready()
        yield server


@pytest.fixture
async def channel(server):
    """A channel to the server."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture
def stub(channel) -> TokenizerStub:
    """A client of the server."""
    return TokenizerStub(channel)


async def error_from(call) -> Exception:
    """The exception that a failed call stands for."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value)


def chat_request(messages: list, **fields) -> encode_pb2.RenderChatRequest:
    """A request to render `messages`."""
    return encode_pb2.RenderChatRequest(messages_json=[json.dumps(message) for message in messages], **fields)


async def test_encode_gives_golden_ids_of_short_and_long_texts(stub, golden):
    """Texts come back in order, whether they were encoded at once or on a thread."""
    raw = [item for item in golden if item["kind"] == "raw"]
    for batch in (raw, raw[:1]):
        response = await stub.Encode(encode_pb2.EncodeRequest(texts=[item["prompt_text"] for item in batch]))
        assert list(response.num_tokens) == [len(item["prompt_ids"]) for item in batch]
        assert list(response.token_ids) == [token_id for item in batch for token_id in item["prompt_ids"]]


async def test_chat_gives_golden_prompts(stub, golden):
    """A conversation comes back as the reference's text and ids."""
    for item in golden:
        if item["kind"] == "chat":
            response = await stub.RenderChat(chat_request(item["prompt"]))
            assert response.text == item["prompt_text"]
            assert list(response.token_ids) == item["prompt_ids"]


async def test_chat_options_reach_the_template(stub):
    """add_generation_prompt, continue_final_message and tokenize do what they say."""
    messages = [{"role": "user", "content": "hi"}]
    bare = await stub.RenderChat(chat_request(messages, add_generation_prompt=False, tokenize=False))
    assert bare.text.endswith("<|im_start|>user\nhi<|im_end|>\n") and not bare.token_ids
    messages.append({"role": "assistant", "content": "I am "})
    continued = await stub.RenderChat(chat_request(messages, continue_final_message=True))
    assert continued.text.endswith("<|im_start|>assistant\nI am ")


async def test_chat_prompt_gets_no_second_bos(sentencepiece, registry):
    """What the template wrote is encoded as it is: a BOS of the tokenizer's own would be one too many."""
    servicer = TokenizerServicer(
        dataclasses.replace(
            sentencepiece, chat_templates={"default": "{{ bos_token }}{{ messages[0].content }}"}
        ),
        TextPool(PoolLimits()),
        TokenizerMetrics(registry),
        text_limits=TextLimits(),
        chat_limits=ChatLimits(max_chars=1000),
        max_streams=1,
    )
    response = await servicer.RenderChat(chat_request([{"role": "user", "content": "ab"}]), None)
    assert response.text == "<s>ab"
    assert list(response.token_ids).count(1) == 1


async def test_decode_is_the_reference_text(stub, golden):
    """Output ids decode to the reference's text; special tokens are shown on demand."""
    ids = golden[0]["output_ids"]
    assert (await stub.Decode(encode_pb2.DecodeRequest(token_ids=ids))).text == golden[0]["output_text"]
    shown = await stub.Decode(encode_pb2.DecodeRequest(token_ids=ids, skip_special_tokens=False))
    assert shown.text == golden[0]["output_text"] + "<|im_end|>"


@pytest.mark.parametrize(
    ("method", "request_", "kind", "words"),
    [
        ("Encode", encode_pb2.EncodeRequest(), InvalidRequest, "texts must be 1 to"),
        ("Encode", encode_pb2.EncodeRequest(texts=["x" * 5001]), InvalidRequest, "5000 characters, got 5001"),
        ("Decode", encode_pb2.DecodeRequest(token_ids=[49152]), InvalidRequest, "49152, got 49152"),
        ("Decode", encode_pb2.DecodeRequest(token_ids=[1] * 501), InvalidRequest, "500 token ids, got 501"),
        ("RenderChat", chat_request([]), InvalidRequest, "at least one message"),
        ("RenderChat", chat_request([{"role": "user"}]), InvalidRequest, "refused the messages"),
        (
            "RenderChat",
            chat_request([{"role": "user", "content": "x" * 5001}]),
            InvalidRequest,
            "messages must be",
        ),
        (
            "RenderChat",
            chat_request([{"role": "a", "content": ""}], chat_template="x"),
            Unsupported,
            "chat_template",
        ),
    ],
)
async def test_wrong_requests_are_refused_by_name(stub, method, request_, kind, words):
    """Every refusal is INVALID_ARGUMENT with details from which the client makes the same exception."""
    error = await error_from(getattr(stub, method)(request_))
    assert type(error) is kind
    assert words in error.message


async def test_stream_gives_one_response_per_batch_in_order(stub, golden):
    """Streams of golden outputs, one token of each per batch, join to the reference's texts."""
    outputs = [item["output_ids"] for item in golden]
    texts = [""] * len(outputs)
    call = stub.DetokenizeStream()
    for step in range(max(map(len, outputs))):
        rows = [handle for handle, ids in enumerate(outputs) if step < len(ids)]
        await call.write(
            Batch(
                batch_id=step,
                open=[Open(handle=handle) for handle in rows] if step == 0 else (),
                handles=rows,
                num_tokens=[1] * len(rows),
                token_ids=[outputs[handle][step] for handle in rows],
                is_last=[int(step + 1 == len(outputs[handle])) for handle in rows],
            )
        )
        response = await call.read()
        assert response.batch_id == step and not response.failures
        for handle, text in zip(rows, response.texts, strict=True):
            texts[handle] += text
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert texts == [item["output_text"] for item in golden]


async def test_batches_in_flight_are_answered_in_order(stub):
    """A caller may send several batches before it reads the first answer."""
    call = stub.DetokenizeStream()
    await call.write(Batch(batch_id=0, open=[Open(handle=1)]))
    for batch_id in range(1, 20):
        await call.write(Batch(batch_id=batch_id, handles=[1], num_tokens=[1], token_ids=[504], is_last=[0]))
    answers = [await call.read() for _ in range(20)]
    assert [answer.batch_id for answer in answers] == list(range(20))
    assert [list(answer.texts) for answer in answers[1:]] == [["The"]] * 19
    call.cancel()


async def test_bad_handle_and_bad_token_fail_alone(stub):
    """In one batch the healthy stream gets its text, and the others their reasons."""
    call = stub.DetokenizeStream()
    await call.write(
        Batch(open=[Open(handle=1), Open(handle=2)], handles=[1, 2, 3], num_tokens=[1] * 3,
              token_ids=[504, 60000, 504], is_last=[0, 0, 0])
    )  # fmt: skip
    answer = await call.read()
    assert list(answer.texts) == ["The", "", ""]
    assert list(answer.failed_handles) == [2, 3]
    assert "60000" in answer.failures[0] and "not open" in answer.failures[1]
    await call.write(Batch(handles=[1], num_tokens=[1], token_ids=[504], is_last=[0], close=[1, 77]))
    assert list((await call.read()).texts) == ["The"]
    call.cancel()


async def test_columns_that_do_not_fit_end_the_call(stub):
    """A caller whose columns contradict each other has a bug, and learns of it."""
    call = stub.DetokenizeStream()
    await call.write(Batch(open=[Open(handle=1)], handles=[1], num_tokens=[2], token_ids=[504], is_last=[0]))
    assert isinstance(await error_from(call.read()), InvalidRequest)


async def test_stream_moves_to_another_call_in_the_middle_of_a_character(stub, smollm2):
    """What the first call held back comes from the second, opened with the last tokens as context."""
    ids = smollm2.backend.encode("I like \U0001fae8 a lot").ids
    for cut in range(len(ids)):
        text = ""
        for first, part in ((True, ids[:cut]), (False, ids[cut:])):
            call = stub.DetokenizeStream()
            opened = Open(handle=5, context_token_ids=() if first else ids[:cut][-16:])
            await call.write(
                Batch(
                    open=[opened],
                    handles=[5],
                    num_tokens=[len(part)],
                    token_ids=part,
                    is_last=[int(not first)],
                )
            )
            text += (await call.read()).texts[0]
            call.cancel()
        assert text == "I like \U0001fae8 a lot", cut


async def test_cancelled_call_drops_its_streams(stub, servicer, registry):
    """When a caller goes away nothing of it stays, and a drain does not wait for it."""
    call = stub.DetokenizeStream()
    await call.write(Batch(open=[Open(handle=handle) for handle in range(10)]))
    await call.read()
    assert registry.get_sample_value("quire_tokenizer_open_streams") == 10
    call.cancel()
    async with asyncio.timeout(5):
        await servicer.work.wait_idle()
    assert registry.get_sample_value("quire_tokenizer_open_streams") == 0


async def test_drain_lets_open_streams_end(stub, server, servicer):
    """A server that is told to stop finishes its open streams; the idle call of a gateway does not hold it."""
    idle = stub.DetokenizeStream()
    await idle.write(Batch(batch_id=1))
    await idle.read()
    call = stub.DetokenizeStream()
    await call.write(Batch(open=[Open(handle=1)]))
    await call.read()
    stopping = asyncio.ensure_future(server.stop(servicer.work.wait_idle))
    await asyncio.sleep(0.05)
    assert not stopping.done()
    await call.write(Batch(handles=[1], num_tokens=[1], token_ids=[504], is_last=[1]))
    assert list((await call.read()).texts) == ["The"]
    async with asyncio.timeout(3):
        await stopping


async def test_admin_drains_and_resumes(stub, channel):
    """Drain reports NOT_SERVING and returns when the open streams have ended or the time is over; Resume undoes it."""
    admin = AdminStub(channel)
    call = stub.DetokenizeStream()
    await call.write(Batch(open=[Open(handle=1)]))
    await call.read()
    status = await admin.GetStatus(admin_service_pb2.GetStatusRequest())
    assert (status.service, status.state) == ("tokenizer", admin_service_pb2.SERVICE_STATE_SERVING)
    assert status.num_in_flight == 1 and status.pid and status.started_at.seconds
    brief = admin_service_pb2.DrainRequest()
    brief.timeout.FromMilliseconds(20)
    assert (await admin.Drain(brief)).num_in_flight == 1
    assert not await check(channel, SERVICE_NAME)
    draining = asyncio.ensure_future(admin.Drain(admin_service_pb2.DrainRequest()))
    await call.write(Batch(close=[1]))
    assert (await draining).num_in_flight == 0
    status = await admin.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_DRAINING
    await admin.Resume(admin_service_pb2.ResumeRequest())
    assert await check(channel, SERVICE_NAME)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.Pause(admin_service_pb2.PauseRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    call.cancel()


async def test_get_tokenizer_says_what_it_is(stub, smollm2):
    """Fingerprint, ids, the sources of the chat templates and, on demand, the bytes of all tokens."""
    brief = await stub.GetTokenizer(vocabulary_pb2.GetTokenizerRequest())
    assert brief.fingerprint == smollm2.fingerprint
    assert (brief.vocab_size, brief.bos_token_id, list(brief.eos_token_ids)) == (49152, 1, [2])
    assert list(brief.special_token_ids) == list(range(17))
    assert brief.has_chat_template and brief.max_text_chars == 5000 and not brief.vocabulary
    assert list(brief.chat_templates) == [smollm2.chat_templates["default"]]
    full = await stub.GetTokenizer(vocabulary_pb2.GetTokenizerRequest(with_vocabulary=True))
    assert list(full.vocabulary) == smollm2.vocabulary.token_bytes
    assert full.text_scheme == vocabulary_pb2.TEXT_SCHEME_BYTES
    assert full.num_leading_spaces_stripped == 0


async def test_metrics_count_what_goes_through(stub, registry):
    """Characters, tokens, batches and failures are counted."""
    await stub.Encode(encode_pb2.EncodeRequest(texts=["The", "The"]))
    call = stub.DetokenizeStream()
    await call.write(Batch(handles=[1], num_tokens=[1], token_ids=[504], is_last=[0]))
    await call.read()
    call.cancel()
    counted = {
        name: registry.get_sample_value(f"quire_tokenizer_{name}_total")
        for name in (
            "encoded_chars",
            "encoded_tokens",
            "detokenized_tokens",
            "detokenize_batches",
            "detokenize_failures",
        )
    }
    assert list(counted.values()) == [6, 2, 1, 1, 1]


@contextlib.asynccontextmanager
async def process(*flags: str):
    """The quire-tokenizer command as a process."""
    command = [sys.executable, "-m", "quire_tokenizer.main", *flags]
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_command_serves_and_ends_in_order(smollm2_path):
    """The command loads the model, says where it listens, answers, and ends with 0 on SIGTERM."""
    async with asyncio.timeout(60), process("--model", str(smollm2_path), "--listen", "127.0.0.1:0") as child:
        address = ""
        while not address:
            event = json.loads(await child.stderr.readline())
            address = event["address"] if event["event"] == "ready" else ""
        async with grpc.aio.insecure_channel(address) as channel:
            assert await check(channel, SERVICE_NAME, timeout_s=10)
            response = await TokenizerStub(channel).Encode(
                encode_pb2.EncodeRequest(texts=["Once upon a time"])
            )
            assert list(response.num_tokens) == [4]
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
        await child.stderr.read()


async def test_command_without_a_readable_model_says_why(tmp_path):
    """A start that can't succeed ends with 1 and one line that names the path."""
    async with asyncio.timeout(60), process("--model", str(tmp_path), "--listen", "127.0.0.1:0") as child:
        output = (await child.stderr.read()).decode()
        assert await child.wait() == 1
        assert str(tmp_path) in output and "Traceback" not in output
