"""Compiles constraints beside the loop, within limits of size and time, and remembers what it compiled.

A constraint is tried in another process first; what passed there is compiled again here, on a thread, since matchers
cannot cross. No lock of the interpreter is held for long.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from llguidance import LLMatcher

from quire_scheduler.errors import InvalidRequest
from quire_scheduler.grammar.checker import CheckerPool
from quire_scheduler.grammar.checker_frames import STACK_BYTES, Setup
from quire_scheduler.grammar.constraint import Constraint
from quire_scheduler.grammar.prototype import PrototypeMaker


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """timeout_s: of one compilation. num_processes: compilations at once. cache_size: constraints remembered."""

    timeout_s: float = 5.0
    num_processes: int = 2
    cache_size: int = 256


@dataclass(slots=True)
class CompilerStats:
    """Totals since the start. compile_ns: on this side only."""

    num_compiled: int = 0
    num_refused: int = 0
    num_cache_hits: int = 0
    compile_ns: int = 0


class GrammarCompiler:
    """Compiled constraints of one tokenizer and model. All methods but `compile_now` are the event loop's."""

    def __init__(self, setup: Setup, maker: PrototypeMaker, limits: CompilerLimits) -> None:
        self.stats = CompilerStats()
        self._maker = maker
        self._limits = limits
        self._checkers = CheckerPool(setup, limits.num_processes, limits.timeout_s)
        self._pool = deep_thread()
        # Prototypes, the latest used last; they are copied, never advanced.
        self._cache: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, constraint: Constraint) -> LLMatcher | None:
        """The prototype, if the constraint was compiled lately; to be copied, not advanced."""
        with self._lock:
            prototype = self._cache.get(constraint)
            if prototype is not None:
                self._cache.move_to_end(constraint)
                self.stats.num_cache_hits += 1
            return prototype

    async def compile(self, constraint: Constraint) -> LLMatcher:
        """The prototype. Raises InvalidRequest naming the field: it does not compile, or not within the limits."""
        try:
            grammar = await self._checkers.check(constraint)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self.compile_now, constraint, grammar)
        except InvalidRequest:
            self.stats.num_refused += 1
            raise

    def compile_now(self, constraint: Constraint, grammar: str = "") -> LLMatcher:
        """As `compile`, on this thread and without a limit of time. grammar: of the constraint, where it is known."""
        with self._lock:
            known = self._cache.get(constraint)
        if known is not None:
            return known
        started = time.perf_counter_ns()
        matcher = self._maker.make(constraint, grammar or self._maker.grammar_of(constraint))
        with self._lock:
            self._cache[constraint] = matcher
            self.stats.num_compiled += 1
            self.stats.compile_ns += time.perf_counter_ns() - started
            while len(self._cache) > self._limits.cache_size:
                self._cache.popitem(last=False)
        return matcher

    async def close(self) -> None:
        """Start no further compilation, end the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await self._checkers.close()


def deep_thread() -> ThreadPoolExecutor:
    """A thread with the stack that constraints were tried on."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(1, "quire-grammar")
        # The thread is made with the first work.
        pool.submit(int).result()
    finally:
        threading.stack_size(usual)
    return pool
