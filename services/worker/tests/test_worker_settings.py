"""What the worker's settings allow together."""

import pytest

from quire_worker.settings import WorkerSettings


def test_processed_logprobs_are_for_the_cpu():
    """The mode that another device does not serve is refused at the start, not ignored at a request."""
    assert WorkerSettings(logprobs_mode="processed").logprobs_mode == "processed"
    assert WorkerSettings(device="cuda").logprobs_mode == "raw"
    with pytest.raises(ValueError, match="CPU only"):
        WorkerSettings(logprobs_mode="processed", device="cuda")
