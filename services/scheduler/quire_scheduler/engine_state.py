"""All that lives and dies with one worker's pool: blocks, prefix index, running set, and the planner over them."""

from __future__ import annotations

from quire_scheduler.admission import Admission
from quire_scheduler.block_pool import BlockPool
from quire_scheduler.config import SchedulerConfig
from quire_scheduler.events import BlockEvents
from quire_scheduler.planner import Planner
from quire_scheduler.prefix_cache import PrefixCache
from quire_scheduler.prefix_index import PrefixIndex
from quire_scheduler.queue import WaitingQueue
from quire_scheduler.retirement import Retirement
from quire_scheduler.running import RunningSet
from quire_scheduler.stats import SchedulerStats
from quire_scheduler.step import StepPlan


class EngineState:
    """Wires the parts together; losing the worker drops the whole object."""

    def __init__(
        self,
        config: SchedulerConfig,
        num_blocks: int,
        queue: WaitingQueue,
        events: BlockEvents,
        stats: SchedulerStats,
        acknowledged_step_id: int,
    ) -> None:
        """`acknowledged_step_id`: the last step planned before; nothing of it is in flight any more."""
        self.index = PrefixIndex(num_blocks, config.block_size, events)
        self.pool = BlockPool(num_blocks, self.index, may_be_empty=not config.has_blocks)
        self.cache = PrefixCache(
            self.index, config.block_size, config.enable_prefix_caching and config.has_blocks
        )
        self.retirement = Retirement(self.pool, self.cache, acknowledged_step_id)
        self.running = RunningSet(config.max_num_seqs)
        self.capacity_tokens = self.pool.num_total * config.block_size
        if not config.has_blocks:
            # What fits into one step.
            self.capacity_tokens = config.max_num_batched_tokens
        admission = Admission(config, queue, self.running, self.pool, self.cache, self.retirement, stats)
        self.planner = Planner(config, queue, self.running, self.pool, self.retirement, admission, stats)

    def acknowledge(self, plan: StepPlan) -> None:
        """The plan's results are applied: what it filled becomes shareable, what waited for it comes free."""
        for sequence, table, num_tokens in plan.filled:
            # Another table, or none: it ended or was preempted since, and retirement registers what it had.
            if sequence.block_table is table:
                sequence.num_registered_blocks = self.cache.register(
                    sequence, table, sequence.num_registered_blocks, num_tokens
                )
        self.retirement.acknowledge(plan.step_id)
