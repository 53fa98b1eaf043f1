"""Compiles constraints on threads of its own, within limits of size and time, and remembers what it compiled.

A compilation holds no lock of the interpreter. The compiler's own limits bound it, so that a thread is never lost for
long; the time limit is what a request waits for it once it has begun.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from quire_scheduler.errors import InvalidRequest
from quire_scheduler.grammar.constraint import Constraint
from quire_scheduler.grammar.language import broken, grammar_of


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """timeout_s: of one compilation. num_threads: compilations at once. cache_size: constraints remembered."""

    timeout_s: float = 5.0
    num_threads: int = 2
    cache_size: int = 256


@dataclass(slots=True)
class CompilerStats:
    """Totals since the start."""

    num_compiled: int = 0
    num_refused: int = 0
    num_cache_hits: int = 0
    compile_ns: int = 0


def parser_limits() -> LLParserLimits:
    """What one grammar may cost: about 0.2 s to build its lexer, and a few milliseconds a token."""
    return LLParserLimits(
        max_items_in_row=2000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=250_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


class GrammarCompiler:
    """Compiled constraints of one tokenizer. `find` and `compile` are the event loop's; compiling is the threads'."""

    def __init__(
        self, tokenizer: LLTokenizer, special_token_ids: dict[str, int], limits: CompilerLimits
    ) -> None:
        self.stats = CompilerStats()
        self._tokenizer = tokenizer
        self._special_token_ids = special_token_ids
        self._limits = limits
        self._parser_limits = parser_limits()
        self._pool = ThreadPoolExecutor(limits.num_threads, "quire-grammar")
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
        loop = asyncio.get_running_loop()
        begun = loop.create_future()

        def job() -> LLMatcher:
            loop.call_soon_threadsafe(begun.set_result, None)
            return self.compile_now(constraint)

        compiled = loop.run_in_executor(self._pool, job)
        # Waiting for a thread is others' doing: only the compilation itself counts.
        await asyncio.wait({begun, compiled}, return_when=asyncio.FIRST_COMPLETED)
        try:
            return await asyncio.wait_for(asyncio.shield(compiled), self._limits.timeout_s)
        except TimeoutError as error:
            compiled.add_done_callback(lambda future: future.cancelled() or future.exception())
            limit = f"compiled within {self._limits.timeout_s:g} s"
            raise InvalidRequest(constraint.field, limit, "one that takes longer") from error
        except InvalidRequest:
            self.stats.num_refused += 1
            raise

    def compile_now(self, constraint: Constraint) -> LLMatcher:
        """As `compile`, on this thread and without a time limit."""
        if (known := self.find(constraint)) is not None:
            return known
        started = time.perf_counter_ns()
        grammar = grammar_of(constraint, self._special_token_ids)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._parser_limits)
        if not matcher.is_error():
            # The first mask builds most of the lexer: here it delays nobody, and what is too large shows at once.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise broken(constraint.field, f"does not compile: {_first_lines(matcher.get_error())}")
        with self._lock:
            self._cache[constraint] = matcher
            self.stats.num_compiled += 1
            self.stats.compile_ns += time.perf_counter_ns() - started
            while len(self._cache) > self._limits.cache_size:
                self._cache.popitem(last=False)
        return matcher

    def close(self) -> None:
        """Start no further compilation."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _first_lines(error: str) -> str:
    """The reason without the compiler's state, listing and place: the lines are not those of the client's text."""
    reason = re.split(r"<non-verbose/>|\n *\d+ \| ", error, maxsplit=1)[0]
    words = " ".join(re.sub(r"^at \d+\(\d+\): ", "", reason).split())
    # What is wrong stands at the end, behind the client's own text.
    return words if len(words) <= 400 else f"{words[:150]} ... {words[-230:]}"
