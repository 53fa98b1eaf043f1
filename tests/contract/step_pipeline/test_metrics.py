"""The scheduler's metrics page after real requests."""

import asyncio
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


async def read_page(port):
    """Sample values by name and labels."""

    def fetch():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            return page.read().decode()

    text = await asyncio.to_thread(fetch)
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_page_counts_what_happened(pipeline):
    """Requests, tokens, cache hits, steps, blocks and phase times are those of the requests that ran."""
    await pipeline.start_worker()
    await pipeline.start_scheduler(metrics_listen="127.0.0.1:0")
    gateway = await pipeline.gateway()
    for handle in (1, 2):
        await gateway.submit(handle, range(40), max_tokens=10)
        await gateway.until_finished(handle)
    values = await read_page(pipeline.scheduler.metrics_port)
    assert values["quire_generation_tokens_total",] == 20
    assert values["quire_prompt_tokens_total",] == 80
    assert values["quire_prompt_tokens_cached_total",] == 32
    assert values["quire_prefix_cache_hits_total",] == 32
    assert values["quire_request_success_total", ("finished_reason", "length")] == 2
    assert values["quire_num_requests_running",] == 0
    assert values["quire_kv_cache_usage_perc",] == 0
    assert values["quire_kv_blocks", ("state", "total")] == 511
    assert values["quire_cache_config_info", ("block_size", "16"), ("num_blocks", "511")] == 1
    assert values["quire_engine_healthy",] == 1
    assert values["quire_scheduler_gateways",] == 1
    assert values["quire_time_to_first_token_seconds_count",] == 2
    assert values["quire_e2e_request_latency_seconds_bucket", ("le", "+Inf")] == 2
    assert values["quire_request_generation_tokens_sum",] == 20
    assert values["quire_step_seconds_count",] == values["quire_scheduler_steps_total",]
    for phase in ("plan", "apply", "plan_encode", "result_decode", "frame_encode"):
        assert values["quire_scheduler_phase_seconds_total", ("phase", phase)] > 0


async def test_page_before_the_first_worker(pipeline):
    """Without a worker the page says that the engine is not healthy, and nothing about blocks."""
    await pipeline.start_scheduler(metrics_listen="127.0.0.1:0", worker="127.0.0.1:1", healthy=False)
    values = await read_page(pipeline.scheduler.metrics_port)
    assert values["quire_engine_healthy",] == 0
    assert ("quire_kv_cache_usage_perc",) not in values
