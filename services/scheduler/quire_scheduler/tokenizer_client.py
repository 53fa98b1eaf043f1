"""The vocabulary from the tokenizer service. One job: ask until it answers."""

from __future__ import annotations

import asyncio

import grpc

from quire.tokenizer.v1 import tokenizer_service_pb2_grpc, vocabulary_pb2
from quire_scheduler.grammar.vocabulary import Vocabulary
from quire_servicekit.logging import get_logger

log = get_logger("tokenizer_client")

ANSWER_TIMEOUT_S = 30.0
RETRY_DELAY_S = 0.5


async def fetch_vocabulary(channel: grpc.aio.Channel) -> Vocabulary:
    """The bytes of every token, and which are special; waits for as long as no tokenizer answers."""
    stub = tokenizer_service_pb2_grpc.TokenizerStub(channel)
    request = vocabulary_pb2.GetTokenizerRequest(with_vocabulary=True)
    told = ""
    while True:
        try:
            answer = await stub.GetTokenizer(request, timeout=ANSWER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            if error.code().name != told:
                told = error.code().name
                log.warning("waiting for the tokenizer", reason=reason)
            await asyncio.sleep(RETRY_DELAY_S)
            continue
        return Vocabulary(
            token_bytes=list(answer.vocabulary),
            special_token_ids=frozenset(answer.special_token_ids),
            fingerprint=answer.fingerprint,
        )
