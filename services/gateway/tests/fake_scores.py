"""Made-up log-probabilities of the fake engine, in the contract's columns."""

from __future__ import annotations

from quire.sampling.v1 import sampling_pb2
from quire.scheduler.v1 import serve_pb2


def add_prompt_scores(
    frame: serve_pb2.StepFrame, done: dict[int, int], submits: dict[int, serve_pb2.Submit], chunk: int
) -> None:
    """The next positions of each prompt whose log-probabilities are wanted; the last ones come with the output.

    done: by handle the last position told; who has all is taken out. submits: by handle, of what still runs.
    """
    found = frame.prompt_logprobs
    for handle, start in list(done.items()):
        submit = submits.get(handle)
        if submit is None:
            del done[handle]
            continue
        last = len(submit.prompt_token_ids) - 1
        end = min(start + chunk, last)
        num_top = submit.sampling.num_prompt_logprobs
        for position in range(start + 1, end + 1):
            found.handles.append(handle)
            found.positions.append(position)
            found.logprobs.logprobs.append(-position / 8)
            found.logprobs.ranks.append(2)
            found.logprobs.num_top.append(num_top)
            found.logprobs.top_token_ids.extend(range(65, 65 + num_top))
            found.logprobs.top_logprobs.extend([-0.25 - k for k in range(num_top)])
        done[handle] = end
        if end == last:
            del done[handle]


def add_logprobs(
    frame: serve_pb2.StepFrame,
    row: int,
    tokens: list[int],
    sampling: sampling_pb2.SamplingParams,
    likely: list[tuple[int, float]] | None,
) -> None:
    """One entry per token of a row. likely: the most probable tokens; None: the sampled one and some letters."""
    for token in tokens:
        top = likely or [(token, -0.5), *((65 + k, -1.5 - k) for k in range(sampling.num_logprobs))]
        top = top[: sampling.num_logprobs]
        if sampling.logprob_token_ids:
            top = [(token_id, -3.0) for token_id in sampling.logprob_token_ids]
        frame.logprobs.rows.append(row)
        frame.logprobs.logprobs.append(-0.5)
        frame.logprobs.ranks.append(1)
        frame.logprobs.num_top.append(len(top))
        frame.logprobs.top_token_ids.extend(token_id for token_id, _ in top)
        frame.logprobs.top_logprobs.extend(value for _, value in top)
