"""The driver's timers and the line about the load."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from quire_scheduler.load_log import LoadLog
from quire_scheduler.stats import Load, SchedulerStats
from quire_scheduler.timers import ForwardProgress, Timer


async def fired(event, timeout_s=2.0):
    await asyncio.wait_for(event.wait(), timeout_s)
    event.clear()


async def test_timer_fires_once_not_before_its_time():
    """Set twice, it fires for the later setting alone; set to nothing, not at all."""
    event, now_s = asyncio.Event(), time.monotonic()
    timer = Timer(event.set)
    timer.set(now_s + 60)
    timer.set(now_s + 0.02)
    await fired(event)
    assert time.monotonic() >= now_s + 0.02
    timer.set(time.monotonic() + 0.01)
    timer.set(None)
    await asyncio.sleep(0.03)
    assert not event.is_set()
    timer.set(time.monotonic() + 60)
    timer.cancel()


async def test_progress_stalls_and_recovers():
    """Without a step for the limit it is stalled, told once; a step ends that at once."""
    changed = asyncio.Event()
    progress = ForwardProgress(0.03, lambda: True, changed.set)
    progress.watch()
    await fired(changed)
    assert progress.is_stalled
    progress.note()
    assert not progress.is_stalled
    assert changed.is_set()
    progress.close()


async def test_steps_keep_it_from_stalling():
    """While steps end, however late the check comes, nothing is told."""
    changed = asyncio.Event()
    progress = ForwardProgress(0.5, lambda: True, changed.set)
    progress.watch()
    for _ in range(60):
        await asyncio.sleep(0.01)
        progress.note()
    assert not changed.is_set()
    progress.close()


async def test_idle_engine_is_not_watched():
    """When no steps are expected the watch ends by itself, without a word."""
    changed = asyncio.Event()
    progress = ForwardProgress(0.01, lambda: False, changed.set)
    progress.watch()
    await asyncio.sleep(0.05)
    assert not changed.is_set()
    assert progress._timer._handle is None
    progress.close()


LOAD = Load(1, 2, 3, 10, 6, 4, 5, 0.0)


def test_line_about_the_load_tells_rates_since_the_last():
    """A line is due when the interval has passed while steps ran, with rates over that interval."""
    log, stats = LoadLog(2.0), SchedulerStats()
    assert not log.is_due(100.0, stats)
    stats.num_generated_tokens, stats.num_steps, stats.num_prompt_tokens = 40, 20, 8
    assert not log.is_due(101.0, stats)
    assert log.is_due(102.0, stats)
    with capture_logs() as lines:
        log.write(102.0, LOAD, stats)
    (line,) = lines
    assert (line["running"], line["waiting"], line["blocks_used"], line["blocks_total"]) == (2, 1, 4, 10)
    assert line["output_tokens_per_s"] == pytest.approx(20)
    assert line["steps_per_s"] == pytest.approx(10)
    assert line["prompt_tokens_per_s"] == pytest.approx(4)
    assert not log.is_due(103.0, stats)


def test_idle_time_is_not_averaged_over():
    """After a pause the interval begins anew with the first step."""
    log, stats = LoadLog(2.0), SchedulerStats()
    log.is_due(100.0, stats)
    assert not log.is_due(200.0, stats)
    assert not log.is_due(201.0, stats)
    assert log.is_due(202.0, stats)
