"""Constraints compiled and followed: languages, limits, reasoning spans, and the masks of a step."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_scheduler.errors import InvalidRequest
from quire_scheduler.grammar.checker_frames import Setup
from quire_scheduler.grammar.compiler import CompilerLimits, GrammarCompiler, deep_thread
from quire_scheduler.grammar.constraint import Constraint, ReasoningSpan
from quire_scheduler.grammar.masker import SequenceMasker
from quire_scheduler.grammar.masks import MaskPipeline
from quire_scheduler.grammar.prototype import PrototypeMaker
from quire_scheduler.grammar.reasoning import Phase, ReasoningTracker
from quire_scheduler.grammar.vocabulary import Vocabulary
from quire_scheduler.request import Request, SamplingParams, Sequence, SequenceStatus
from quire_scheduler.step import StepPlan

EOS, STOP, CALL = 256, 257, 258
TOKENS = [*(bytes([value]) for value in range(256)), b"<eos>", b"<stop>", b"<call>", b"ab", b'{"']
# As a model's projection, padded beyond the tokenizer.
VOCAB_SIZE = 288
VOCABULARY = Vocabulary(TOKENS, frozenset({EOS, STOP, CALL}))


SETUP = Setup(VOCABULARY, VOCAB_SIZE, (EOS,))


def make_compiler(**limits):
    maker = PrototypeMaker(VOCABULARY, VOCAB_SIZE, [EOS])
    return GrammarCompiler(SETUP, maker, CompilerLimits(**limits))


@pytest.fixture(scope="module")
def compiler():
    """For tests that compile on their own thread; it has no processes then."""
    return make_compiler()


def masker_of(compiler, constraint, span=None, ending=(EOS,)):
    matcher = None if constraint is None else compiler.compile_now(constraint).deep_copy()
    return SequenceMasker(ending, constraint, matcher, span)


def permitted(masker, outputs=()):
    """The tokens that may follow these outputs."""
    masker.consume(list(outputs), len(outputs))
    row = np.zeros(-(-VOCAB_SIZE // 32), dtype=np.uint32)
    masker.fill(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:VOCAB_SIZE]).tolist())


def ids(text):
    return list(text.encode())


def accepts(compiler, constraint, text):
    """Whether the whole text is a word of the language."""
    masker = masker_of(compiler, constraint)
    for token in ids(text):
        if token not in permitted(masker):
            return False
        masker._num_consumed = 0
        masker.consume([token], 1)
    return EOS in permitted(masker)


def constraint(kind, text="", **fields):
    return Constraint(kind=kind, text=text, **fields)


@pytest.mark.parametrize(
    ("language", "words", "others"),
    [
        (constraint("regex", "a/b|[0-9]{2}"), ["a/b", "07"], ["a", "a/bb", "7", ""]),
        (constraint("choice", choices=("a", "ab", 'é"\n\\')), ["a", "ab", 'é"\n\\'], ["", "b", "abb", "é"]),
        (constraint("json_object"), ["{}", '{"a": [1, null]}', "{ }"], ["[]", "1", "{", '{"a"}']),
        (constraint("json_object", disable_any_whitespace=True), ['{"a":1}'], ['{"a": 1}', "{ }"]),
        (constraint("json_object", whitespace_pattern=" "), ['{"a": 1}', '{"a":1}'], ['{"a":  1}']),
        (constraint("json_schema", '{"const": "€"}'), ['"€"'], ['"e"', "€"]),
        (
            constraint("json_schema", '{"type": "integer", "minimum": -3, "maximum": 12}'),
            ["-3", "12"],
            ["13", "-4", "1.5"],
        ),
        (constraint("grammar", 'root ::= ("x" "y")+'), ["xy", "xyxy"], ["x", "xyx", ""]),
        (constraint("grammar", "start: A\nA: /[0-9]+/"), ["1", "123"], ["", "a"]),
    ],
)
def test_a_language_has_its_words_and_no_others(compiler, language, words, others):
    """Each kind of constraint permits whole words token by token, and an end only where a word is complete."""
    assert [accepts(compiler, language, word) for word in words] == [True] * len(words)
    assert [accepts(compiler, language, other) for other in others] == [False] * len(others)


FUNCTION = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
OLD_TAG = {
    "structures": [
        {"begin": "<f=one>", "schema": FUNCTION, "end": "</f>"},
        {"begin": "<f=two>", "schema": {"type": "null"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def tag(document):
    return constraint("structural_tag", json.dumps(document))


def test_a_structural_tag_leaves_text_free_until_a_trigger(compiler):
    """Any text may stand around the tags; after a trigger one of the tags must follow to its end."""
    words = ["", "hello < world", 'x<f=one>{"a":1}</f> and <f=two>null</f>.']
    others = ["<f=three>", '<f=one>{"b":1}</f>', "<f=two>null", "<f=one></f>"]
    assert [accepts(compiler, tag(OLD_TAG), word) for word in words] == [True] * 3
    assert [accepts(compiler, tag(OLD_TAG), other) for other in others] == [False] * 4


def test_a_structural_tag_as_a_tree(compiler):
    """Sequences, alternatives, separated and triggered tags compose."""
    call = {
        "type": "tag",
        "begin": "[",
        "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
        "end": "]",
    }
    separated = {"type": "tags_with_separator", "tags": [call], "separator": ";", "at_least_one": True}
    either = {"type": "or", "elements": [separated, {"type": "regex", "pattern": "[0-9]/+"}]}
    tree = {"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "go:"}, either]}}
    words = ["go:[true]", "go:[true];[false]", "go:7//"]
    others = ["go:", "[true]", "go:[true];", "go:[true]7/"]
    assert [accepts(compiler, tag(tree), word) for word in words] == [True] * 3
    assert [accepts(compiler, tag(tree), other) for other in others] == [False] * 4
    once = {**OLD_TAG["structures"][1], "content": {"type": "any_text"}}
    first = {
        "type": "triggered_tags",
        "tags": [once],
        "triggers": ["<f="],
        "at_least_one": True,
        "stop_after_first": True,
    }
    assert not accepts(compiler, tag({"format": first}), "no call")


def test_special_tokens_in_tags_are_the_tokens_themselves(compiler):
    """A tag that begins with a special token's text wants that token: its characters are only text."""
    structure = {"begin": "<call>", "schema": {"type": "null"}, "end": "<stop>"}
    masker = masker_of(compiler, tag({"structures": [structure], "triggers": ["<call>"]}))
    assert CALL in permitted(masker)
    assert permitted(masker, [CALL]) == {ord("n")}
    assert permitted(masker, [CALL, *ids("null")]) == {STOP}
    assert accepts(compiler, tag({"structures": [structure], "triggers": ["<call>"]}), "<call>x")


def test_stop_ids_follow_the_constraint(compiler):
    """Ending ids, a character among them, are permitted exactly where the text is complete."""
    masker = masker_of(compiler, constraint("regex", "a[ab]"), ending=(EOS, STOP, ord("b")))
    assert permitted(masker) == {ord("a"), TOKENS.index(b"ab")}
    assert permitted(masker, ids("a")) == {ord("a")}
    assert permitted(masker, ids("aa")) == {EOS, STOP, ord("b")}


def test_padding_ids_are_never_permitted(compiler):
    """Ids beyond the tokenizer's, and ids without bytes, are in no mask of a constraint."""
    masker = masker_of(compiler, constraint("regex", "(.|\n)*"))
    assert max(permitted(masker)) == EOS or max(permitted(masker)) < len(TOKENS)


def test_output_that_does_not_match_is_refused(compiler):
    """Tokens that the language has no place for raise, naming the constraint's field."""
    with pytest.raises(InvalidRequest) as caught:
        masker_of(compiler, constraint("regex", "a+")).consume(ids("ab"), 2)
    assert caught.value.field == "constraint.regex"


# Each of its thousands of nested rules may end anywhere: compiling takes minutes.
SLOW = "start: A0\n" + "\n".join(f'A{i}: A{i + 1} "b"' for i in range(18_000)) + '\nA18000: "a"'


async def test_fault_40_a_slow_compilation_fails_alone():
    """What compiles longer than the limit is refused and its process ended; others compile meanwhile and after."""
    own = make_compiler(timeout_s=1.0)
    slow, quick = constraint("grammar", SLOW), constraint("regex", "quick")
    refused, compiled = await asyncio.gather(own.compile(slow), own.compile(quick), return_exceptions=True)
    assert isinstance(refused, InvalidRequest)
    assert (refused.field, refused.limit) == ("constraint.grammar", "compiled within 1 s")
    assert compiled is own.find(quick)
    assert await own.compile(constraint("regex", "after")) is own.find(constraint("regex", "after"))
    assert own.stats.num_refused == 1
    await own.close()


async def test_fault_40_a_constraint_that_kills_its_process_is_refused():
    """A text that takes the compiler down is that request's error; the next one gets a new process."""
    own = make_compiler()
    await own.compile(constraint("regex", "a"))
    [checker] = own._checkers._idle
    checker._process.kill()
    with pytest.raises(InvalidRequest, match="beyond what the compiler can take"):
        await own.compile(constraint("regex", "b"))
    assert await own.compile(constraint("regex", "c")) is own.find(constraint("regex", "c"))
    await own.close()


async def test_refusals_come_back_from_the_process():
    """What does not compile is refused with the compiler's reason, and the process is kept for the next."""
    own = make_compiler(num_processes=1)
    with pytest.raises(InvalidRequest, match="unclosed group") as caught:
        await own.compile(constraint("regex", "(a"))
    assert caught.value.field == "constraint.regex"
    [checker] = own._checkers._idle
    await own.compile(constraint("regex", "a"))
    assert own._checkers._idle == [checker]
    await own.close()


def test_deep_texts_do_not_overflow_the_stack(compiler):
    """Thousands of rules or references in a chain compile or are refused on the thread made for them."""
    chain = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(15_000)) + '\nr15000: "a"'
    references = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)} | {"d3000": {"type": "null"}}
    schema = json.dumps({"$ref": "#/$defs/d0", "$defs": references})
    pool = deep_thread()
    for each in (constraint("grammar", chain), constraint("json_schema", schema)):
        assert pool.submit(compiler.compile_now, each).result(60) is compiler.find(each)
    pool.shutdown()


async def test_compiled_constraints_are_remembered_up_to_a_number():
    """An equal constraint is not compiled again; the least lately used is forgotten."""
    own = make_compiler(cache_size=2)
    first = own.compile_now(constraint("regex", "a"))
    own.compile_now(constraint("regex", "b"))
    assert own.find(constraint("regex", "a")) is first
    own.compile_now(constraint("regex", "c"))
    assert own.find(constraint("regex", "a")) is first
    assert own.find(constraint("regex", "b")) is None
    assert (own.stats.num_compiled, own.stats.num_cache_hits) == (3, 2)
    await own.close()


def test_a_span_with_start_tokens_is_an_option_before_the_constraint(compiler):
    """The output may open the span with its first token, or be constrained at once; opened, the marker is completed."""
    span = ReasoningSpan(end_token_ids=(5, 6), start_token_ids=(3, 4))
    masker = masker_of(compiler, constraint("regex", "x"), span)
    assert permitted(masker) == {ord("x"), 3}
    assert permitted(masker, [3]) == {4}
    inside = permitted(masker, [3, 4])
    assert EOS not in inside
    assert len(inside) == VOCAB_SIZE - 1
    assert permitted(masker, [3, 4, 9, 5, 6]) == {ord("x")}
    skipped = masker_of(compiler, constraint("regex", "x"), span)
    assert permitted(skipped, ids("x")) == {EOS}


def test_a_span_alone_bounds_only_its_budget(compiler):
    """Without a constraint everything may come, the end too, but for the forced closing tokens; then it is done."""
    masker = masker_of(compiler, None, ReasoningSpan((5, 6), starts_open=True, max_tokens=2))
    assert len(permitted(masker)) == VOCAB_SIZE
    assert permitted(masker, [9, 5]) == {6}
    assert not masker.is_done
    masker.consume([9, 5, 6], 3)
    assert masker.is_done


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), max_size=20),
    end=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    budget=st.integers(0, 6),
)
def test_a_budget_always_closes_the_span(tokens, end, budget):
    """Whatever the model samples, following the forced tokens closes the span within budget plus the end marker."""
    tracker = ReasoningTracker(
        ReasoningSpan(tuple(end), starts_open=True, max_tokens=budget), must_start=True
    )
    sampled = iter(tokens + [9] * 40)
    seen = []
    while tracker.phase is not Phase.AFTER:
        forced = tracker.forced_token()
        seen.append(next(sampled) if forced is None else forced)
        assert tracker.advance(seen[-1])
        assert len(seen) <= budget + len(end)
    assert seen[-len(end) :] == end


class FakeMasker:
    """Permits the token whose id is the number of output tokens; may fail or be slow."""

    is_done = False

    def __init__(self, error=None):
        self.error = error
        self.num_consumed = 0

    def consume(self, output_token_ids, num_tokens):
        self.num_consumed = num_tokens
        if self.error is not None:
            raise self.error

    def fill(self, row):
        row[0] = 1 << self.num_consumed


def sequence(num_outputs, masker, status=SequenceStatus.HELD):
    sampling = SamplingParams(constraint=constraint("regex", "a"))
    made = Sequence(Request("gateway", 1, [1], sampling), 0, [0] * num_outputs, 100)
    made.masker, made.status = masker, status
    return made


async def until(delivered, count):
    async with asyncio.timeout(5):
        while len(delivered) < count:
            await asyncio.sleep(0.001)


def rows_of(masks):
    return np.frombuffer(masks.words, dtype=np.uint32).tolist()


async def test_masks_wait_for_the_step_before_and_keep_its_order():
    """A step's masks are made when the result before it was applied, in the order of steps."""
    delivered = []
    pipeline = MaskPipeline(32, delivered.append)
    first, second = sequence(1, FakeMasker()), sequence(2, FakeMasker())
    pipeline.planned(StepPlan(7, [], [], masked_slots=[3], masked=[first]), 6)
    pipeline.planned(StepPlan(8, [], [], masked_slots=[4], masked=[second]), 6)
    await until(delivered, 1)
    await asyncio.sleep(0.02)
    assert [(masks.step_id, masks.slots) for masks in delivered] == [(7, [3])]
    second.output_token_ids.append(0)
    pipeline.applied(7)
    await until(delivered, 2)
    assert rows_of(delivered[0]) == [1 << 1]
    assert rows_of(delivered[1]) == [1 << 3]
    pipeline.close()


async def test_ended_and_failed_sequences_get_masks_that_permit_everything():
    """A step never waits for a sequence that has ended or cannot go on; who failed is told, with the reason."""
    delivered = []
    pipeline = MaskPipeline(32, delivered.append)
    error = InvalidRequest("constraint.regex", "x", "y")
    ended = sequence(1, FakeMasker(), SequenceStatus.FINISHED)
    failed, fine = sequence(1, FakeMasker(error)), sequence(1, FakeMasker())
    broken = sequence(1, FakeMasker(ZeroDivisionError()))
    plan = StepPlan(1, [], [], masked_slots=[0, 1, 2, 3], masked=[ended, failed, fine, broken])
    pipeline.planned(plan, 0)
    await until(delivered, 1)
    assert rows_of(delivered[0]) == [0xFFFFFFFF, 0xFFFFFFFF, 2, 0xFFFFFFFF]
    assert [who for who, _ in delivered[0].failures] == [failed, broken]
    assert delivered[0].failures[0][1] is error
    pipeline.close()


async def test_a_mask_that_takes_too_long_fails_its_sequence():
    """The limit of time a token is the sequence's own end, naming its constraint."""
    delivered = []
    pipeline = MaskPipeline(32, delivered.append, max_row_s=-1.0)
    pipeline.planned(StepPlan(1, [], [], masked_slots=[0], masked=[sequence(1, FakeMasker())]), 0)
    await until(delivered, 1)
    [(_, error)] = delivered[0].failures
    assert error.field == "constraint.regex"
    pipeline.close()


async def test_masks_of_a_lost_worker_are_dropped():
    """After a reset nothing of the earlier stream is delivered, and the next stream's steps are."""
    delivered = []
    pipeline = MaskPipeline(32, delivered.append)
    pipeline.planned(StepPlan(1, [], [], masked_slots=[0], masked=[sequence(1, FakeMasker())]), 0)
    pipeline.reset()
    pipeline.planned(StepPlan(5, [], [], masked_slots=[1], masked=[sequence(1, FakeMasker())]), 4)
    await until(delivered, 1)
    await asyncio.sleep(0.01)
    assert [masks.step_id for masks in delivered] == [5]
    pipeline.close()


def test_refusals_are_short_and_say_why(compiler):
    """A refusal has the compiler's reason, not its state, and not the client's megabytes."""
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile_now(constraint("regex", "([" + "a" * 5000))
    assert len(str(caught.value)) <= 600
    assert re.search("unclosed", str(caught.value))
