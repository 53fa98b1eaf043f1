"""Steps of every kind that kernels are compiled differently for, run once before the worker is ready.

Triton compiles a kernel anew for numbers that are one or multiples of sixteen, for addresses that are not multiples of
sixteen, and for the plans that operations choose by size: so it is sizes on either side of these that are run here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from quire_worker.cuda.runner import DeviceRunner
from quire_worker.slots import SlotLimits
from quire_worker.step import NewSequence, SamplingParams, StepPlan

_DECODES: Final = (0, 1, 2, 16)
_PREFILLS: Final = (1, 2, 16)
_LENGTHS: Final = (7, 16, 300)
# Operations change plans at powers of two: in each interval between them a multiple of sixteen and another number.
_MANY_DECODES: Final = (3, 5, 9, 17, 32, 33, 64, 65, 128, 129, 208, 257, 496)
_PLAIN: Final = SamplingParams(temperature=1.0)
_FILTERED: Final = SamplingParams(temperature=1.0, top_p=0.9)
_ADJUSTED: Final = SamplingParams(
    temperature=1.0, frequency_penalty=0.1, logit_bias={0: 1.0}, allowed_token_ids=(0, 1), min_tokens=1,
    stop_token_ids=(0,), bad_token_sequences=((1, 0),),
)  # fmt: skip
_ADJUSTED_AND_FILTERED: Final = replace(_ADJUSTED, top_p=0.9, num_logprobs=1)


def run_all(runner: DeviceRunner, limits: SlotLimits, max_tokens: int) -> int:
    """Run them on a runner whose sequences may all share block 1; every slot is empty afterwards. How many ran."""
    running: list[int] = []
    count = 0
    for plan in _plans(limits, max_tokens):
        runner.finish(runner.launch(StepPlan(count, plan[0], plan[1], (), (), running, (), (), plan[2])))
        running = plan[0]
        count += 1
    runner.reset()
    return count


def _plans(limits: SlotLimits, max_tokens: int) -> Iterator[tuple[list[int], list[int], list[NewSequence]]]:
    """Slots, token counts and sequences of each step."""
    kinds = [
        *product(_DECODES, _PREFILLS, _LENGTHS, (_PLAIN, _FILTERED)),
        *product(_MANY_DECODES, (1,), (16,), (_PLAIN,)),
        *product((0, 1, 16), (1,), (16,), (_ADJUSTED, _ADJUSTED_AND_FILTERED)),
        # Filters of many rows are looked for by another kernel.
        *product((64,), (1,), (16,), (_FILTERED, _ADJUSTED_AND_FILTERED)),
    ]
    # Prompts that are mostly computed already go another way.
    cached = product((0, 2, 16), (1,), (32,), (_PLAIN,), (48, 2048))
    for decodes, prefills, length, sampling, computed in [*((*kind, 0) for kind in kinds), *cached]:
        rows = decodes + prefills
        if (
            rows > limits.max_num_seqs
            or length + computed >= limits.max_model_len
            or decodes + prefills * length > max_tokens
        ):
            continue
        total = length + computed
        blocks = [1] * -(-(total + 1) // limits.block_size)
        sequences = [
            NewSequence(slot, [0] * total, total, total - 1 if slot < decodes else computed, blocks, sampling)
            for slot in range(rows)
        ]
        yield list(range(rows)), [1] * decodes + [length] * prefills, sequences
