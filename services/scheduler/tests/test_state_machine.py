"""Random lives of the whole domain against a worker that checks block contents, and outputs computed without it."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire_scheduler.errors import InvalidRequest, QueueFull
from quire_scheduler.request import SequenceStatus

from .harness import Harness
from .reference import EOS, VOCABULARY

# Few prompts with common beginnings, so that prefixes are shared all the time.
PROMPTS = [[(seed * 7 + i * i) % VOCABULARY for i in range(40)] for seed in range(3)]


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, steps, aborts, expires, loses workers, in any order."""

    @initialize(
        num_blocks=st.sampled_from([9, 14, 24, 40]),
        max_num_seqs=st.sampled_from([1, 3, 6]),
        budget=st.sampled_from([6, 9, 64]),
        threshold=st.sampled_from([0, 5]),
        depth=st.sampled_from([1, 2, 3]),
        caching=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority", "fair"]),
        watermark=st.sampled_from([0.0, 0.1]),
    )
    def start(self, num_blocks, max_num_seqs, budget, threshold, depth, caching, policy, watermark):
        self.harness = Harness(
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
            max_steps_in_flight=depth,
            enable_prefix_caching=caching,
            policy=policy,
            watermark=watermark,
            max_waiting_sequences=12,
            max_waiting_tokens=200,
        )
        self.num_accepted = 0

    @rule(
        prompt=st.sampled_from(range(len(PROMPTS))),
        length=st.integers(1, 30),
        max_tokens=st.one_of(st.none(), st.integers(1, 20)),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        priority=st.integers(0, 2),
        tenant=st.sampled_from(["a", "b"]),
        salt=st.sampled_from(["", "", "pepper"]),
        adapter=st.sampled_from(["", "", "lora@1", "lora@2"]),
        owner=st.sampled_from(["gateway-1", "gateway-1", "gateway-2"]),
        timeout_s=st.one_of(st.none(), st.floats(0.01, 1.0)),
        logprobs=st.sampled_from([None, None, 1]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        skip_cache=st.sampled_from([False, False, True]),
        min_tokens=st.sampled_from([0, 0, 4]),
        num_resumed=st.sampled_from([None, None, None, 0, 2, 5]),
    )
    def submit(self, prompt, length, n, timeout_s, logprobs, prompt_logprobs, num_resumed, **fields):
        salt, skip_cache = fields.pop("salt"), fields.pop("skip_cache")
        resumed = {} if num_resumed is None else {n - 1: [3] * num_resumed}
        before = self.harness.core.load(0.0)
        try:
            self.harness.submit(
                PROMPTS[prompt][:length],
                n=n,
                cache_salt=salt,
                skip_reading_prefix_cache=skip_cache,
                deadline_s=None if timeout_s is None else self.harness.now_s + timeout_s,
                num_logprobs=logprobs,
                num_prompt_logprobs=prompt_logprobs,
                eos_token_ids=(EOS,),
                seed=prompt,
                resumed=resumed,
                **fields,
            )
            self.num_accepted += 1
        except QueueFull as full:
            assert before.num_waiting > 0
            assert full.retry_delay_s > 0
            assert self.harness.core.load(0.0) == before
        except InvalidRequest:
            assert length + (num_resumed or 0) >= self.harness.core.max_total_tokens

    @rule()
    def plan(self):
        self.harness.plan()

    @rule()
    def apply(self):
        if self.harness.in_flight:
            self.harness.apply()

    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            self.harness.step()

    @rule(data=st.data())
    def abort(self, data):
        if self.harness.requests:
            request = data.draw(st.sampled_from(self.harness.requests))
            was_known = request.num_unfinished > 0
            assert self.harness.abort(request) == was_known
            assert not self.harness.abort(request)

    @rule(data=st.data())
    def abort_sequence(self, data):
        if self.harness.requests:
            request = data.draw(st.sampled_from(self.harness.requests))
            index = data.draw(st.integers(0, request.n))
            known = [s for s in request.sequences if s.index == index]
            was_known = any(s.status is not SequenceStatus.FINISHED for s in known)
            if was_known or not known:
                assert self.harness.abort_sequence(request, index) == was_known
                assert not self.harness.abort_sequence(request, index)

    @rule(owner=st.sampled_from(["gateway-1", "gateway-2", "nobody"]))
    def abort_owner(self, owner):
        alive = [r for r in self.harness.requests if r.owner == owner and r.num_unfinished]
        self.harness.aborted.update((r.owner, r.handle) for r in alive)
        assert self.harness.core.abort_owner(owner, self.harness.now_s) == len(alive)

    @rule(elapsed_s=st.floats(0.0, 0.5))
    def expire(self, elapsed_s):
        self.harness.now_s += elapsed_s
        self.harness.expire()
        next_s = self.harness.core.next_deadline_s()
        assert next_s is None or next_s > self.harness.now_s

    @rule()
    def reset_prefix_cache(self):
        _, num_in_use = self.harness.core.reset_prefix_cache()
        assert self.harness.core.load(0.0).num_cached_blocks == num_in_use

    @rule(was_away=st.booleans())
    def lose_worker(self, was_away):
        self.harness.lose_worker()
        assert self.harness.plan() is None
        if was_away:
            self.harness.core.worker_lost()
        self.harness.connect()

    @invariant()
    def pool_is_sound(self):
        if hasattr(self, "harness"):
            self.harness.check()

    def teardown(self):
        if hasattr(self, "harness"):
            self.harness.run()
            self.harness.check_ended()
            assert not self.harness.rejections


SchedulerMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
TestSchedulerMachine = SchedulerMachine.TestCase


def run_workload(seed: int, lose_worker_at: int | None = None, **config: object) -> dict[object, list[int]]:
    """The outputs of a fixed set of requests under some configuration."""
    rng = random.Random(seed)
    harness = Harness(**config)
    for _ in range(10):
        prompt = rng.choice(PROMPTS)[: rng.randint(2, 30)]
        harness.submit(
            prompt,
            n=rng.choice([1, 1, 3]),
            max_tokens=rng.randint(1, 24),
            eos_token_ids=(EOS,),
            seed=rng.randint(0, 3),
            priority=rng.randint(0, 2),
        )
    for _ in range(lose_worker_at or 0):
        harness.step()
    if lose_worker_at is not None:
        harness.lose_worker()
        harness.connect()
    harness.run()
    harness.check_ended()
    return harness.outputs


VARIANTS = {
    "no prefix cache": {"enable_prefix_caching": False},
    "one step in flight": {"max_steps_in_flight": 1},
    "four steps in flight": {"max_steps_in_flight": 4},
    "chunks of at most 3": {"long_prefill_token_threshold": 3},
    "small budget": {"max_num_batched_tokens": 5},
    "much preemption": {"num_blocks": 17, "max_num_seqs": 8, "max_num_batched_tokens": 32},
    "much preemption by priority": {"num_blocks": 17, "max_num_seqs": 8, "policy": "priority"},
    "preemption amid chunks": {
        "num_blocks": 17,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 9,
        "long_prefill_token_threshold": 2,
    },
    "preemption amid chunks, shallow": {
        "num_blocks": 17,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 9,
        "long_prefill_token_threshold": 2,
        "max_steps_in_flight": 1,
    },
    "worker lost": {"lose_worker_at": 9},
    "one sequence at a time": {"max_num_seqs": 1},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_output_is_the_same_whatever_the_scheduling(name):
    """Prefix cache, chunking, preemption, pipelining, worker loss and batch size never change a token."""
    for seed in range(4):
        plain = run_workload(seed, num_blocks=400, max_num_batched_tokens=1000, max_num_seqs=100)
        assert run_workload(seed, **VARIANTS[name]) == plain
