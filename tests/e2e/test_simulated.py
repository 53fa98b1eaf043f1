"""The whole suite without a model: many fast streams, counted token by token."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc

pytestmark = pytest.mark.e2e

NUM_STREAMS, NUM_TOKENS = 24, 200


def ask(suite, seed, n=1):
    """Events of one native stream that never ends early."""
    request = generate_pb2.GenerateRequest(n=n)
    request.token_ids.ids.extend(range(100, 140))
    request.sampling.seed = seed
    request.sampling.max_tokens = NUM_TOKENS
    request.sampling.ignore_eos = True
    return list(inference_service_pb2_grpc.InferenceStub(suite.channel).Generate(request, timeout=60))


def tokens_of(events, index=0):
    """All token ids of one sequence."""
    return [
        token for event in events if event.delta.sequence_index == index for token in event.delta.token_ids
    ]


def test_no_token_is_lost_or_told_twice(simulated_suite):
    """With many streams at once each brings exactly the tokens that its usage counts, the same as alone."""
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        together = list(pool.map(lambda seed: ask(simulated_suite, seed), range(NUM_STREAMS)))
    for events in together:
        assert len(tokens_of(events)) == NUM_TOKENS == events[-1].completed.usage.num_output_tokens
    for seed in (0, 7, 23):
        assert tokens_of(ask(simulated_suite, seed)) == tokens_of(together[seed])


def test_sequences_of_a_request_end_once_each(simulated_suite):
    """Many requests of four sequences: each sequence has all its tokens and one end, and the request one."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda seed: ask(simulated_suite, seed, n=4), range(8)))
    for events in answers:
        assert [len(tokens_of(events, index)) for index in range(4)] == [NUM_TOKENS] * 4
        ends = [
            event.sequence_finished.sequence_index for event in events if event.HasField("sequence_finished")
        ]
        assert sorted(ends) == [0, 1, 2, 3]
        assert [event.HasField("completed") for event in events].count(True) == 1
        assert len({tuple(tokens_of(events, index)) for index in range(4)}) == 4


def test_text_is_that_of_the_tokens(simulated_suite):
    """The streamed text is what the tokens say when detokenised at once."""
    from quire.inference.v1 import tokens_pb2

    stub = inference_service_pb2_grpc.InferenceStub(simulated_suite.channel)
    for seed in range(5):
        events = ask(simulated_suite, seed)
        text = "".join(event.delta.text for event in events)
        whole = stub.Detokenize(tokens_pb2.DetokenizeRequest(token_ids=tokens_of(events))).text
        assert text == whole
