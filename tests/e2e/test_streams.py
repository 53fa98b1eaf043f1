"""Many streams at once on the real model, some cut by their clients."""

import asyncio

import openai
import pytest

pytestmark = pytest.mark.e2e

MODEL = "smollm2-135m-instruct"
NUM_STREAMS, NUM_CUT, MAX_TOKENS = 64, 20, 24


def prompt(index):
    """A prompt of its own for each stream."""
    return f"Count from {index}: {index}, {index + 1}, {index + 2},"


async def stream_text(client, index, cut_after=None):
    """The text of one stream; with `cut_after` the connection is closed after that many pieces."""
    pieces = []
    options = {
        "model": MODEL,
        "prompt": prompt(index),
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    async with await client.completions.create(**options) as chunks:
        async for chunk in chunks:
            if chunk.choices and chunk.choices[0].text:
                pieces.append(chunk.choices[0].text)
            if cut_after is not None and len(pieces) >= cut_after:
                return None
    return "".join(pieces)


async def test_64_streams_of_which_20_are_cut(smollm2_suite):
    """Of 64 concurrent streams 20 are cut: the others give what they give alone, and all blocks come back."""
    idle = smollm2_suite.wait_idle()
    async with openai.AsyncOpenAI(
        base_url=f"{smollm2_suite.url}/v1", api_key="none", max_retries=0, timeout=120
    ) as client:
        cut = {index: 1 + index % 3 for index in range(0, NUM_CUT * 3, 3)}
        texts = await asyncio.gather(
            *(stream_text(client, index, cut.get(index)) for index in range(NUM_STREAMS))
        )
        alone = {index: await stream_text(client, index) for index in (1, 31, 62)}
    whole = [text for index, text in enumerate(texts) if index not in cut]
    assert len(whole) == NUM_STREAMS - NUM_CUT
    assert all(whole)
    assert {index: texts[index] for index in alone} == alone
    after = smollm2_suite.wait_idle()
    assert after.load.num_free_blocks == after.load.num_total_blocks == idle.load.num_free_blocks
