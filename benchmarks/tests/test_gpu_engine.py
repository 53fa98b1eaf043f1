"""The engine benchmark's workloads and figures; nothing here needs a GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "gpu"


@pytest.fixture(scope="module")
def modules():
    """workloads and measure, which import each other as scripts of one folder do."""
    names = ("workloads", "measure")
    saved = {name: sys.modules.get(name) for name in names}
    for name in names:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    yield tuple(sys.modules[name] for name in names)
    for name, module in saved.items():
        if module is None:
            del sys.modules[name]
        else:
            sys.modules[name] = module


def test_lengths_are_those_that_vllm_was_measured_with(modules):
    """The sums of W6 and the shapes of the others are the generator's; a repetition changes ids, not lengths."""
    workloads, _ = modules
    mixed = workloads.w6(128256, 0)
    assert (mixed.num_prompt_tokens, mixed.num_output_tokens) == (105032, 95773)
    shapes = {name: make(128256, 0) for name, make in workloads.WORKLOADS.items()}
    assert [len(shapes[name].requests) for name in ("W1", "W2", "W3", "W4", "W5-warm", "W6")] == [
        1,
        32,
        256,
        16,
        64,
        512,
    ]
    first, second = workloads.w2(128256, 0), workloads.w2(128256, 1)
    assert [len(r.prompt) for r in first.requests] == [len(r.prompt) for r in second.requests]
    assert first.requests[0].prompt != second.requests[0].prompt


def test_a_warm_prefix_is_that_of_every_request(modules):
    """W5's warm-up computes exactly what its requests share, and the cold run shares nothing with it."""
    workloads, _ = modules
    warm, cold = workloads.w5_warm(128256, 0), workloads.w5_cold(128256, 0)
    prefix = warm.warm_up[0].prompt
    assert len(prefix) == 4096
    assert all(request.prompt[:4096] == prefix for request in warm.requests)
    assert cold.requests[0].prompt[:4096] != prefix
    assert not cold.warm_up


def test_figures_of_a_run(modules):
    """Times count from the sending of the requests; steps count where two full batches follow each other."""
    workloads, measure = modules
    requests = [workloads.Request([1, 2], 12), workloads.Request([3], 12)]
    recorder = measure.Recorder(10.0)
    for step in range(12):
        recorder.add(10.5 + step * 0.1, [0, 1], [1, 1], 1_000_000 + step * 5000)
    figures = measure.figures("test", workloads.Workload(requests), recorder)
    assert figures["wall_s"] == pytest.approx(1.6)
    assert figures["output_tokens_per_s"] == 15.0
    assert figures["first_token_ms_median"] == pytest.approx(500.0)
    assert figures["full_batch_step_ms_median"] == 5.0


def test_a_missing_token_is_an_error(modules):
    """A run whose requests got other numbers of tokens than they asked for has no figures."""
    workloads, measure = modules
    recorder = measure.Recorder(0.0)
    recorder.add(1.0, [0], [1], 0)
    with pytest.raises(RuntimeError, match="request 0 got 1 tokens of 2"):
        measure.figures("test", workloads.Workload([workloads.Request([1], 2)]), recorder)
