"""Starts a scheduler and a worker as processes, and runs requests through one Serve stream of the scheduler."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Recorder
from workloads import Request, Workload

from quire.scheduler.v1 import scheduler_service_pb2_grpc, serve_pb2
from quire_servicekit import health
from quire_servicekit.channel import connect


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What is started. Sizes of 0 are the worker's defaults."""

    model: str
    device: str
    dtype: str
    attention: str
    load_format: str
    quantization: str
    kv_cache_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    max_steps_in_flight: int
    log_dir: str


@dataclass(slots=True)
class Pair:
    """The two processes and how they started."""

    address: str
    worker_log: Path
    started_s: float
    processes: list[subprocess.Popen[bytes]]
    ready_s: float = 0.0

    def worker_events(self) -> list[dict[str, Any]]:
        """The worker's log, one object a line."""
        lines = self.worker_log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@contextmanager
def running_pair(options: EngineOptions) -> Iterator[Pair]:
    """A worker and a scheduler, stopped at the end; their logs are kept in `log_dir`."""
    scheduler, worker = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    logs = [Path(options.log_dir) / name for name in ("worker.log", "scheduler.log")]
    commands = [
        ["quire_worker.main", "--listen", worker, "--model", options.model, "--device", options.device,
         "--dtype", options.dtype, "--attention", options.attention, "--load-format", options.load_format,
         "--quantization", options.quantization, "--kv-cache-dtype", options.kv_cache_dtype],
        ["quire_scheduler.main", "--listen", scheduler, "--worker", worker,
         "--max-num-seqs", str(options.max_num_seqs), "--max-num-batched-tokens", str(options.max_num_batched_tokens),
         "--max-model-len", str(options.max_model_len), "--num-blocks", str(options.num_blocks),
         "--max-waiting-tokens", str(1 << 22), "--max-steps-in-flight", str(options.max_steps_in_flight)],
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
    started_s = time.perf_counter()
    processes = []
    try:
        for command, log in zip(commands, logs, strict=True):
            with log.open("w") as file:
                flags = ["--log-format", "json"]
                processes.append(
                    subprocess.Popen([sys.executable, "-m", *command, *flags], env=environment, stderr=file)
                )
        yield Pair(scheduler, logs[0], started_s, processes)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=60)


class EngineClient:
    """One Serve stream. `run` sends a workload and reads until every request has ended."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._next_handle = 1
        self.vocab_size = 0

    @classmethod
    async def open(cls, channel: Any, pair: Pair, timeout_s: float) -> EngineClient:
        """Wait until the scheduler is ready, then say hello. RuntimeError if the worker says that it can't."""
        async with asyncio.timeout(timeout_s):
            while not await health.check(channel, "quire.scheduler.v1.Scheduler"):
                await asyncio.sleep(0.02)
                if any(event.get("level") == "error" for event in pair.worker_events()):
                    raise RuntimeError("the worker failed")
                if any(process.poll() is not None for process in pair.processes):
                    raise RuntimeError("the scheduler or the worker has ended; see their logs")
        client = cls(scheduler_service_pb2_grpc.SchedulerStub(channel).Serve())
        await client._call.write(serve_pb2.ServeRequest(hello=serve_pb2.Hello(gateway_id="engine-benchmark")))
        client.vocab_size = (await client._call.read()).ready.model.vocab_size
        return client

    async def run(self, workload: Workload) -> Recorder:
        """The warm-up, then the requests, all at once."""
        if workload.warm_up:
            await self._run(workload.warm_up)
        return await self._run(workload.requests)

    async def _run(self, requests: list[Request]) -> Recorder:
        first = self._next_handle
        self._next_handle += len(requests)
        messages = [_submit(first + index, request) for index, request in enumerate(requests)]
        recorder = Recorder(time.perf_counter())
        writer = asyncio.create_task(self._write(messages))
        num_left = len(requests)
        while num_left:
            frame = (await self._call.read()).step_frame
            now_s = time.perf_counter()
            if frame.rejections:
                raise RuntimeError(f"a request was refused: {frame.rejections[0].status}")
            handles = [handle - first for handle in frame.handles]
            recorder.add(now_s, handles, list(frame.num_tokens), frame.sampled_at_unix_us)
            num_left -= sum(1 for reason in frame.finish_reasons if reason)
        await writer
        return recorder

    async def _write(self, messages: list[serve_pb2.ServeRequest]) -> None:
        for message in messages:
            await self._call.write(message)


async def open_client(pair: Pair, timeout_s: float = 300) -> tuple[Any, EngineClient]:
    """A channel and a client; the pair's `ready_s` is set."""
    channel = connect(pair.address)
    client = await EngineClient.open(channel, pair, timeout_s)
    pair.ready_s = time.perf_counter() - pair.started_s
    return channel, client


def _submit(handle: int, request: Request) -> serve_pb2.ServeRequest:
    submit = serve_pb2.Submit(handle=handle, request_id=f"bench-{handle}", prompt_token_ids=request.prompt)
    submit.sampling.seed = 0
    submit.sampling.temperature = 0.0
    submit.sampling.ignore_eos = True
    submit.sampling.max_tokens = request.num_output_tokens
    return serve_pb2.ServeRequest(submit=submit)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
