"""Noticing that a stream is quiet.

One job: an iterator that also says when nothing came for a while, without losing what comes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def with_pauses(items: AsyncIterator[T], interval_s: float) -> AsyncIterator[T | None]:
    """The items, and None whenever `interval_s` passed without one. Closing it closes `items`."""
    task: asyncio.Task[T] | None = None
    async with aclosing(items):  # type: ignore[type-var]
        try:
            while True:
                task = asyncio.ensure_future(_next(items))
                while not (await asyncio.wait((task,), timeout=interval_s))[0]:
                    yield None
                try:
                    item = task.result()
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait((task,))


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
