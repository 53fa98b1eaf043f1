"""Metrics pages and traces, and that neither costs anything when not asked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client import Counter

from quire_servicekit import loop, tracing
from quire_servicekit.metrics import Metrics


def test_page_shows_own_metrics_and_the_process():
    """The page has what the service counts, its build and its process."""
    metrics = Metrics("sample", version="1.2.3")
    Counter("quire_sample_steps", "Steps.", registry=metrics.registry).inc(3)
    port = metrics.serve("127.0.0.1:0")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        page = answer.read().decode()
    metrics.close()
    assert "quire_sample_steps_total 3.0" in page
    assert 'quire_build_info{service="sample",version="1.2.3"} 1.0' in page
    assert "process_resident_memory_bytes" in page


def test_no_address_means_no_page():
    """Without a metrics address no server is started."""
    assert Metrics("sample").serve(None) is None


def test_taken_metrics_port_is_refused_by_address():
    """A metrics port in use is an error that names it."""
    first = Metrics("sample")
    port = first.serve("127.0.0.1:0")
    with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
        Metrics("sample").serve(f"127.0.0.1:{port}")
    first.close()


def test_two_services_in_one_process_do_not_collide():
    """Each Metrics has a registry of its own."""
    for _ in range(2):
        Counter("quire_sample_steps", "Steps.", registry=Metrics("sample").registry)


def test_no_endpoint_no_interceptors():
    """Without an OTLP endpoint nothing is traced."""
    assert tracing.server_interceptors(None) == []
    assert tracing.client_interceptors(None) == []


def test_servicekit_imports_neither_tracing_nor_numbers():
    """Importing all of servicekit brings in no OpenTelemetry, numpy or torch: start-up time."""
    code = (
        "import sys, quire_servicekit.service, quire_servicekit.server, quire_servicekit.channel, "
        "quire_servicekit.metrics, quire_servicekit.tracing\n"
        "print([name for name in ('opentelemetry', 'numpy', 'torch', 'transformers') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_loop_runs_a_coroutine_and_returns_its_result():
    """The fast loop behaves as asyncio.run."""

    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    assert loop.run(add(1, 2)) == 3
