"""Records what a worker's process and device do, as a trace that browsers open (Chrome's format).

One job: one recording at a time, into the folder that the settings name. It knows nothing of steps.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from quire_servicekit.errors import FailedPrecondition


class TorchProfiler:
    """Both methods block for as long as the profiler needs: call them on a thread of their own."""

    def __init__(self, folder: Path | None) -> None:
        """folder: where traces go; None: recording is refused."""
        self._folder = folder
        self._profile: profile | None = None

    def start(self) -> None:
        """Begin. FailedPrecondition: without a folder, or while it records already."""
        if self._folder is None:
            raise FailedPrecondition("profiling is off: the worker's setting profile_dir names no folder")
        if self._profile is not None:
            raise FailedPrecondition("the worker records a profile already")
        self._folder.mkdir(parents=True, exist_ok=True)
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        # The engine has a thread of its own: without all threads the trace would be empty.
        config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        recording = profile(activities=activities, experimental_config=config)
        recording.start()
        self._profile = recording

    def stop(self) -> Path:
        """End and write; the file. FailedPrecondition: nothing is being recorded."""
        if self._profile is None or self._folder is None:
            raise FailedPrecondition("the worker records no profile")
        recording, self._profile = self._profile, None
        recording.stop()
        path = self._folder / f"worker-{time.strftime('%Y%m%d-%H%M%S')}.json.gz"
        recording.export_chrome_trace(str(path))
        return path
