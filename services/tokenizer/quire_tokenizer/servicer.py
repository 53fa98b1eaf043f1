"""quire.tokenizer.v1.Tokenizer: messages to domain calls and back, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from quire.tokenizer.v1 import (
    detokenize_pb2,
    encode_pb2,
    tokenizer_service_pb2,
    tokenizer_service_pb2_grpc,
    vocabulary_pb2,
)
from quire_servicekit.errors import InvalidRequest
from quire_servicekit.interceptors import ActiveRpcs
from quire_tokenizer.conversation import ChatLimits, Conversation, ConversationRenderer
from quire_tokenizer.detokenize import Detokenizer
from quire_tokenizer.encode import TextEncoder, TextLimits
from quire_tokenizer.loading import LoadedTokenizer
from quire_tokenizer.metrics import TokenizerMetrics
from quire_tokenizer.pairs import EncodedPair
from quire_tokenizer.source import DEFAULT_TEMPLATE, TOOL_TEMPLATE
from quire_tokenizer.stream_table import StreamTable, TextColumns
from quire_tokenizer.text_pool import TextPool
from quire_tokenizer.vocabulary import Scheme

SERVICE_NAME: str = tokenizer_service_pb2.DESCRIPTOR.services_by_name["Tokenizer"].full_name


class TokenizerServicer(tokenizer_service_pb2_grpc.TokenizerServicer):
    """Serves one loaded tokenizer."""

    def __init__(
        self,
        tokenizer: LoadedTokenizer,
        pool: TextPool,
        metrics: TokenizerMetrics,
        *,
        text_limits: TextLimits,
        chat_limits: ChatLimits,
        max_streams: int,
    ) -> None:
        """Raises ModelFormatError when the model's chat template does not compile."""
        self._tokenizer = tokenizer
        self._pool = pool
        self._metrics = metrics
        self._text_limits = text_limits
        self._max_streams = max_streams
        self._encoder = TextEncoder(tokenizer.backend, text_limits)
        self._detokenizer = Detokenizer(tokenizer.backend, tokenizer.vocabulary)
        self._renderer = ConversationRenderer(tokenizer.chat_templates, tokenizer.vocabulary, chat_limits)
        #: Calls, and streams that are open inside a call: what a drain waits for. The calls that hold the streams are
        #: not counted, since a gateway holds its one call for as long as it lives.
        self.work = ActiveRpcs()

    async def Encode(self, request: encode_pb2.EncodeRequest, context: Any) -> encode_pb2.EncodeResponse:
        """Texts to token ids."""
        if request.second_texts or request.HasField("max_tokens"):
            return await self._encode_pairs(request)
        texts = list(request.texts)
        special = _unless_set(request, "add_special_tokens", True)
        num_chars = self._encoder.check(texts)

        def work() -> list[list[int]]:
            return [self._encoder.encode(text, add_special_tokens=special) for text in texts]

        with _Counted(self.work):
            encoded = await self._pool.run(num_chars, work)
        self._metrics.encoded(num_chars, sum(map(len, encoded)))
        return encode_pb2.EncodeResponse(
            token_ids=[token_id for ids in encoded for token_id in ids], num_tokens=map(len, encoded)
        )

    async def _encode_pairs(self, request: encode_pb2.EncodeRequest) -> encode_pb2.EncodeResponse:
        """Texts with second ones, or with a longest length."""
        texts, seconds = list(request.texts), list(request.second_texts)
        others: list[str | None] = [*seconds] if seconds else [None] * len(texts)
        if seconds and len(seconds) != len(texts):
            raise InvalidRequest("second_texts", f"as many as texts ({len(texts)}) or none", len(seconds))
        special = _unless_set(request, "add_special_tokens", True)
        limit = _unless_set(request, "max_tokens", None)
        num_chars = self._encoder.check(texts) + (self._encoder.check(seconds) if seconds else 0)

        def work() -> list[EncodedPair]:
            return [
                self._encoder.encode_pair(text, second, add_special_tokens=special, max_tokens=limit)
                for text, second in zip(texts, others, strict=True)
            ]

        with _Counted(self.work):
            encoded = await self._pool.run(num_chars, work)
        num_tokens = [len(pair.token_ids) for pair in encoded]
        self._metrics.encoded(num_chars, sum(num_tokens))
        return encode_pb2.EncodeResponse(
            token_ids=[token_id for pair in encoded for token_id in pair.token_ids],
            num_tokens=num_tokens,
            second_text_starts=[pair.second_text_start for pair in encoded] if seconds else (),
        )

    async def RenderChat(
        self, request: encode_pb2.RenderChatRequest, context: Any
    ) -> encode_pb2.RenderChatResponse:
        """A conversation to text, and to token ids unless that is not wanted."""
        conversation = Conversation(
            messages_json=list(request.messages_json),
            tools_json=list(request.tools_json),
            template_kwargs_json=request.template_kwargs_json,
            chat_template=request.chat_template,
            add_generation_prompt=_unless_set(request, "add_generation_prompt", None),
            continue_final_message=request.continue_final_message,
        )
        tokenize = _unless_set(request, "tokenize", True)

        def work() -> tuple[str, list[int]]:
            text = self._renderer.render(conversation)
            # The template has written the special tokens already; a second BOS would be one too many.
            return text, self._encoder.encode(text, add_special_tokens=False) if tokenize else []

        with _Counted(self.work):
            text, token_ids = await self._pool.run(conversation.num_chars, work)
        self._metrics.encoded(len(text), len(token_ids))
        return encode_pb2.RenderChatResponse(text=text, token_ids=token_ids)

    async def Decode(self, request: encode_pb2.DecodeRequest, context: Any) -> encode_pb2.DecodeResponse:
        """Token ids to text in one shot."""
        limit = self._text_limits.max_decode_tokens
        if len(request.token_ids) > limit:
            raise InvalidRequest("token_ids", f"at most {limit} token ids", len(request.token_ids))
        skip = _unless_set(request, "skip_special_tokens", True)
        with _Counted(self.work):
            text = self._detokenizer.decode(list(request.token_ids), skip_special_tokens=skip)
        return encode_pb2.DecodeResponse(text=text)

    async def DetokenizeStream(
        self, requests: AsyncIterable[detokenize_pb2.DetokenizeStreamRequest], context: Any
    ) -> AsyncIterator[detokenize_pb2.DetokenizeStreamResponse]:
        """Batches of new tokens in, their texts out, one for one and in order."""
        table = StreamTable(self._detokenizer, max_streams=self._max_streams, on_count=self._count_streams)
        try:
            async for request in requests:
                yield self._apply(table, request)
        finally:
            table.close_all()

    async def GetTokenizer(
        self, request: vocabulary_pb2.GetTokenizerRequest, context: Any
    ) -> vocabulary_pb2.GetTokenizerResponse:
        """What the tokenizer is."""
        vocabulary = self._tokenizer.vocabulary
        return vocabulary_pb2.GetTokenizerResponse(
            fingerprint=self._tokenizer.fingerprint,
            vocab_size=vocabulary.size,
            bos_token_id=vocabulary.special.bos_id,
            eos_token_ids=vocabulary.special.eos_ids,
            special_token_ids=sorted(vocabulary.special_ids),
            vocabulary=vocabulary.token_bytes if request.with_vocabulary else (),
            has_chat_template=self._renderer.has_template,
            max_text_chars=self._text_limits.max_text_chars,
            text_scheme=(
                vocabulary_pb2.TEXT_SCHEME_UNSPECIFIED
                if vocabulary.scheme is Scheme.GENERIC
                else vocabulary_pb2.TEXT_SCHEME_BYTES
            ),
            num_leading_spaces_stripped=vocabulary.num_leading_spaces_stripped,
            chat_templates=[
                self._tokenizer.chat_templates[name]
                for name in (DEFAULT_TEMPLATE, TOOL_TEMPLATE)
                if name in self._tokenizer.chat_templates
            ],
        )

    def _apply(
        self, table: StreamTable, request: detokenize_pb2.DetokenizeStreamRequest
    ) -> detokenize_pb2.DetokenizeStreamResponse:
        result = TextColumns()
        for opened in request.open:
            table.open(
                opened.handle,
                skip_special_tokens=_unless_set(opened, "skip_special_tokens", True),
                context_ids=list(opened.context_token_ids),
                result=result,
            )
        # Lists, since slicing a repeated field costs ten times as much.
        token_ids = list(request.token_ids)
        table.push(request.handles, request.num_tokens, token_ids, request.is_last, result)
        for handle in request.close:
            table.close(handle)
        self._metrics.detokenized(len(token_ids), len(result.failures))
        return detokenize_pb2.DetokenizeStreamResponse(
            batch_id=request.batch_id,
            texts=result.texts,
            failed_handles=result.failed_handles,
            failures=result.failures,
        )

    def _count_streams(self, change: int) -> None:
        self._metrics.streams_changed(change)
        for _ in range(change):
            self.work.enter()
        for _ in range(-change):
            self.work.leave()


class _Counted:
    """Counts a call among the work that a drain waits for."""

    __slots__ = ("_work",)

    def __init__(self, work: ActiveRpcs) -> None:
        self._work = work

    def __enter__(self) -> None:
        self._work.enter()

    def __exit__(self, *_: object) -> None:
        self._work.leave()


def _unless_set(message: Any, field: str, default: Any) -> Any:
    """The value of an optional field, or `default` where it is not set."""
    return getattr(message, field) if message.HasField(field) else default
