"""Structured output on the real model, through Envoy and the real client: whatever it writes has the form asked for."""

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import jsonschema
import openai
import pytest

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc
from quire_bench.schemas import schemas

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m-instruct"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
VALIDATOR = jsonschema.Draft202012Validator


def ask(client, *, max_tokens=150, stream=False, question="Tell me about a person.", **options):
    """Chat at temperature 1; extensions of ours go into the body."""
    extra = {
        name: options.pop(name)
        for name in ("structured_outputs", "min_tokens", "ignore_eos")
        if name in options
    }
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], max_tokens=max_tokens, stream=stream,
        **{"temperature": 1.0, "seed": 11, **options}, extra_body=extra,
    )  # fmt: skip


def contents(answer):
    return [choice.message.content for choice in answer.choices]


def test_every_output_matches_its_schema(smollm2_suite):
    """Schemas of twenty families at temperature 1: each answer validates, or was cut by max_tokens and says so."""
    client = smollm2_suite.openai()

    def one(numbered):
        number, (family, schema) = numbered
        response_format = {
            "type": "json_schema",
            "json_schema": {"name": family, "schema": schema, "strict": True},
        }
        choice = ask(client, seed=number, response_format=response_format, max_tokens=120).choices[0]
        if choice.finish_reason == "stop":
            VALIDATOR(schema).validate(json.loads(choice.message.content))
        else:
            assert choice.finish_reason == "length"
        return choice.finish_reason

    with ThreadPoolExecutor(8) as pool:
        reasons = list(pool.map(one, enumerate(schemas(40, seed=3))))
    assert reasons.count("stop") > 20


def test_a_stream_joins_to_the_same_document(smollm2_suite):
    """Streamed or not, the same seed gives the same document."""
    client = smollm2_suite.openai()
    response_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    whole = contents(ask(client, response_format=response_format))[0]
    pieces = ask(client, response_format=response_format, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces if chunk.choices) == whole
    VALIDATOR(PERSON).validate(json.loads(whole))


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"regex": "[a-z]{3}-[0-9]{2}"}, "[a-z]{3}-[0-9]{2}"),
        ({"choice": ["red", "green", "größe 😀"]}, "red|green|größe 😀"),
        ({"grammar": 'root ::= num ("+" num){1,3}\nnum ::= [1-9] [0-9]?'}, r"[1-9][0-9]?(\+[1-9][0-9]?){1,3}"),
        ({"grammar": 'start: NUM ("*" NUM)?\nNUM: /[0-9]{1,3}/'}, r"[0-9]{1,3}(\*[0-9]{1,3})?"),
        ({"json": {"const": {"a": [1, None]}}, "disable_any_whitespace": True}, re.escape('{"a":[1,null]}')),
        (
            {"structural_tag": {"format": {"type": "tag", "begin": "<f>", "content": {"type": "json_schema",
             "json_schema": {"type": "boolean"}}, "end": "</f>"}}},
            "<f>(true|false)</f>",
        ),
    ],
    ids=["regex", "choice", "gbnf", "lark", "json", "structural tag"],
)  # fmt: skip
def test_every_kind_with_several_sequences(smollm2_suite, form, pattern):
    """n = 4 gives four outputs of the form, by /v1/chat/completions and by /v1/completions."""
    client = smollm2_suite.openai()
    texts = contents(ask(client, n=4, structured_outputs=form))
    completions = client.completions.create(
        model=MODEL, prompt="It is", n=4, max_tokens=60, seed=3, extra_body={"structured_outputs": form}
    )
    texts += [choice.text for choice in completions.choices]
    assert len(texts) == 8
    assert all(re.fullmatch(pattern, text) for text in texts)


def test_json_object_is_an_object(smollm2_suite):
    """response_format json_object gives an object, greedy too."""
    for temperature in (0.0, 1.0):
        answer = ask(smollm2_suite.openai(), response_format={"type": "json_object"}, temperature=temperature)
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(contents(answer)[0]), dict)


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"structured_outputs": {"regex": "(["}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "root ::= nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_form_is_refused_by_name(smollm2_suite, options, parameter, stream):
    """What cannot be served is a 400 that names the parameter, streaming or not; nothing is left behind."""
    with pytest.raises(openai.BadRequestError) as caught:
        ask(smollm2_suite.openai(), stream=stream, **options)
    assert caught.value.body["param"] == parameter
    smollm2_suite.wait_idle()


def test_a_grammar_that_is_too_large_hits_its_limits(smollm2_suite):
    """A schema that multiplies into millions of alternatives is refused while others are answered."""
    product = {"allOf": [{"anyOf": [{"properties": {f"{i}.{j}": {}}} for j in range(12)]} for i in range(6)]}
    client = smollm2_suite.openai()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(ask, client, structured_outputs={"choice": ["fine"]})
        with pytest.raises(openai.BadRequestError, match="too large"):
            ask(client, structured_outputs={"json": product})
        assert contents(other.result()) == ["fine"]


def test_a_killed_scheduler_interrupts_no_text(smollm2_suite):
    """The scheduler is killed mid-stream: the new one matches what is there again, and the text goes on in form."""
    client = smollm2_suite.openai()
    form = {"regex": "[a-z]{4}( [a-z]{4}){20}"}
    pid = smollm2_suite.pid_of("scheduler")
    pieces = []
    for chunk in ask(client, structured_outputs=form, stream=True, max_tokens=400):
        pieces.append(chunk.choices[0].delta.content or "" if chunk.choices else "")
        if len(pieces) == 6:
            os.kill(pid, signal.SIGKILL)
    assert re.fullmatch(form["regex"], "".join(pieces))
    smollm2_suite.wait_restarted("scheduler", pid)


def test_the_typed_api_takes_constraints(smollm2_suite):
    """quire.inference.v1 serves the same constraints over gRPC and REST, and refuses none by another name."""
    request = generate_pb2.GenerateRequest(text="A colour:")
    request.sampling.constraint.choice.texts.extend([" red", " blue"])
    stub = inference_service_pb2_grpc.InferenceStub(smollm2_suite.channel)
    text = "".join(event.delta.text for event in stub.Generate(request) if event.HasField("delta"))
    assert text in (" red", " blue")
    body = {"text": "A colour:", "sampling": {"constraint": {"regex": "[0-9]{2}"}}}
    events = httpx.post(f"{smollm2_suite.url}/quire/v1/generate", json=body, timeout=60).text
    assert re.search(r'"text":\s*"[0-9]', events)
    request.sampling.constraint.regex = "(["
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(request))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "constraint.regex" in caught.value.details()
