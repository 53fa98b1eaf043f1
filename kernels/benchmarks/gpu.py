"""All GPU benchmarks in one process: python gpu.py [--sweep] [--output FILE] [names ...]."""

from __future__ import annotations

import argparse
import importlib
import json
import traceback
from pathlib import Path

import torch
from gpu_timing import Report

NAMES = [
    "gemv", "skinny_linear", "decode_attention", "prefill_attention", "add_rms_norm", "silu_mul",
    "rope_kv_write_gpu", "rows", "step_inputs", "sample", "adjust_logits", "fp8_rows",
]  # fmt: skip


def main() -> int:
    """Run, print, save; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, help="operations; all by default")
    parser.add_argument("--sweep", action="store_true", help="try every plan instead of the default one")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    torch.manual_seed(0)
    report = Report()
    failed = []
    for name in options.names:
        try:
            importlib.import_module(f"bench_{name}").main(report, options.sweep)
        except Exception:  # noqa: BLE001 - the other benchmarks still run
            traceback.print_exc()
            failed.append(name)
        torch.cuda.empty_cache()
    if options.output:
        options.output.write_text(
            json.dumps({"machine": report.machine, "failed": failed, "lines": report.lines}, indent=1)
        )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
