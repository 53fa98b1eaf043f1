"""Text to tokens and back, by whichever tokenizer replica answers.

One job: call replicas, go on with another when one fails, and refuse those with another fingerprint than the first.
Only failures of a replica are tried again: a refused text is refused by all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from quire.tokenizer.v1 import encode_pb2, tokenizer_service_pb2_grpc, vocabulary_pb2
from quire_gateway.requests import ChatPrompt
from quire_servicekit.error_details import error_of
from quire_servicekit.errors import FingerprintMismatch, InternalError, QuireError, Unavailable
from quire_servicekit.logging import get_logger

log = get_logger("tokenizer client")

T = TypeVar("T")

_BACKOFF_S = (0.02, 0.05, 0.1, 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerInfo:
    """What the tokenizer is."""

    fingerprint: str
    vocab_size: int
    has_chat_template: bool
    max_text_chars: int
    special_token_ids: frozenset[int] = frozenset()
    #: Bytes of each token's text.
    vocabulary: tuple[bytes, ...] = field(default=(), repr=False)
    #: A text is its tokens' bytes, without so many spaces at its start.
    is_text_bytes: bool = False
    num_leading_spaces_stripped: int = 0
    #: Sources: the default one first, then the one for requests with tools if there is another.
    chat_templates: tuple[str, ...] = field(default=(), repr=False)


class _Replica:
    """One tokenizer process."""

    __slots__ = ("address", "channel", "is_usable", "last_reason", "lost", "stub")

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address, self.channel = address, channel
        self.stub = tokenizer_service_pb2_grpc.TokenizerStub(channel)
        self.is_usable = False
        self.lost = asyncio.Event()
        self.last_reason = ""


class TokenizerClient:
    """All tokenizer replicas. `info` is set once the first one has answered."""

    def __init__(
        self,
        channels: Iterable[tuple[str, grpc.aio.Channel]],
        *,
        wait_timeout_s: float = 30.0,
        call_timeout_s: float = 60.0,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """wait_timeout_s: how long a call waits for a usable replica. call_timeout_s: for one replica's answer."""
        self._replicas = [_Replica(address, channel) for address, channel in channels]
        self._wait_timeout_s, self._call_timeout_s, self._on_change = (
            wait_timeout_s,
            call_timeout_s,
            on_change,
        )
        self._turn = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.info: TokenizerInfo | None = None

    def start(self) -> None:
        """Look for replicas in the background, and look again for those that failed."""
        self._task = asyncio.get_running_loop().create_task(self._probe_all(), name="tokenizer probe")

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def is_ready(self) -> bool:
        """At least one replica answers."""
        return any(replica.is_usable for replica in self._replicas)

    async def wait_known(self) -> TokenizerInfo:
        """What the tokenizer is; waits for the first replica's answer."""
        while self.info is None:
            await self._wait_for_change()
        return self.info

    async def encode(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """The token ids of each text."""
        request = encode_pb2.EncodeRequest(texts=texts, add_special_tokens=add_special_tokens)
        response = await self._call(lambda stub, timeout: stub.Encode(request, timeout=timeout))
        token_ids, encoded, start = list(response.token_ids), [], 0
        for count in response.num_tokens:
            encoded.append(token_ids[start : start + count])
            start += count
        return encoded

    async def encode_pairs(
        self,
        texts: Sequence[str],
        seconds: Sequence[str],
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
    ) -> list[tuple[list[int], int]]:
        """The token ids of each pair of texts as one sequence, and where its second text begins.

        seconds: empty for texts alone (then that is 0). max_tokens: longer encodings are cut to it.
        """
        request = encode_pb2.EncodeRequest(
            texts=texts, second_texts=seconds, add_special_tokens=add_special_tokens, max_tokens=max_tokens
        )
        response = await self._call(lambda stub, timeout: stub.Encode(request, timeout=timeout))
        token_ids, encoded, start = list(response.token_ids), [], 0
        starts = list(response.second_text_starts) or [0] * len(response.num_tokens)
        for count, second_start in zip(response.num_tokens, starts, strict=True):
            encoded.append((token_ids[start : start + count], second_start))
            start += count
        return encoded

    async def render_chat(self, prompt: ChatPrompt) -> tuple[str, list[int]]:
        """The conversation by the model's chat template, and its token ids."""
        variables = dict(prompt.template_kwargs)
        if prompt.documents:
            variables["documents"] = list(prompt.documents)
        request = encode_pb2.RenderChatRequest(
            messages_json=[json.dumps(message, ensure_ascii=False) for message in prompt.messages],
            tools_json=[json.dumps(tool, ensure_ascii=False) for tool in prompt.tools],
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            template_kwargs_json=json.dumps(variables) if variables else "",
            chat_template=prompt.chat_template,
        )
        response = await self._call(lambda stub, timeout: stub.RenderChat(request, timeout=timeout))
        return response.text, list(response.token_ids)

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        request = encode_pb2.DecodeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        response = await self._call(lambda stub, timeout: stub.Decode(request, timeout=timeout))
        return str(response.text)

    async def pick(self) -> tuple[str, grpc.aio.Channel]:
        """A usable replica, in turn; waits for ever for one."""
        while (replica := self._next(())) is None:
            await self._wait_for_change()
        return replica.address, replica.channel

    def mark_failed(self, address: str) -> None:
        """A replica has just failed: others are preferred until a probe finds it well again."""
        for replica in self._replicas:
            if replica.address == address and replica.is_usable:
                replica.is_usable = False
                replica.lost.set()
                self._on_change()

    # ---- Calls ---------------------------------------------------------------------------------------------------

    async def _call(
        self, send: Callable[[tokenizer_service_pb2_grpc.TokenizerStub, float], Awaitable[T]]
    ) -> T:
        """One answer from any replica; raises the replica's refusal, or Unavailable when none answers in time."""
        give_up_at = asyncio.get_running_loop().time() + self._wait_timeout_s
        tried: list[str] = []
        while True:
            replica = self._next(tried)
            if replica is None:
                tried.clear()
                await self._wait_for_change_until(give_up_at)
                continue
            try:
                return await send(replica.stub, self._call_timeout_s)
            except grpc.aio.AioRpcError as failure:
                error = error_of(failure)
                if not isinstance(error, Unavailable):
                    raise _for_client(error) from failure
                tried.append(replica.address)
                self.mark_failed(replica.address)

    def _next(self, tried: Sequence[str]) -> _Replica | None:
        """The next usable replica in turn that has not been tried."""
        for offset in range(len(self._replicas)):
            replica = self._replicas[(self._turn + offset) % len(self._replicas)]
            if replica.is_usable and replica.address not in tried:
                self._turn = (self._turn + offset + 1) % len(self._replicas)
                return replica
        return None

    async def _wait_for_change_until(self, give_up_at: float) -> None:
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._wait_for_change()
        except TimeoutError:
            raise Unavailable("tokenizer") from None

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # ---- Probing -------------------------------------------------------------------------------------------------

    async def _probe_all(self) -> None:
        await asyncio.gather(*(self._probe(replica) for replica in self._replicas))

    async def _probe(self, replica: _Replica) -> None:
        """Keep one replica's state true."""
        num_failures = 0
        while True:
            try:
                self._admit(replica, await self._describe(replica))
                num_failures = 0
                await self._watch(replica)
            except (grpc.aio.AioRpcError, FingerprintMismatch) as failure:
                num_failures += 1
                reason = failure.details() if isinstance(failure, grpc.aio.AioRpcError) else failure.message
                if reason != replica.last_reason:
                    log.warning("tokenizer not usable", address=replica.address, reason=reason)
                replica.last_reason = reason or ""
                await asyncio.sleep(_BACKOFF_S[min(num_failures, len(_BACKOFF_S)) - 1])

    async def _watch(self, replica: _Replica) -> None:
        """Return when the replica is lost: a call to it failed, or its connection broke while no call was under way."""
        lost = asyncio.ensure_future(replica.lost.wait())
        broken = asyncio.ensure_future(_until_disconnected(replica.channel))
        try:
            await asyncio.wait((lost, broken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            broken.cancel()
            await asyncio.gather(lost, broken, return_exceptions=True)
        self.mark_failed(replica.address)

    async def _describe(self, replica: _Replica) -> vocabulary_pb2.GetTokenizerResponse:
        # The vocabulary is large: only the first replica is asked for it, the others have the same fingerprint.
        request = vocabulary_pb2.GetTokenizerRequest(with_vocabulary=self.info is None)
        return await replica.stub.GetTokenizer(request, timeout=self._call_timeout_s)

    def _admit(self, replica: _Replica, response: vocabulary_pb2.GetTokenizerResponse) -> None:
        if self.info is None:
            self.info = TokenizerInfo(
                fingerprint=response.fingerprint,
                vocab_size=response.vocab_size,
                has_chat_template=response.has_chat_template,
                max_text_chars=response.max_text_chars,
                special_token_ids=frozenset(response.special_token_ids),
                vocabulary=tuple(response.vocabulary),
                is_text_bytes=response.text_scheme == vocabulary_pb2.TEXT_SCHEME_BYTES,
                num_leading_spaces_stripped=response.num_leading_spaces_stripped,
                chat_templates=tuple(response.chat_templates),
            )
        elif response.fingerprint != self.info.fingerprint:
            raise FingerprintMismatch("tokenizer", self.info.fingerprint, response.fingerprint)
        log.info("tokenizer connected", address=replica.address, fingerprint=response.fingerprint[:12])
        replica.lost.clear()
        replica.is_usable, replica.last_reason = True, ""
        self._changed.set()
        self._on_change()


async def _until_disconnected(channel: grpc.aio.Channel) -> None:
    """Return when a connected channel is so no more; a reconnect counts as well."""
    while channel.get_state() is grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)


def _for_client(error: QuireError) -> QuireError:
    """What the client may see: an inner fault is ours, and its text is for our log."""
    return InternalError("the tokenizer failed") if isinstance(error, InternalError) else error
