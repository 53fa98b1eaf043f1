"""Constraints as the engine uses them: refused, compiled while their request waits, followed by one masker a sequence.

Runs on the event loop; what takes long runs beside it. Knows neither the queue nor the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from llguidance import LLMatcher

from quire_scheduler.errors import InvalidRequest, TokenizerMissing, UnsupportedParameter
from quire_scheduler.grammar.checker_frames import Setup
from quire_scheduler.grammar.compiler import CompilerLimits, CompilerStats, GrammarCompiler
from quire_scheduler.grammar.masker import SequenceMasker
from quire_scheduler.grammar.prototype import PrototypeMaker
from quire_scheduler.grammar.vocabulary import Vocabulary
from quire_scheduler.request import Request, SamplingParams

Maskers = dict[int, SequenceMasker]


class GrammarService:
    """Maskers for requests. Constraints need the tokenizer's vocabulary; reasoning spans alone don't."""

    def __init__(
        self, limits: CompilerLimits, *, has_tokenizer: bool, vocabulary_timeout_s: float = 30.0
    ) -> None:
        """has_tokenizer: a vocabulary will come. vocabulary_timeout_s: how long a request waits for it."""
        self._limits = limits
        self._has_tokenizer = has_tokenizer
        self._vocabulary_timeout_s = vocabulary_timeout_s
        self._compiler: GrammarCompiler | None = None
        self._ready = asyncio.Event()
        self._refusal: UnsupportedParameter | None = None
        self.fingerprint = ""

    @property
    def stats(self) -> CompilerStats:
        """What was compiled so far."""
        return CompilerStats() if self._compiler is None else self._compiler.stats

    async def set_vocabulary(
        self, vocabulary: Vocabulary, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        """The tokenizer and the model are known: constraints can be compiled from now on."""
        setup = Setup(vocabulary, vocab_size, tuple(eos_token_ids))
        self.fingerprint = vocabulary.fingerprint
        try:
            maker = await asyncio.to_thread(PrototypeMaker, vocabulary, vocab_size, eos_token_ids)
        except ValueError as error:
            self._refusal = UnsupportedParameter("constraint", f"constraint is not supported: {error}")
        else:
            self._compiler = GrammarCompiler(setup, maker, self._limits)
        self._ready.set()

    def try_prepare(self, request: Request) -> Maskers | None:
        """The maskers of a request's sequences by index, if nothing has to be compiled for it; None: `prepare` it.

        Raises UnsupportedParameter or InvalidRequest for what can never be served.
        """
        sampling = request.sampling
        if sampling.constraint is None:
            return {index: make_masker(sampling) for index in _indices(request)} if sampling.reasoning else {}
        self._check(sampling)
        prototype = None if self._compiler is None else self._compiler.find(sampling.constraint)
        if prototype is None or request.resumed:
            # What a resumed sequence has generated must be matched again, which takes long on the loop.
            return None
        return make_maskers(request, prototype)

    async def prepare(self, request: Request) -> Maskers:
        """As `try_prepare`, compiling. Raises InvalidRequest, UnsupportedParameter or TokenizerMissing."""
        constraint = request.sampling.constraint
        assert constraint is not None, "only constraints are compiled"
        try:
            await asyncio.wait_for(self._ready.wait(), self._vocabulary_timeout_s)
        except TimeoutError as error:
            raise TokenizerMissing(self._vocabulary_timeout_s) from error
        if self._compiler is None:
            assert self._refusal is not None
            raise self._refusal
        prototype = await self._compiler.compile(constraint)
        if request.resumed:
            return await asyncio.get_running_loop().run_in_executor(None, make_maskers, request, prototype)
        return make_maskers(request, prototype)

    async def close(self) -> None:
        """Compile nothing more."""
        if self._compiler is not None:
            await self._compiler.close()

    def _check(self, sampling: SamplingParams) -> None:
        if self._refusal is not None:
            raise self._refusal
        if not self._has_tokenizer:
            raise UnsupportedParameter(
                "constraint", "constraint is not supported: this scheduler has been given no tokenizer"
            )
        if sampling.ignore_eos:
            raise InvalidRequest(
                "ignore_eos", "false with a constraint, which says where the output ends", True
            )
        if sampling.allowed_token_ids:
            raise InvalidRequest(
                "allowed_token_ids",
                "empty with a constraint, which says what is allowed",
                len(sampling.allowed_token_ids),
            )


def make_masker(sampling: SamplingParams, prototype: LLMatcher | None = None) -> SequenceMasker:
    """A masker at the beginning of an output."""
    return SequenceMasker(
        sampling.ending_token_ids(),
        constraint=sampling.constraint,
        matcher=None if prototype is None else prototype.deep_copy(),
        span=sampling.reasoning,
    )


def make_maskers(request: Request, prototype: LLMatcher) -> Maskers:
    """One masker a sequence, brought to where resumed ones are. Raises InvalidRequest if their output can't match."""
    maskers = {index: make_masker(request.sampling, prototype) for index in _indices(request)}
    ending = request.sampling.ending_token_ids()
    for index, outputs in request.resumed.items():
        # A token that ended the output is no part of its text.
        end = len(outputs) - 1 if outputs and outputs[-1] in ending else len(outputs)
        maskers[index].consume(outputs, end)
    return maskers


def _indices(request: Request) -> Sequence[int]:
    return list(request.resumed) or range(request.n)
