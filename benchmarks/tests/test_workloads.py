"""Workloads have the shapes they promise and come again from the same seed."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from quire_bench import workloads

SHAPES = {"C1": (4, 128, 128, 1), "C2": (32, 128, 128, 8), "C3": (64, 256, 64, 32), "C4": (16, 1056, 32, 8)}


@pytest.mark.parametrize("name", SHAPES)
def test_named_workloads_have_their_shape(name: str) -> None:
    """C1 to C4 have the number of requests, lengths and concurrency of their definition, and distinct prompts."""
    workload = workloads.NAMED[name](0)
    num_requests, num_input, num_output, concurrency = SHAPES[name]
    assert len(workload.requests) == num_requests
    assert workload.concurrency == concurrency
    assert {(len(r.prompt), r.num_prompt_tokens, r.max_tokens) for r in workload.requests} == {
        (num_input, num_input, num_output)
    }
    assert len({tuple(r.prompt) for r in workload.requests}) == num_requests


def test_seed_decides_the_prompts() -> None:
    """The same seed gives the same prompts; another seed gives others, so a repeat meets no warm prefix cache."""
    assert workloads.NAMED["C2"](1) == workloads.NAMED["C2"](1)
    first, second = (workloads.NAMED["C2"](seed).requests[0].prompt for seed in (1, 2))
    assert first != second


def test_shared_prefix_is_shared_and_warmed() -> None:
    """All prompts of C4, its warm-up too, begin with the same 1024 tokens and differ after them."""
    workload = workloads.NAMED["C4"](3)
    everything = [*workload.requests, *workload.warm_up]
    assert len(workload.warm_up) == 1
    assert len({tuple(r.prompt[:1024]) for r in everything}) == 1
    assert len({tuple(r.prompt[1024:]) for r in everything}) == len(everything)


def test_words_keep_lengths_and_shared_prefixes() -> None:
    """In words a prompt has one word a token, and a common prefix stays common."""
    workload = workloads.as_words(workloads.NAMED["C4"](3), seed=0)
    texts = [request.prompt for request in (*workload.requests, *workload.warm_up)]
    assert {len(text.split()) for text in texts} == {1056}
    assert len({" ".join(text.split()[:1024]) for text in texts}) == 1


def test_lognormal_lengths_have_the_wanted_mean() -> None:
    """Mean lengths are near what was asked for, and prompt and answer together stay below the limit."""
    requests = workloads.lognormal_lengths(
        "chat", 2000, seed=0, mean_input=200, mean_output=100, max_total=4096
    ).requests
    assert statistics.mean(r.num_prompt_tokens for r in requests) == pytest.approx(200, rel=0.15)
    assert statistics.mean(r.max_tokens for r in requests) == pytest.approx(100, rel=0.15)
    assert max(r.num_prompt_tokens + r.max_tokens for r in requests) <= 4096


def test_dataset_lines_become_requests(tmp_path: Path) -> None:
    """Text, token ids and messages are all taken; max_tokens has a default; blank lines do not count."""
    path = tmp_path / "requests.jsonl"
    path.write_text(
        '{"prompt": "hi"}\n\n{"prompt": [5, 6], "max_tokens": 9}\n{"messages": [{"role": "user"}]}\n'
    )
    found = workloads.from_dataset(path, default_max_tokens=4).requests
    assert [(r.prompt, r.max_tokens, r.num_prompt_tokens) for r in found] == [
        ("hi", 4, 0),
        ([5, 6], 9, 2),
        ([{"role": "user"}], 4, 0),
    ]
    assert len(workloads.from_dataset(path, limit=2).requests) == 2


@pytest.mark.parametrize("text", ['{"text": 1}\n', "[1]\n", "not json\n"])
def test_bad_dataset_lines_are_named(tmp_path: Path, text: str) -> None:
    """A line that is not a request is a ValueError with file and line number."""
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "hi"}\n' + text)
    with pytest.raises(ValueError, match=r"bad\.jsonl:2"):
        workloads.from_dataset(path)
