"""The whole suite against the reference: the same greedy token ids, however requests are batched or cached."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc
from quire.scheduler.v1 import load_pb2

pytestmark = pytest.mark.e2e

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/smollm2.json").read_text(encoding="utf-8"))
ITEMS = GOLDEN["items"]
GOLDEN_MODEL = "smollm2-135m-instruct"
# Under this margin another order of float32 additions may choose the second best token.
CLOSE = 0.02


def native_request(item):
    """The item as a native request: a conversation where it is one, else the recorded ids."""
    request = generate_pb2.GenerateRequest()
    if item["kind"] == "chat":
        for message in item["prompt"]:
            request.chat.messages.add(role=message["role"], content=message["content"])
    else:
        request.token_ids.ids.extend(item["prompt_ids"])
    request.sampling.temperature = 0
    request.sampling.max_tokens = item["max_tokens"]
    return request


def ask(suite, item):
    """(output ids, prompt length, cached tokens, finish reason) of the item."""
    ids, start, usage, finished = [], None, None, None
    stub = inference_service_pb2_grpc.InferenceStub(suite.channel)
    for event in stub.Generate(native_request(item), timeout=120):
        ids += event.delta.token_ids
        start = event.started if event.HasField("started") else start
        usage = event.completed.usage if event.HasField("completed") else usage
        finished = event.sequence_finished if event.HasField("sequence_finished") else finished
    assert usage.num_output_tokens == finished.num_output_tokens
    assert start.num_prompt_tokens == usage.num_prompt_tokens == len(item["prompt_ids"])
    return ids, usage, finished


def check(item, ids):
    """The ids equal the reference, or part from it only where the reference hardly preferred its token."""
    expected = item["output_ids"]
    if ids == expected:
        return
    first = next(
        (place for place, (a, b) in enumerate(zip(expected, ids, strict=False)) if a != b),
        min(len(expected), len(ids)),
    )
    margin = item["margin_to_2nd"][first]
    assert margin < CLOSE, f"{item['name']}: parts at token {first}, where the margin is {margin}"
    print(f"{item['name']}: parts at token {first}, margin {margin}")


@pytest.fixture
def cold(smollm2_suite):
    """The suite with nothing cached."""
    smollm2_suite.wait_idle()
    smollm2_suite.scheduler.ResetPrefixCache(load_pb2.ResetPrefixCacheRequest())
    assert smollm2_suite.load().load.num_cached_blocks == 0
    return smollm2_suite


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["name"])
def test_alone(cold, item):
    """An item alone, with nothing cached, gives the reference's ids and finish reason."""
    ids, usage, finished = ask(cold, item)
    check(item, ids)
    assert usage.num_cached_tokens == 0
    if ids == item["output_ids"]:
        assert finished.finish_reason == {"stop": 1, "length": 2}[item["finish_reason"]]


def test_all_at_once(cold):
    """All items at once, in one batch, give the same ids."""
    with ThreadPoolExecutor(len(ITEMS)) as pool:
        for item, (ids, _, _) in zip(ITEMS, pool.map(lambda item: ask(cold, item), ITEMS), strict=True):
            check(item, ids)


def test_with_a_warm_prefix_cache(cold):
    """Asked again, with their prompts cached, the items give the same ids; long prompts come from the cache."""
    with ThreadPoolExecutor(len(ITEMS)) as pool:
        list(pool.map(lambda item: ask(cold, item), ITEMS))
    for item in ITEMS:
        ids, usage, _ = ask(cold, item)
        check(item, ids)
        # Whole blocks before the last prompt token.
        assert usage.num_cached_tokens == (len(item["prompt_ids"]) - 1) // 16 * 16


@pytest.mark.parametrize(
    "item", [item for item in ITEMS if item["kind"] == "chat"], ids=lambda item: item["name"]
)
def test_chat_completions_give_the_reference_text(smollm2_suite, item):
    """Through the real openai client a conversation gives the reference's text, as a stream and at once."""
    options = {
        "model": GOLDEN_MODEL,
        "messages": item["prompt"],
        "temperature": 0,
        "max_tokens": item["max_tokens"],
    }
    with smollm2_suite.openai() as client:
        whole = client.chat.completions.create(**options).choices[0]
        pieces = [
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(**options, stream=True)
            if chunk.choices
        ]
    assert "".join(pieces) == whole.message.content
    if min(item["margin_to_2nd"]) > CLOSE:
        assert whole.message.content == item["output_text"]
        assert whole.finish_reason == item["finish_reason"]


@pytest.mark.parametrize(
    "item", [item for item in ITEMS if item["kind"] == "raw"], ids=lambda item: item["name"]
)
def test_completions_of_token_ids_return_token_ids(smollm2_suite, item):
    """A completion of token ids gives the reference's ids with `return_token_ids`."""
    with smollm2_suite.openai() as client:
        answer = client.completions.create(
            model=GOLDEN_MODEL,
            prompt=item["prompt_ids"],
            temperature=0,
            max_tokens=item["max_tokens"],
            extra_body={"return_token_ids": True},
        )
    check(item, answer.choices[0].token_ids)
