"""The gRPC side: Serve, GetLoad, ResetPrefixCache, SubscribeBlockEvents. Translates; the engine decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from quire.scheduler.v1 import events_pb2, load_pb2, scheduler_service_pb2_grpc, serve_pb2
from quire_scheduler import codec
from quire_scheduler.engine import Engine
from quire_scheduler.gateways import GatewayStream
from quire_servicekit.errors import FailedPrecondition, FingerprintMismatch, Unavailable
from quire_servicekit.logging import get_logger

log = get_logger("scheduler")


class SchedulerServicer(scheduler_service_pb2_grpc.SchedulerServicer):
    """The contract's Scheduler service."""

    def __init__(self, engine: Engine, max_unread_tokens: int) -> None:
        self._engine = engine
        self._max_unread_tokens = max_unread_tokens
        self._fingerprints: dict[GatewayStream, str] = {}

    async def end_streams(self) -> None:
        """End every Serve stream with UNAVAILABLE, so that gateways turn elsewhere at once; return when all have."""
        streams = list(self._fingerprints)
        for stream in streams:
            stream.end(Unavailable("scheduler", message="the scheduler stops"))
        await asyncio.gather(*(stream.closed.wait() for stream in streams))

    async def Serve(self, request_iterator: Any, context: Any) -> None:
        """See the contract. Reads and writes through `context`: two tasks, no generator between."""
        engine = self._engine
        hello = await self._read_hello(context)
        engine.require_core()
        if engine.is_draining:
            raise Unavailable("scheduler", message="the scheduler is draining")
        self._check_fingerprint(hello.tokenizer_fingerprint)
        stream = GatewayStream(engine, context, hello.gateway_id, self._max_unread_tokens)
        self._fingerprints[stream] = hello.tokenizer_fingerprint
        engine.num_gateways = len(self._fingerprints)
        log.info("gateway connected", gateway_id=hello.gateway_id)
        try:
            await context.write(serve_pb2.ServeResponse(ready=self._ready()))
            await stream.run()
        finally:
            del self._fingerprints[stream]
            stream.closed.set()
            engine.num_gateways = len(self._fingerprints)
            log.info("gateway disconnected", gateway_id=hello.gateway_id)

    async def GetLoad(self, request: load_pb2.GetLoadRequest, context: Any) -> load_pb2.GetLoadResponse:
        """See the contract."""
        engine = self._engine
        stats = None if engine.core is None else engine.core.stats
        return load_pb2.GetLoadResponse(
            load=codec.load_to_message(engine.load()),
            has_worker=engine.is_connected,
            is_draining=engine.is_draining,
            num_steps=0 if stats is None else stats.num_steps,
            num_preemptions=0 if stats is None else stats.num_preemptions,
            scheduler_id=engine.scheduler_id,
        )

    async def ResetPrefixCache(
        self, request: load_pb2.ResetPrefixCacheRequest, context: Any
    ) -> load_pb2.ResetPrefixCacheResponse:
        """See the contract."""
        core = self._engine.core
        num_forgotten, num_in_use = (0, 0) if core is None else core.reset_prefix_cache()
        return load_pb2.ResetPrefixCacheResponse(num_blocks=num_forgotten, num_blocks_in_use=num_in_use)

    async def SubscribeBlockEvents(
        self, request: events_pb2.SubscribeBlockEventsRequest, context: Any
    ) -> AsyncIterator[events_pb2.SubscribeBlockEventsResponse]:
        """See the contract."""
        self._engine.require_core()
        feed = self._engine.feed
        assert feed is not None
        async with aclosing(feed.subscribe()) as batches:
            async for batch in batches:
                yield codec.block_events_to_message(batch)

    async def _read_hello(self, context: Any) -> serve_pb2.Hello:
        message = await context.read()
        if message is grpc.aio.EOF or message.WhichOneof("message") != "hello":
            raise FailedPrecondition("the first message of Serve must be `hello`")
        hello: serve_pb2.Hello = message.hello
        return hello

    def _check_fingerprint(self, fingerprint: str) -> None:
        others = {other for other in self._fingerprints.values() if other}
        if own := self._engine.constrained.grammars.fingerprint:
            others.add(own)
        if fingerprint and others and fingerprint not in others:
            raise FingerprintMismatch("the gateways' tokenizer", others.pop(), fingerprint)

    def _ready(self) -> serve_pb2.Ready:
        engine = self._engine
        core = engine.require_core()
        return serve_pb2.Ready(
            scheduler_id=engine.scheduler_id,
            model=engine.model,
            block_size=core.config.block_size,
            max_model_len=core.max_total_tokens,
            load=codec.load_to_message(engine.load()),
        )
