"""`transformers`' plain `generate`, in process, in batches: the yardstick that costs nothing to run beside a server.

    python benchmarks/peers/hf_generate.py FOLDER [--workload C1 C2 C3]

Each workload runs in batches of its concurrency (1, 8, 32); its prompts have one length, so nothing is padded.
The last line of stdout is one JSON object. FOLDER comes from make_smollm2_folder.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from quire_bench.report import console, emit
from quire_bench.workloads import NAMED, Workload


def run_workload(model: Any, workload: Workload) -> dict[str, float]:
    """All requests in batches; output tokens a second over all of it."""
    num_tokens, started = 0, time.perf_counter()
    requests = workload.requests
    for first in range(0, len(requests), workload.concurrency):
        batch = requests[first : first + workload.concurrency]
        prompts = torch.tensor([request.prompt for request in batch])
        lengths = {"max_new_tokens": batch[0].max_tokens, "min_new_tokens": batch[0].max_tokens}
        with torch.inference_mode():
            output = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=False, **lengths
            )
        num_tokens += output.numel() - prompts.numel()
    seconds = time.perf_counter() - started
    return {"output_tokens_per_s": round(num_tokens / seconds, 3), "duration_s": round(seconds, 3)}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workload", nargs="+", choices=list(NAMED), default=["C1", "C2", "C3"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False)  # first calls are slower
    report: dict[str, Any] = {"benchmark": "transformers-generate", "threads": args.threads, "workloads": {}}
    for name in args.workload:
        report["workloads"][name] = run_workload(model, NAMED[name](args.seed))
        console.print(f"{name}: {report['workloads'][name]}")
    emit(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
