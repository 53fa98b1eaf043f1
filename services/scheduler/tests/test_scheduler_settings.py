"""The scheduler's settings as they reach its domain and its worker."""

import pytest

from quire_scheduler.settings import SchedulerSettings
from quire_servicekit.settings import SettingsError


def test_a_step_must_hold_the_largest_batch():
    """A token budget below the batch size is refused at the start, by name; one alone is the worker's to judge."""
    with pytest.raises(SettingsError, match="max_num_batched_tokens must be at least max_num_seqs"):
        SchedulerSettings.load(["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], {})
    assert SchedulerSettings.load(["--max-num-seqs", "64"], {}).max_num_batched_tokens == 0


def test_flags_reach_the_worker_and_the_domain():
    """Sizes are asked of the worker; what the worker answers and the policies are the domain's limits."""
    settings = SchedulerSettings.load(
        ["--num-blocks", "99", "--policy", "fair", "--no-enable-prefix-caching"],
        {"QUIRE_SCHEDULER_MAX_WAITING_SEQUENCES": "7"},
    )
    assert settings.pool_sizes().num_blocks == 99
    config = settings.scheduler_config(block_size=32, max_num_seqs=4, max_tokens=128, max_model_len=512)
    assert (config.block_size, config.max_num_seqs, config.max_num_batched_tokens) == (32, 4, 128)
    assert (config.policy, config.enable_prefix_caching, config.max_waiting_sequences) == ("fair", False, 7)
