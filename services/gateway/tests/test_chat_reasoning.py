"""Reasoning over the OpenAI API, on fakes: told apart, counted, limited, and out of the way of everything else."""

import json

import pytest
from gateway_chats import NOW, THINKING, THOUGHT, WEATHER, joined
from gateway_fakes import BOS


@pytest.mark.parametrize("tokens_per_step", [1, 1000])
async def test_reasoning_is_told_apart(serve, tokens_per_step):
    """What is thought comes as reasoning, and its tokens are counted; calls are read from what is said alone."""
    suite = await serve(THOUGHT, THINKING, tokens_per_step=tokens_per_step)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = (await suite.client.chat(tools=[WEATHER, NOW], **options)).chunks
    text, thought, calls, reason = joined(chunks)
    assert (text, thought) == ("I look.\n", "I could say END.\n<tool_call>no</tool_call>")
    assert [call["name"] for call in calls] == ["get_weather", "now"]
    assert reason == "tool_calls"
    whole = (await suite.client.chat(tools=[WEATHER, NOW])).json
    assert whole["choices"][0]["message"]["reasoning"] == thought
    for usage in (chunks[-1]["usage"], whole["usage"]):
        assert usage["completion_tokens_details"] == {
            "reasoning_tokens": len(THOUGHT.partition("</think>")[0]) + len("</think>")
        }


async def test_reasoning_can_be_left_out(serve):
    """include_reasoning false: the thinking is counted but not told."""
    suite = await serve(THOUGHT, THINKING)
    whole = (await suite.client.chat(include_reasoning=False)).json
    assert "reasoning" not in whole["choices"][0]["message"]
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_reasoning_under_its_old_name(serve):
    """With reasoning_content_alias clients of the old name find the reasoning too, streamed and at once."""
    suite = await serve(THOUGHT, THINKING, reasoning_content_alias=True)
    message = (await suite.client.chat()).json["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"]
    chunks = (await suite.client.chat(stream=True)).chunks
    deltas = [
        choice["delta"] for chunk in chunks for choice in chunk["choices"] if "reasoning" in choice["delta"]
    ]
    assert "".join(delta["reasoning_content"] for delta in deltas) == message["reasoning"]


async def test_an_answer_with_reasoning_can_be_sent_back(serve):
    """Messages go back as clients got them; their reasoning reaches the template under the name that templates know."""
    suite = await serve(THOUGHT, THINKING)
    message = (await suite.client.chat(tools=[WEATHER, NOW])).json["choices"][0]["message"]
    body = {"messages": [{"role": "user", "content": "x"}, message], "tools": [WEATHER, NOW]}
    assert (await suite.client.post("ChatCompletions", body)).status == 200
    rendered, _ = suite.tokenizer.rendered[-1]
    assert rendered[1]["reasoning_content"] == message["reasoning"]


async def test_stop_texts_are_not_found_in_reasoning(serve):
    """A stop text ends an answer, never a thought, so that an answer is not silently empty."""
    suite = await serve("<think>END of it.</think>Here. END and more", THINKING)
    choice = (await suite.client.chat(stop=["END"])).json["choices"][0]
    assert choice["message"]["content"] == "Here. "
    assert choice["message"]["reasoning"] == "END of it."
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")


async def test_an_answer_that_ends_while_thinking_says_so(serve):
    """max_tokens inside of the thought: empty content, the thought so far, finish reason length."""
    suite = await serve(THOUGHT, THINKING)
    choice = (await suite.client.chat(max_tokens=20)).json["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning"] == THOUGHT[8:20].rstrip()
    assert choice["finish_reason"] == "length"


async def test_effort_and_budget_reach_template_and_engine(serve):
    """reasoning_effort is a template variable, thinking_token_budget a limit of the engine's reasoning span."""
    suite = await serve(THOUGHT, THINKING)
    await suite.client.chat(reasoning_effort="none", thinking_token_budget=7)
    request = suite.tokenizer.rendered[-1][1]
    assert json.loads(request.template_kwargs_json) == {"reasoning_effort": "none", "enable_thinking": False}
    span = suite.scheduler.submits[-1].sampling.reasoning
    assert bytes(span.start_token_ids) == b"<think>" and bytes(span.end_token_ids) == b"</think>"
    assert span.max_tokens == 7 and not span.starts_open
    await suite.client.chat(thinking_token_budget=-1, chat_template_kwargs={"enable_thinking": True})
    assert not suite.scheduler.submits[-1].sampling.HasField("reasoning")


async def test_a_prompt_that_opens_reasoning(serve):
    """Where the prompt ends with the opening tag, output and span begin inside of it."""
    suite = await serve("Hm.</think>Yes.", THINKING)
    body = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>"}]}
    answer = (await suite.client.post("ChatCompletions", {**body, "thinking_token_budget": 50})).json
    assert answer["choices"][0]["message"]["reasoning"] == "Hm."
    assert answer["choices"][0]["message"]["content"] == "Yes."
    assert suite.scheduler.submits[-1].sampling.reasoning.starts_open


async def test_logprobs_ride_along(serve):
    """Every token's log-probability comes in some chunk, whatever the token came to."""
    suite = await serve(THOUGHT, THINKING)
    options = {"logprobs": True, "stream": True, "return_token_ids": True}
    chunks = (await suite.client.chat(tools=[WEATHER, NOW], **options)).chunks
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    told = [entry["token"] for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert "".join(told) == THOUGHT + "<eos>"
    assert len([i for c in choices for i in c.get("token_ids", ())]) == len(told)
    whole = (await suite.client.chat(tools=[WEATHER, NOW], logprobs=True)).json["choices"][0]
    assert [entry["token"] for entry in whole["logprobs"]["content"]] == told


async def test_special_tokens_that_parsers_need_are_not_shown(serve):
    """Where a mark is a special token it is kept for the parser, and no special token reaches the client."""
    suite = await serve("", reasoning_parser="tags:[|<bos>")
    suite.scheduler.text_of = lambda submit, index: [*b"[Hm.", BOS, *b"Yes, <bo> ", BOS, *b"really."]
    assert (await suite.client.chat(stream=True)).events
    for stream in (False, True):
        answer = await suite.client.chat(stream=stream)
        message = answer.json["choices"][0]["message"] if not stream else None
        found = joined(answer.chunks)[:2] if stream else (message["content"], message["reasoning"])
        assert found == ("Yes, <bo> really.", "Hm.")
    kept = (await suite.client.chat(skip_special_tokens=False)).json["choices"][0]["message"]["content"]
    assert kept == "Yes, <bo> <bos>really.<eos>"
