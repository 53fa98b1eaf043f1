"""The pure parts: sampling, routing, admission, sequences, outlet and pacing."""

from __future__ import annotations

import asyncio
import math

import pytest

from quire_gateway.admission import Admission
from quire_gateway.outlet import Outlet
from quire_gateway.pacing import Pacer
from quire_gateway.requests import GenerationRequest, TextPrompt, validate_request
from quire_gateway.routing import Replica, affinity_key, choose
from quire_gateway.sampling import Sampling, resolve, validate
from quire_gateway.sequences import FinishReason, OutputSpec, SequenceState, TokenLogprob, WakeOn
from quire_servicekit.errors import InvalidRequest, QueueFull, Unavailable

# ---- Sampling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", math.nan), ("top_p", 0.0), ("top_p", 1.1),
        ("min_p", 1.5), ("presence_penalty", 3.0), ("frequency_penalty", -3.0), ("repetition_penalty", 0.0),
        ("num_logprobs", 21), ("seed", 2**64), ("top_k", 101), ("top_k", -1), ("max_tokens", 0), ("min_tokens", -1),
        ("logit_bias", {100: 1.0}), ("logit_bias", {1: 101.0}), ("logit_bias", dict.fromkeys(range(301), 0.0)),
        ("stop_token_ids", (100,)), ("stop_token_ids", tuple(range(65))), ("allowed_token_ids", (-1,)),
        ("num_logprobs", -1), ("num_prompt_logprobs", 21), ("num_prompt_logprobs", -2), ("logprob_token_ids", (100,)),
        ("logprob_token_ids", (1,) * 129), ("bad_token_sequences", ((),)), ("bad_token_sequences", ((1, 100),)),
        ("bad_token_sequences", ((1,),) * 129), ("bad_token_sequences", ((1,) * 65,)),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    """Each limit of the contract refuses what is beyond it, naming the field."""
    with pytest.raises(InvalidRequest) as refused:
        validate(Sampling(**{field: value}), vocab_size=100)
    assert refused.value.field == field


def test_limits_themselves_are_allowed() -> None:
    """The ends of every range are values like any other."""
    validate(
        Sampling(
            temperature=0.0, top_p=1.0, min_p=0.0, presence_penalty=-2.0, frequency_penalty=2.0,
            repetition_penalty=10.0, num_logprobs=0, seed=0, top_k=100, max_tokens=1, min_tokens=1,
            logit_bias={0: -100.0, 99: 100.0}, stop_token_ids=(0, 99),
        ),
        vocab_size=100,
    )  # fmt: skip


def test_logprob_token_ids_exclude_num_logprobs() -> None:
    """Both at once would ask for two different lists."""
    with pytest.raises(InvalidRequest) as refused:
        validate(Sampling(logprob_token_ids=(1,), num_logprobs=0), vocab_size=100)
    assert refused.value.field == "logprob_token_ids"


def test_the_limit_of_logprobs_is_the_operators() -> None:
    """A raised limit allows more, -1 allows the whole vocabulary, and never more than there is."""
    validate(Sampling(num_logprobs=50), 100, max_logprobs=50)
    validate(Sampling(num_logprobs=-1, num_prompt_logprobs=100), 100, max_logprobs=-1)
    validate(Sampling(num_logprobs=-1), 100, max_logprobs=100)
    for limit in (50, -1):
        with pytest.raises(InvalidRequest):
            validate(Sampling(num_logprobs=101), 100, max_logprobs=limit)
    resolved = resolve(Sampling(num_logprobs=-1), seed=0, max_tokens=1, vocab_size=100)
    assert (resolved.num_logprobs, resolved.num_prompt_logprobs) == (100, None)


def test_min_tokens_cannot_exceed_max_tokens() -> None:
    """Both limits together must be possible, and the message has both numbers."""
    with pytest.raises(InvalidRequest, match=r"max_tokens \(3\), got 4"):
        validate(Sampling(min_tokens=4, max_tokens=3), vocab_size=100)


def test_a_dialect_gives_its_own_names() -> None:
    """The field in the error is the one the client wrote."""
    with pytest.raises(InvalidRequest) as refused:
        validate(Sampling(num_logprobs=21), 100, {"num_logprobs": "top_logprobs"})
    assert refused.value.field == "top_logprobs"


def test_zero_is_a_value_and_unset_takes_the_models_default() -> None:
    """temperature 0 stays greedy where the model's default is 0.6; what is unset takes the default."""
    defaults = Sampling(temperature=0.6, top_p=0.9, top_k=20, max_tokens=5, seed=1)
    resolved = resolve(Sampling(temperature=0.0, top_k=0), defaults, seed=7, max_tokens=50)
    assert (resolved.temperature, resolved.top_p, resolved.top_k) == (0.0, 0.9, 0)
    # Limits and seeds are the request's own, never the model's.
    assert (resolved.seed, resolved.max_tokens) == (7, 50)
    assert resolve(Sampling(seed=3, max_tokens=4), defaults, seed=7, max_tokens=50).seed == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"n": 0}, "n"), ({"n": 129}, "n"), ({"stop": ("a",) * 17}, "stop"), ({"stop": ("",)}, "stop"),
        ({"stop": ("a" * 257,)}, "stop"), ({"stop": ("a",), "detokenize": False}, "stop"),
        ({"cache_salt": "s" * 1025}, "cache_salt"), ({"priority": 2**31}, "priority"),
    ],
)  # fmt: skip
def test_a_request_beyond_its_limits_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    """Limits outside sampling, among them stop texts where nobody would look for them."""
    with pytest.raises(InvalidRequest) as refused:
        validate_request(GenerationRequest(prompt=TextPrompt("x"), **changes))
    assert refused.value.field == field


# ---- Routing -------------------------------------------------------------------------------------------------------


def _replica(address: str, load: int = 0, pressure: float = 0.0) -> Replica:
    return Replica(address, num_reported=load, num_dispatched=0, block_pressure=pressure)


def test_equal_prefixes_meet_on_one_engine_and_different_ones_spread() -> None:
    """Affinity sends equal first blocks to one engine, and uses all engines over many prefixes."""
    replicas = [_replica(f"engine{number}") for number in range(3)]
    chosen = set()
    for prefix in range(40):
        prompts = [[prefix] * 64 + [tail] for tail in range(3)]
        picks = {choose(replicas, affinity_key(prompt, 16, "", 4)) for prompt in prompts}
        assert len(picks) == 1
        chosen |= picks
    assert len(chosen) == 3


def test_load_and_pressure_overrule_affinity() -> None:
    """An engine that is far busier, or whose blocks run out, loses its prefixes."""
    key = affinity_key(list(range(64)), 16, "", 4)
    preferred = choose([_replica("a"), _replica("b")], key)
    other = "b" if preferred == "a" else "a"
    assert choose([_replica(preferred, 8), _replica(other)], key) == preferred
    assert choose([_replica(preferred, 9), _replica(other)], key) == other
    assert choose([_replica(preferred, 0, 0.95), _replica(other)], key) == other


def test_own_dispatches_count_before_the_engine_reports_them() -> None:
    """A burst within one step spreads, since load is counted when a request is sent."""
    busy = Replica("a", num_reported=0, num_dispatched=5, block_pressure=0.0)
    assert choose([busy, _replica("b", 4)], None) == "b"


def test_excluded_engines_are_never_chosen() -> None:
    """Not even if no other is left."""
    assert choose([_replica("a"), _replica("b", 50)], None, exclude={"a"}) == "b"
    assert choose([_replica("a")], None, exclude={"a"}) is None


def test_affinity_needs_a_full_block_and_the_same_salt() -> None:
    """Prompts that cannot share a block have no affinity; salts separate them."""
    assert affinity_key([1] * 15, 16, "", 4) is None
    assert affinity_key([1] * 16, 16, "", 4) != affinity_key([1] * 16, 16, "salt", 4)
    assert affinity_key([1] * 64, 16, "", 4) == affinity_key([1] * 64 + [2] * 64, 16, "", 4)


# ---- Admission -----------------------------------------------------------------------------------------------------


async def test_permits_come_back_on_every_path() -> None:
    """Also when the body raises, or is refused half-way."""
    admission = Admission(max_in_flight=2, max_in_flight_per_tenant=1)
    with pytest.raises(RuntimeError), admission.permit("a", 1):
        raise RuntimeError
    with admission.permit("a", 1):
        with pytest.raises(QueueFull, match="tenant a"), admission.permit("a", 1):
            raise AssertionError("not reached")
        with admission.permit("b", 1), pytest.raises(QueueFull, match="at most 2"), admission.permit("c", 1):
            raise AssertionError("not reached")
        assert admission.num_in_flight == 1
    assert admission.num_in_flight == 0
    await asyncio.wait_for(admission.wait_idle(), 1)


async def test_draining_refuses_new_work_and_a_large_call_gets_in_alone() -> None:
    """Draining is Unavailable; a call above the whole limit is admitted when nothing else runs."""
    admission = Admission(max_in_flight=2)
    with admission.permit("", 5):
        assert admission.num_in_flight == 5
    admission.is_draining = True
    with pytest.raises(Unavailable), admission.permit("", 1):
        raise AssertionError("not reached")


# ---- Sequences, outlet, pacing -------------------------------------------------------------------------------------


def _sequence(outlet: Outlet, **spec: object) -> tuple[SequenceState, list[SequenceState]]:
    ended: list[SequenceState] = []
    vocabulary = [bytes([value]) for value in range(128)]
    return SequenceState(0, 0, outlet, OutputSpec(**spec), on_end=ended.append, vocabulary=vocabulary), ended


async def test_a_slow_reader_gets_everything_in_one_update() -> None:
    """Deltas that nobody took are merged: one update with all text, tokens and the newest clock."""
    outlet = Outlet(Pacer())
    sequence, _ = _sequence(outlet)
    for number in range(50):
        sequence.deliver("x", [number], [TokenLogprob(number, -1.0, 1, ())], 100 + number, None)
    touched = await asyncio.wait_for(outlet.take(), 1)
    assert touched == [sequence]
    update = sequence.take()
    assert (update.text, update.token_ids, update.sampled_at_unix_us) == ("x" * 50, list(range(50)), 149)
    assert len(update.logprobs) == 50
    assert sequence.take().text == ""


async def test_a_reader_wakes_for_what_it_asked_for() -> None:
    """TEXT waits for text, TOKENS for tokens, END for the end."""
    for wake_on, woken_by_tokens, woken_by_text in [
        (WakeOn.TEXT, False, True), (WakeOn.TOKENS, True, True), (WakeOn.END, False, False),
    ]:  # fmt: skip
        outlet = Outlet(Pacer())
        sequence, _ = _sequence(outlet, wake_on=wake_on)
        sequence.deliver("", [1], [], 0, None)
        assert sequence.is_dirty is woken_by_tokens
        sequence.deliver("a", [2], [], 0, None)
        assert sequence.is_dirty is woken_by_text
        sequence.deliver("", [3], [], 0, FinishReason.LENGTH)
        assert sequence.is_dirty


async def test_held_back_text_wakes_nobody_and_is_flushed_at_the_end() -> None:
    """No empty news while text may be a stop's beginning; at the end it was none."""
    outlet = Outlet(Pacer())
    sequence, ended = _sequence(outlet, stop=("END",))
    sequence.deliver("E", [69], [], 0, None)
    assert not sequence.is_dirty
    sequence.deliver("N", [78], [], 0, FinishReason.LENGTH)
    assert sequence.take().text == "EN"
    assert sequence.finish is not None and sequence.finish.reason is FinishReason.LENGTH
    assert ended == [sequence]


async def test_a_stop_text_cuts_text_tokens_and_logprobs() -> None:
    """Tokens behind the stop text in the same batch are neither shown nor counted."""
    outlet = Outlet(Pacer())
    sequence, ended = _sequence(outlet, stop=("ST",))
    text = "abSTcd"
    logprobs = [TokenLogprob(ord(c), -1.0, 1, ()) for c in text]
    sequence.deliver(text, [ord(c) for c in text], logprobs, 0, None)
    update = sequence.take()
    assert update.text == "ab"
    assert bytes(update.token_ids) == b"abST"
    assert len(update.logprobs) == sequence.num_output_tokens == 4
    sequence.deliver("late", [1], [], 0, FinishReason.LENGTH)
    assert sequence.finish is not None and sequence.finish.stop_text == "ST"
    assert ended == [sequence]
    assert sequence.take().text == ""


async def test_only_the_requests_own_stop_ids_are_reported() -> None:
    """A stop id of the request is what matched; the model's end of sequence is not."""
    for token, expected in [(7, 7), (8, None)]:
        sequence, _ = _sequence(Outlet(Pacer()), stop_token_ids=frozenset({7}))
        sequence.deliver("", [1, token], [], 0, FinishReason.STOP)
        assert sequence.finish is not None and sequence.finish.stop_token_id == expected


async def test_an_error_comes_after_the_output_that_is_there() -> None:
    """take returns what was delivered, then raises, and goes on raising; the first error counts."""
    outlet = Outlet(Pacer())
    sequence, _ = _sequence(outlet)
    sequence.deliver("a", [1], [], 0, None)
    outlet.fail(QueueFull(2))
    outlet.fail(Unavailable())
    assert await outlet.take() == [sequence]
    for _ in range(2):
        with pytest.raises(QueueFull):
            await asyncio.wait_for(outlet.take(), 1)


async def test_acceptance_waits_for_every_request_or_the_grace() -> None:
    """All of a call's requests must be accepted; a refusal is raised; time ends the wait."""
    outlet = Outlet(Pacer())
    outlet.expect()
    outlet.expect()
    await outlet.wait_accepted(0.01)
    waiting = asyncio.create_task(outlet.wait_accepted(10))
    await asyncio.sleep(0)
    outlet.accept()
    await asyncio.sleep(0)
    assert not waiting.done()
    outlet.accept()
    await asyncio.wait_for(waiting, 1)
    refused = Outlet(Pacer())
    refused.expect()
    asyncio.get_running_loop().call_soon(refused.fail, QueueFull())
    with pytest.raises(QueueFull):
        await refused.wait_accepted(10)


async def test_the_pacer_wakes_once_per_burst_and_lets_bursts_grow() -> None:
    """What is added in one turn wakes together; after a long burst the next one waits, up to the limit."""
    woken: list[str] = []

    class Item:
        def __init__(self, name: str) -> None:
            self.name = name

        def wake(self) -> None:
            woken.append(self.name)

    pacer = Pacer(duty=1e9, max_wait_s=0.01)
    pacer.add(Item("a"))
    pacer.add(Item("b"))
    assert woken == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == ["a", "b"]
    pacer.add(Item("c"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == ["a", "b"]
    await asyncio.sleep(0.05)
    assert woken == ["a", "b", "c"]


async def test_news_that_comes_while_a_burst_is_written_waits_for_the_bursts_cost_alone() -> None:
    """Between a burst and its end the cost is not known yet: that must not cost the next burst the longest wait."""
    woken: list[str] = []
    pacer = Pacer(duty=0.0, max_wait_s=30.0)

    class Late:
        def wake(self) -> None:
            woken.append("late")

    class First:
        def wake(self) -> None:
            woken.append("first")
            asyncio.get_running_loop().call_soon(pacer.add, Late())
            pacer.add(Late())

    pacer.add(First())
    async with asyncio.timeout(5):
        while woken != ["first", "late", "late"]:
            await asyncio.sleep(0)
