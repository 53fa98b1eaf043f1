"""Profiles that a worker records."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import pytest
import torch

from quire_servicekit.errors import FailedPrecondition
from quire_worker.profile import TorchProfiler


def test_a_profile_holds_what_other_threads_ran(tmp_path: Path) -> None:
    """The trace names an operation that ran on a thread like the engine's."""
    profiler = TorchProfiler(tmp_path / "profiles")
    profiler.start()
    thread = threading.Thread(target=lambda: torch.mm(torch.ones(8, 8), torch.ones(8, 8)))
    thread.start()
    thread.join()
    path = profiler.stop()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)


def test_a_second_start_and_a_stop_without_one_are_refused(tmp_path: Path) -> None:
    """One recording at a time."""
    profiler = TorchProfiler(tmp_path)
    with pytest.raises(FailedPrecondition, match="no profile"):
        profiler.stop()
    profiler.start()
    with pytest.raises(FailedPrecondition, match="already"):
        profiler.start()
    profiler.stop()


def test_without_a_folder_recording_is_refused_by_the_setting_s_name() -> None:
    """The message says which setting to give."""
    with pytest.raises(FailedPrecondition, match="profile_dir"):
        TorchProfiler(None).start()
