"""The typed API's messages about prompts and tokens, which Generate and Chat have in common. Translation only."""

from __future__ import annotations

from quire.inference.v1 import generate_pb2
from quire_gateway.generation import Generation, Generator
from quire_gateway.sequences import TokenLogprob, Update, Vocabulary


async def started_event(
    generator: Generator, message: generate_pb2.GenerateRequest, generation: Generation
) -> generate_pb2.Started:
    """The request is accepted: its prompt, as far as the client wants to know of it."""
    active = generation.requests[0]
    spec = active.spec
    return generate_pb2.Started(
        request_id=spec.id,
        model=spec.model.id,
        num_prompt_tokens=len(spec.prompt_token_ids),
        seed=spec.sampling.seed,
        prompt_token_ids=spec.prompt_token_ids if message.return_prompt_token_ids else (),
        prompt_text=await generator.prompt_text(active) if message.return_prompt_text else "",
    )


def delta_event(index: int, update: Update, vocabulary: Vocabulary) -> generate_pb2.Delta:
    """What a sequence gained."""
    delta = generate_pb2.Delta(
        sequence_index=index,
        text=update.text,
        token_ids=update.token_ids,
        sampled_at_unix_us=update.sampled_at_unix_us,
    )
    delta.logprobs.extend(_token_logprobs(found, vocabulary) for found in update.logprobs)
    return delta


def prompt_logprobs_event(generation: Generation, vocabulary: Vocabulary) -> generate_pb2.PromptLogprobs:
    """Log-probabilities of the prompt; they are complete before any output."""
    found = generation.requests[0].prompt_logprobs
    return generate_pb2.PromptLogprobs(tokens=[_token_logprobs(entry, vocabulary) for entry in found])


def _token_logprobs(found: TokenLogprob, vocabulary: Vocabulary) -> generate_pb2.TokenLogprobs:
    return generate_pb2.TokenLogprobs(
        token_id=found.token_id,
        logprob=found.logprob,
        rank=found.rank,
        token_bytes=_bytes_of(found.token_id, vocabulary),
        top=[
            generate_pb2.TopLogprob(
                token_id=token_id, logprob=logprob, token_bytes=_bytes_of(token_id, vocabulary)
            )
            for token_id, logprob in found.top
        ],
    )


def _bytes_of(token_id: int, vocabulary: Vocabulary) -> bytes:
    return vocabulary[token_id] if token_id < len(vocabulary) else b""
