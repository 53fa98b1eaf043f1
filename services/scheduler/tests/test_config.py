"""The domain's configuration refuses values it can't work under."""

from __future__ import annotations

import pytest

from quire_scheduler.config import SchedulerConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 63}, r"at least max_num_seqs \(64\), got 63"),
        ({"max_model_len": 1}, "max_model_len must be at least 2, got 1"),
        ({"policy": "lottery"}, "policy must be one of fcfs, priority, fair, got lottery"),
        ({"watermark": 1.0}, r"watermark must be in \[0, 1\), got 1.0"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, got -1"),
    ],
)
def test_bad_values_are_refused(fields, message):
    """The error names the field, the limit and the value."""
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**fields)
