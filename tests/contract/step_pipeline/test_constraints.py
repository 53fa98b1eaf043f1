"""Constraints through real scheduler and simulated worker: masks every step, whatever else happens to the sequences.

The simulated worker samples a pseudo-random permitted token, so that every text is a random walk through its grammar.
"""

import asyncio
import json
import re

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from quire.sampling.v1 import sampling_pb2
from quire.scheduler.v1 import serve_pb2
from quire.tokenizer.v1 import tokenizer_service_pb2_grpc, vocabulary_pb2
from quire.worker.v1 import step_pb2, worker_service_pb2_grpc

EOS = 2
# Ids 3 to 258 are the single bytes; beyond are longer tokens.
PIECES = [b"true", b"false", b'{"', b'":', b"abc", b"12", b'",', b"null"]
TOKENS = [b"<pad>", b"<bos>", b"<eos>", *(bytes([value]) for value in range(256)), *PIECES]
PROMPT = list(range(100, 140))
WORKER = {"vocab_size": 300, "first_token_id": 3, "num_token_ids": 250, "eos_token_ids": (EOS,)}
CODE = re.compile(r"[a-z]{30,40}[0-9]{2}")
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "boolean"},
        "b": {"enum": ["abc", "x"]},
        "c": {"type": "integer", "maximum": 99},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}

TOO_LARGE = {
    "allOf": [{"anyOf": [{"properties": {f"{i}.{j}": {}}} for j in range(12)]} for i in range(6)],
}


class TokenizerStub(tokenizer_service_pb2_grpc.TokenizerServicer):
    """Knows a vocabulary, and tells it when `known` is set."""

    def __init__(self):
        self.known = asyncio.Event()

    async def GetTokenizer(self, request, context):
        await self.known.wait()
        return vocabulary_pb2.GetTokenizerResponse(
            fingerprint="f", vocab_size=len(TOKENS), special_token_ids=[0, 1, EOS], vocabulary=TOKENS
        )


@pytest.fixture
async def tokenizer():
    """Address and servicer of a tokenizer."""
    server = grpc.aio.server()
    servicer = TokenizerStub()
    servicer.known.set()
    tokenizer_service_pb2_grpc.add_TokenizerServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", servicer
    await server.stop(0)


@pytest.fixture
async def constrained(pipeline, tokenizer):
    """A scheduler that knows the vocabulary and a worker whose steps take a millisecond."""
    await pipeline.start_worker(step_base_ms=1, **WORKER)
    await pipeline.start_scheduler(tokenizer=tokenizer[0])
    return pipeline


async def submit(gateway, handle, *, max_tokens=200, n=1, resumed=None, seed=None, eos=(EOS,), **constraint):
    """Submit with a constraint; `reasoning` and sampling fields may be among it."""
    message = serve_pb2.Submit(
        handle=handle, request_id=f"r{handle}", prompt_token_ids=PROMPT, n=n, eos_token_ids=eos
    )
    message.sampling.seed = handle if seed is None else seed
    message.sampling.max_tokens = max_tokens
    for name in ("min_tokens", "ignore_eos"):
        if name in constraint:
            setattr(message.sampling, name, constraint.pop(name))
    message.sampling.allowed_token_ids.extend(constraint.pop("allowed_token_ids", ()))
    message.sampling.stop_token_ids.extend(constraint.pop("stop_token_ids", ()))
    if (span := constraint.pop("reasoning", None)) is not None:
        message.sampling.reasoning.CopyFrom(span)
    if constraint:
        message.sampling.constraint.CopyFrom(sampling_pb2.Constraint(**constraint))
    for index, tokens in (resumed or {}).items():
        message.resumed.add(sequence_index=index, output_token_ids=tokens)
    await gateway.call.write(serve_pb2.ServeRequest(submit=message))


def text_of(tokens):
    """The text of output tokens, without the end of sequence."""
    return b"".join(TOKENS[token] for token in tokens if token != EOS).decode()


def refusal(status):
    """Code, and the field that the details name."""
    for detail in status.details:
        violations = error_details_pb2.BadRequest()
        if detail.Unpack(violations):
            return status.code, violations.field_violations[0].field
    return status.code, ""


async def test_every_output_is_a_word_of_its_language(constrained):
    """Many requests of all kinds at once: each output that ended by itself matches its own constraint in full."""
    gateway = await constrained.gateway()
    kinds = {
        "json_schema": json.dumps(SCHEMA),
        "regex": CODE.pattern,
        "choice": sampling_pb2.Choices(texts=["abc", "abcabc", 'é"\\\n']),
        "grammar": 'root ::= "a" ("b" | "c")+ "d"',
    }
    for handle in range(24):
        kind = list(kinds)[handle % 4]
        await submit(
            gateway,
            handle,
            disable_any_whitespace=True if kind == "json_schema" else None,
            **{kind: kinds[kind]},
        )
    await gateway.until_finished(*range(24))
    for handle in range(24):
        assert gateway.finished[handle, 0] == sampling_pb2.FINISH_REASON_STOP
        assert gateway.tokens[handle, 0][-1] == EOS
        text = text_of(gateway.tokens[handle, 0])
        if handle % 4 == 0:
            document = json.loads(text)
            assert list(document) == ["a", "b", "c"]
            assert document["b"] in ("abc", "x")
        elif handle % 4 == 1:
            assert CODE.fullmatch(text)
        elif handle % 4 == 2:
            assert text in ("abc", "abcabc", 'é"\\\n')
        else:
            assert re.fullmatch("a[bc]+d", text)
    assert gateway.rejections == {}


async def test_siblings_each_follow_their_own_text(constrained):
    """n = 5 gives five words of the language, not all the same."""
    gateway = await constrained.gateway()
    await submit(gateway, 1, n=5, regex=CODE.pattern)
    for index in range(5):
        await gateway.until_finished(1, index=index)
    texts = {text_of(gateway.tokens[1, index]) for index in range(5)}
    assert all(CODE.fullmatch(text) for text in texts)
    assert len(texts) > 1


async def test_a_preempted_sequence_goes_on_in_its_language(pipeline, tokenizer):
    """With too few blocks sequences are preempted and recomputed, and their texts still match."""
    await pipeline.start_worker(num_blocks=14, **WORKER)
    await pipeline.start_scheduler(tokenizer=tokenizer[0], watermark=0.0)
    gateway = await pipeline.gateway()
    for handle in range(8):
        await submit(gateway, handle, regex="[a-z]{60,70}")
    await gateway.until_finished(*range(8))
    assert all(re.fullmatch("[a-z]{60,70}", text_of(gateway.tokens[handle, 0])) for handle in range(8))
    assert pipeline.scheduler.engine.core.stats.num_preemptions > 0


async def test_a_lost_worker_interrupts_no_language(pipeline, tokenizer):
    """The worker dies while masks are awaited; with the next one every text goes on as it would have."""
    await pipeline.start_worker(step_base_ms=1, **WORKER)
    await pipeline.start_scheduler(tokenizer=tokenizer[0])
    gateway = await pipeline.gateway()
    for handle in range(6):
        await submit(gateway, handle, regex="[a-z]{80,90}")
    await gateway.until_finished(*range(6))
    expected = {handle: gateway.tokens[handle, 0] for handle in range(6)}
    for handle in range(6):
        await submit(gateway, handle + 10, seed=handle, regex="[a-z]{80,90}")
    await gateway.until(lambda: len(gateway.tokens.get((10, 0), ())) > 20)
    await pipeline.stop_worker()
    await pipeline.until_healthy(False)
    await pipeline.start_worker(step_base_ms=1, **WORKER)
    await gateway.until_finished(*range(10, 16))
    assert {handle: gateway.tokens[handle + 10, 0] for handle in range(6)} == expected


async def test_a_resumed_output_is_matched_again(constrained):
    """A request that comes with output so far goes on where that text stands; output of another language is refused."""
    gateway = await constrained.gateway()
    await submit(gateway, 1, regex=CODE.pattern)
    await gateway.until_finished(1)
    whole = gateway.tokens[1, 0]
    await submit(gateway, 2, seed=1, regex=CODE.pattern, resumed={0: whole[:12]})
    await submit(gateway, 3, seed=1, regex="[0-9]+", resumed={0: whole[:12]})
    await gateway.until(lambda: (2, 0) in gateway.finished and 3 in gateway.rejections)
    assert whole[:12] + gateway.tokens[2, 0] == whole
    assert refusal(gateway.rejections[3]) == (code_pb2.INVALID_ARGUMENT, "constraint.regex")


async def test_requests_wait_for_the_vocabulary_and_delay_nobody(pipeline, tokenizer):
    """While no tokenizer answers, constrained requests wait in the queue, can be aborted, and others run."""
    address, servicer = tokenizer
    servicer.known.clear()
    await pipeline.start_worker(**WORKER)
    await pipeline.start_scheduler(tokenizer=address)
    gateway = await pipeline.gateway()
    await submit(gateway, 1, regex="[a-z]{4}")
    await submit(gateway, 2, regex="[a-z]{4}")
    await gateway.submit(3, PROMPT, max_tokens=5)
    await gateway.until_finished(3)
    assert (await pipeline.load()).num_waiting == 2
    await gateway.abort(1)
    await pipeline.until_load(lambda load: load.num_waiting == 1)
    servicer.known.set()
    await gateway.until_finished(2)
    assert re.fullmatch("[a-z]{4}", text_of(gateway.tokens[2, 0]))
    assert (1, 0) not in gateway.tokens


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        ({"regex": "(["}, "constraint.regex"),
        ({"json_schema": '{"type": "array", "uniqueItems": true}'}, "constraint.json_schema"),
        ({"json_schema": '{"$ref": "http://elsewhere/x"}'}, "constraint.json_schema"),
        ({"json_schema": '{"type": "object", "x-guidance": {"lenient": true}}'}, "constraint.json_schema"),
        ({"json_schema": "[]"}, "constraint.json_schema"),
        ({"grammar": "root ::= missing"}, "constraint.grammar"),
        ({"grammar": "start: MISSING"}, "constraint.grammar"),
        ({"structural_tag": '{"structures": []}'}, "constraint.structural_tag"),
        ({"structural_tag": '{"format": {"type": "poem"}}'}, "constraint.structural_tag"),
        ({"regex": "a+", "ignore_eos": True}, "ignore_eos"),
        ({"regex": "a+", "allowed_token_ids": [5]}, "allowed_token_ids"),
        # Beyond the compiler's limits: a product of alternatives.
        ({"json_schema": json.dumps(TOO_LARGE)}, "constraint.json_schema"),
    ],
)
async def test_fault_40_a_bad_constraint_fails_only_its_own_request(constrained, constraint, field):
    """What does not compile, or not within the limits, is refused naming its field; a neighbour is not disturbed."""
    gateway = await constrained.gateway()
    await submit(gateway, 1, regex=CODE.pattern)
    await submit(gateway, 2, **constraint)
    await gateway.until(lambda: (1, 0) in gateway.finished and 2 in gateway.rejections, timeout_s=30)
    assert refusal(gateway.rejections[2]) == (code_pb2.INVALID_ARGUMENT, field)
    assert CODE.fullmatch(text_of(gateway.tokens[1, 0]))
    assert (2, 0) not in gateway.tokens


async def test_a_compiler_that_cannot_start_fails_its_request_alone(constrained, monkeypatch):
    """No process for the compiler: the request ends with INTERNAL instead of waiting for ever; others run."""
    monkeypatch.setattr("quire_scheduler.grammar.checker.sys.executable", "/nowhere/python")
    gateway = await constrained.gateway()
    await submit(gateway, 1, regex="[a-z]{3}")
    await gateway.submit(2, PROMPT, max_tokens=5)
    await gateway.until(lambda: 1 in gateway.rejections and (2, 0) in gateway.finished)
    assert gateway.rejections[1].code == code_pb2.INTERNAL


async def test_without_a_tokenizer_constraints_are_refused_by_name(pipeline):
    """A scheduler that was given no tokenizer says so; reasoning spans need none."""
    await pipeline.start_worker(**WORKER)
    await pipeline.start_scheduler()
    gateway = await pipeline.gateway()
    await submit(gateway, 1, regex="a")
    span = sampling_pb2.ReasoningSpan(end_token_ids=[7, 8], starts_open=True, max_tokens=3)
    await submit(gateway, 2, max_tokens=10, reasoning=span)
    await gateway.until(lambda: 1 in gateway.rejections and (2, 0) in gateway.finished)
    assert "constraint is not supported" in gateway.rejections[1].message
    assert gateway.tokens[2, 0][3:5] == [7, 8]


async def test_a_constraint_begins_after_the_reasoning(constrained):
    """Inside the span anything but an end may come; its budget forces the closing tokens, then the constraint holds."""
    gateway = await constrained.gateway()
    span = sampling_pb2.ReasoningSpan(end_token_ids=[265, 266], starts_open=True, max_tokens=6)
    for handle in range(8):
        await submit(gateway, handle, regex="[a-z]{5}", reasoning=span)
    await gateway.until_finished(*range(8))
    for handle in range(8):
        tokens = gateway.tokens[handle, 0]
        end = tokens.index(265)
        assert end <= 6
        assert tokens[end + 1] == 266
        assert EOS not in tokens[:-1]
        assert re.fullmatch("[a-z]{5}", text_of(tokens[end + 2 :]))


async def test_a_forced_end_ends_before_min_tokens(constrained):
    """min_tokens holds as long as the grammar has another way; where it has none, the output ends."""
    gateway = await constrained.gateway()
    await submit(gateway, 1, regex="[a-z]{3}", min_tokens=10)
    await submit(gateway, 2, regex="[a-z]*", min_tokens=10)
    await gateway.until_finished(1, 2)
    assert gateway.finished[1, 0] == sampling_pb2.FINISH_REASON_STOP
    assert len(gateway.tokens[1, 0]) <= 4


async def test_stop_tokens_come_only_where_the_text_is_complete(constrained):
    """A stop token id can't cut a text short: it is permitted where an end is, whatever the grammar says of it."""
    gateway = await constrained.gateway()
    stop = TOKENS.index(b"a")
    for handle in range(10):
        await submit(gateway, handle, regex="[a-f]{2}[0-9]{2}", stop_token_ids=[stop])
    await gateway.until_finished(*range(10))
    for handle in range(10):
        *tokens, last = gateway.tokens[handle, 0]
        assert last in (stop, EOS)
        assert re.fullmatch("[b-f]{2}[0-9]{2}", text_of(tokens))


async def test_a_text_that_max_tokens_cuts_says_so(constrained):
    """An output that has no room for its end finishes with LENGTH, and is a beginning of the language."""
    gateway = await constrained.gateway()
    await submit(gateway, 1, max_tokens=7, regex="[a-z]{500}")
    await gateway.until_finished(1)
    assert gateway.finished[1, 0] == sampling_pb2.FINISH_REASON_LENGTH
    assert re.fullmatch("[a-z]{7,}", text_of(gateway.tokens[1, 0]))


async def test_an_aborted_sequence_holds_up_no_step(constrained):
    """Requests that are aborted while steps with their masks are in flight leave the others running."""
    gateway = await constrained.gateway()
    for handle in range(8):
        await submit(gateway, handle, max_tokens=300, regex="[a-z]{200}")
    await gateway.until(lambda: len(gateway.tokens.get((0, 0), ())) > 5)
    for handle in range(0, 8, 2):
        await gateway.abort(handle)
    await gateway.until_finished(1, 3, 5, 7)
    assert all(re.fullmatch("[a-z]{200}", text_of(gateway.tokens[handle, 0])) for handle in (1, 3, 5, 7))
    await constrained.until_load(lambda load: load.num_running == load.num_used_blocks == 0)


async def open_steps(pipeline):
    """A step stream of our own to the worker, with one masked sequence in its first step."""
    channel = grpc.aio.insecure_channel(pipeline.worker.server.address)
    stub = worker_service_pb2_grpc.WorkerStub(channel)
    call = stub.Execute()
    await call.write(step_pb2.ExecuteRequest(open=step_pb2.Open(epoch=99, scheduler_id="test")))
    await call.read()
    step = step_pb2.StepRequest(step_id=1, slots=[0], num_new_tokens=[3], masked_slots=[0])
    step.new_sequences.add(slot=0, token_ids=[5, 6, 7], num_prompt_tokens=3, block_ids=[1])
    await call.write(step_pb2.ExecuteRequest(step=step))
    return channel, call


@pytest.mark.parametrize(
    "mask",
    [
        step_pb2.SampleMask(step_id=1, slots=[0], bitmasks=b"1234"),
        step_pb2.SampleMask(step_id=1, slots=[1], bitmasks=bytes(40)),
        step_pb2.SampleMask(step_id=9, slots=[0], bitmasks=bytes(40)),
        step_pb2.SampleMask(step_id=1, slots=[0], bitmasks=bytes(40)),
    ],
    ids=["size", "slot", "step", "nothing permitted"],
)
async def test_a_malformed_mask_ends_the_stream(constrained, mask):
    """Wrong sizes, slots or steps, and a mask that leaves nothing, are INVALID_ARGUMENT; the worker serves on."""
    channel, call = await open_steps(constrained)
    await call.write(step_pb2.ExecuteRequest(mask=mask))
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    await channel.close()
    await constrained.until_healthy()


async def test_a_scheduler_that_goes_while_a_mask_is_awaited_blocks_nobody(constrained):
    """The stream ends with a step waiting for its mask: the worker is free for the next scheduler at once."""
    channel, call = await open_steps(constrained)
    await asyncio.sleep(0.05)
    call.cancel()
    await channel.close()
    await constrained.until_healthy()
    gateway = await constrained.gateway()
    await submit(gateway, 1, regex=CODE.pattern)
    await gateway.until_finished(1)
    assert CODE.fullmatch(text_of(gateway.tokens[1, 0]))
