"""Tokens of texts and back, and rendered prompts, over HTTP through the edge with a real vocabulary."""

import httpx
import pytest

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m-instruct"
MESSAGES = [{"role": "user", "content": "Name a colour."}]
TEXT = "Grüße, 世界 🙂<|im_end|>\n"


def post(suite, path, **body):
    """Status and JSON of an answer."""
    answer = httpx.post(suite.url + path, json=body, timeout=60)
    return answer.status_code, answer.json()


def test_a_text_survives_the_round_trip(smollm2_suite):
    """Detokenize gives back what tokenize was given, special tokens included; the texts of tokens join to it."""
    status, found = post(smollm2_suite, "/tokenize", model=MODEL, prompt=TEXT, return_token_strs=True)
    assert status == 200
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) < found["max_model_len"]
    assert found["token_strs"][0].startswith("Gr") and "<|im_end|>" in found["token_strs"]
    assert post(smollm2_suite, "/detokenize", model=MODEL, tokens=found["tokens"]) == (200, {"prompt": TEXT})


def test_tokenize_and_render_agree_with_what_runs(smollm2_suite):
    """The tokens of a conversation are the prompt of its completion, by both ways to ask."""
    path = "/v1/chat/completions"
    _, found = post(smollm2_suite, "/tokenize", messages=MESSAGES)
    status, rendered = post(smollm2_suite, f"{path}/render", model=MODEL, messages=MESSAGES)
    assert (status, rendered["model"]) == (200, MODEL)
    assert "Name a colour.<|im_end|>\n<|im_start|>assistant\n" in rendered["prompt"]
    _, ran = post(smollm2_suite, path, messages=MESSAGES, max_tokens=1, return_token_ids=True)
    assert found["tokens"] == rendered["token_ids"] == ran["prompt_token_ids"]
    _, plain = post(smollm2_suite, "/v1/completions/render", prompt=["a", "b c"])
    assert [prompt["prompt"] for prompt in plain] == ["a", "b c"]


def test_errors_have_openai_s_shape(smollm2_suite):
    """A wrong parameter is a 400 that names it, an unknown model a 404."""
    status, answer = post(smollm2_suite, "/tokenize", prompt="a", temperature=1)
    assert (status, answer["error"]["param"]) == (400, "temperature")
    status, answer = post(smollm2_suite, "/detokenize", tokens=[10**9])
    assert (status, answer["error"]["param"]) == (400, "tokens")
    status, answer = post(smollm2_suite, "/detokenize", model="nope", tokens=[1])
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
