"""The probe of the machine's own slowdowns."""

from __future__ import annotations

import asyncio
import os

import pytest

from quire_bench.machine_probe import PERIOD_S, MachineProbe, slowdowns


def test_a_piece_that_took_long_marks_the_time_around_it() -> None:
    """Only what overlaps a slow piece counts as slow."""
    pieces = [(100.0 + number / 100, 0.1) for number in range(10)] + [(100.2, 2.0)]
    found = slowdowns(pieces, 1.0)
    assert len(found.stretches) == 1
    assert found.overlaps(100.199, 100.3)
    assert found.overlaps(100.0, 101.0)
    assert not found.overlaps(100.0, 100.15)
    assert not found.overlaps(100.2 + 2 * PERIOD_S, 101.0)


def test_neighbouring_slow_pieces_make_one_stretch() -> None:
    """Slow pieces of two processors at the same time are one slowdown, and its share counts once."""
    pieces = sorted([(100.0 + number / 100, 0.1) for number in range(50)] + [(100.2, 4.0), (100.202, 5.0)])
    found = slowdowns(pieces, 0.5)
    assert len(found.stretches) == 1
    begin, end = found.stretches[0]
    assert found.summary()["slow_share"] == pytest.approx((end - begin) / 0.5, abs=1e-4)


def test_no_pieces_mean_no_slowdowns() -> None:
    """A probe that said nothing marks nothing as slow."""
    assert not slowdowns([], 1.0).overlaps(0.0, 2.0**31)


async def test_the_probe_works_on_every_processor_until_it_is_stopped() -> None:
    """Its pieces come back with times."""
    probe = MachineProbe()
    await probe.start()
    await asyncio.sleep(1.0)
    found = await probe.stop()
    assert len(found.pieces_ms) >= len(os.sched_getaffinity(0))
    assert all(took_ms > 0 for took_ms in found.pieces_ms)
