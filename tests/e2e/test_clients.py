"""What clients meet: the real openai client, native gRPC, typed REST by curl; on the real model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import openai
import pytest

from quire.inference.v1 import inference_service_pb2_grpc, models_pb2, tokens_pb2

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL = "smollm2-135m-instruct"
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def client(smollm2_suite):
    """The real openai client."""
    with smollm2_suite.openai() as opened:
        yield opened


def test_chat(client):
    """A chat completion has the answer, its finish reason and its usage."""
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == 45
    assert answer._request_id


def test_chat_stream(client):
    """A streamed chat has the role first, then the text, the finish reason, and the usage last when asked for."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, **options))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_stream_has_several_pieces(client):
    """A stream brings the text in pieces as tokens come, not all at its end."""
    chunks = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, stream=True)
    texts = [
        chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content
    ]
    assert len(texts) >= 4


def test_completion(client):
    """A completion continues plain text, as a stream and at once."""
    options = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**options)
    assert whole.object == "text_completion"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    pieces = [
        chunk.choices[0].text for chunk in client.completions.create(**options, stream=True) if chunk.choices
    ]
    assert "".join(pieces) == whole.choices[0].text


def test_completions_of_several_prompts(client):
    """A list of prompts gives one choice each, in order."""
    options = {"model": MODEL, "max_tokens": 4, "temperature": 0}
    both = client.completions.create(prompt=["Once upon a time", "One, two,"], **options)
    alone = [client.completions.create(prompt=text, **options) for text in ("Once upon a time", "One, two,")]
    assert [choice.text for choice in both.choices] == [answer.choices[0].text for answer in alone]
    assert [choice.index for choice in both.choices] == [0, 1]


def test_stop_text_is_never_sent(client):
    """Output ends before the stop text, and a stream shows no part of it."""
    options = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "stop": ["France is"]}
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].message.content == "The capital of "
    assert whole.choices[0].finish_reason == "stop"
    chunks = client.chat.completions.create(**options, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "The capital of "


def test_several_choices_with_a_seed(client):
    """n choices of a sampled request differ from each other and repeat with the same seed."""
    options = {"model": MODEL, "messages": MESSAGES, "temperature": 1.5, "n": 4, "seed": 5, "max_tokens": 12}
    first = client.chat.completions.create(**options)
    again = client.chat.completions.create(**options)
    texts = [choice.message.content for choice in sorted(first.choices, key=lambda choice: choice.index)]
    assert texts == [
        choice.message.content for choice in sorted(again.choices, key=lambda choice: choice.index)
    ]
    assert len(set(texts)) > 1


def test_logprobs(client):
    """Log-probabilities of the chosen and the best tokens come with the choice; greedy takes the best."""
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=2, max_tokens=4
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 4
    for entry in entries:
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob >= entry.top_logprobs[1].logprob
    # The reference's first two.
    assert [entry.logprob for entry in entries[:2]] == pytest.approx([-1.88269, -0.01966], abs=2e-3)


def test_models(client):
    """The served model is listed, can be asked for, and another one is not found."""
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"extra_body": {"no_such_parameter": 1}}, "no_such_parameter"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_requests_name_the_parameter(client, options, param):
    """A value out of range or an unknown parameter is BadRequestError with its name, never ignored."""
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": MODEL, "messages": MESSAGES, **options})
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


def test_prompt_longer_than_the_context_is_a_bad_request(client):
    """A prompt that does not fit the model is refused with both numbers."""
    with pytest.raises(openai.BadRequestError, match="8192"):
        client.completions.create(model=MODEL, prompt=[5] * 9000, max_tokens=1)


def test_unknown_model_is_not_found(client):
    """A model that is not served is NotFoundError, in both dialects of the request."""
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="x")


def test_malformed_json_is_a_bad_request(smollm2_suite):
    """A body that is no JSON is 400 in OpenAI's shape."""
    import httpx

    answer = httpx.post(
        f"{smollm2_suite.url}/v1/chat/completions", content=b"{", headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def run_example(suite, *command):
    """Run an example against the suite and return what it printed."""
    environment = {**os.environ, "QUIRE_PORT": str(suite.port)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_grpc_example_is_short_and_works(smollm2_suite):
    """The native client of the README is 15 lines at most and prints the answer."""
    example = EXAMPLES / "grpc_client.py"
    lines = [line for line in example.read_text().splitlines() if line.strip()]
    assert len(lines) <= 15
    assert run_example(smollm2_suite, sys.executable, example, QUESTION).strip() == ANSWER


def test_openai_example_works(smollm2_suite):
    """The example with the openai package prints the answer."""
    assert (
        run_example(smollm2_suite, sys.executable, EXAMPLES / "openai_client.py", QUESTION).strip() == ANSWER
    )


def test_curl_example_speaks_both_dialects(smollm2_suite):
    """curl gets the answer as OpenAI's JSON and as typed server-sent events of the same RPC."""
    first, *rest = run_example(smollm2_suite, "bash", EXAMPLES / "curl.sh", QUESTION).splitlines()
    assert json.loads(first)["choices"][0]["message"]["content"] == ANSWER
    events = [json.loads(line.removeprefix("data: ")) for line in rest if line.startswith("data: ")]
    assert "".join(event["delta"]["text"] for event in events if "delta" in event) == ANSWER
    assert events[0]["started"]["num_prompt_tokens"] == 37
    assert events[-1]["completed"]["usage"]["num_output_tokens"] == 8


def test_native_tokens_and_models(smollm2_suite):
    """Tokenize, Detokenize and the models' list answer over gRPC."""
    stub = inference_service_pb2_grpc.InferenceStub(smollm2_suite.channel)
    ids = stub.Tokenize(tokens_pb2.TokenizeRequest(text="Héllo 123 👋")).token_ids
    assert stub.Detokenize(tokens_pb2.DetokenizeRequest(token_ids=ids)).text == "Héllo 123 👋"
    (model,) = stub.ListModels(models_pb2.ListModelsRequest()).models
    assert model.id == MODEL
    with pytest.raises(grpc.RpcError) as missing:
        stub.GetModel(models_pb2.GetModelRequest(model="gpt-4"))
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND


def test_status_tells_each_service(smollm2_suite):
    """`quire status --json` has each service's health and the scheduler's load."""
    smollm2_suite.wait_idle()
    status = smollm2_suite.status()
    assert status["healthy"]
    assert {entry["health"] for entry in status["services"].values()} == {"serving"}
    scheduler = status["services"]["scheduler"]
    assert (scheduler["waiting"], scheduler["running"]) == (0, 0)
    blocks = scheduler["blocks"]
    assert blocks["free"] + blocks["used"] == blocks["total"] > 0
    assert blocks["used"] == 0
