"""A scheduler and a simulated worker over real gRPC on loopback, and a gateway's end of Serve."""

import asyncio
import contextlib

import grpc
import pytest

from quire.admin.v1 import admin_service_pb2_grpc
from quire.scheduler.v1 import load_pb2, scheduler_service_pb2_grpc, serve_pb2
from quire_scheduler.main import SchedulerService
from quire_scheduler.settings import SchedulerSettings
from quire_servicekit import health
from quire_servicekit.channel import connect
from quire_worker.executor import ModelSource
from quire_worker.serving import WorkerService
from quire_worker.simulated.executor import SimulatedExecutor
from quire_worker.simulated.settings import SimulatedWorkerSettings

# Arguments of `submit` that are sampling parameters.
SAMPLING = ("num_logprobs", "num_prompt_logprobs", "min_tokens", "seed")


class RecordingExecutor(SimulatedExecutor):
    """The simulation, with every plan kept; `hold` keeps results back, as a hung device would."""

    def __init__(self, model):
        super().__init__(model)
        self.plans = []
        self.held = None

    def submit(self, plan, deliver):
        self.plans.append(plan)
        if self.held is None:
            super().submit(plan, deliver)
        else:
            self.held.append((plan, deliver))

    def hold(self):
        self.held = []

    def release(self):
        held, self.held = self.held, None
        for plan, deliver in held:
            super().submit(plan, deliver)


class Gateway:
    """One Serve stream; a task reads all frames and keeps what they say per (handle, sequence index)."""

    def __init__(self, call):
        self.call = call
        self.ready = None
        self.frames = []
        self.tokens = {}
        self.finished = {}
        self.cached = {}
        self.rejections = {}
        self.status = None
        self._changed = asyncio.Event()
        self._reader = None

    async def open(self, gateway_id="gateway", fingerprint=""):
        hello = serve_pb2.Hello(gateway_id=gateway_id, tokenizer_fingerprint=fingerprint)
        await self.call.write(serve_pb2.ServeRequest(hello=hello))
        self.ready = (await self.call.read()).ready
        return self

    def start_reading(self):
        self._reader = asyncio.create_task(self._read())
        return self

    async def submit(self, handle, prompt=range(40), max_tokens=8, resumed=None, timeout_ms=0, **fields):
        sampling = {key: fields.pop(key) for key in SAMPLING if key in fields}
        submit = serve_pb2.Submit(handle=handle, request_id=f"r{handle}", prompt_token_ids=prompt, **fields)
        submit.sampling.seed = sampling.pop("seed", handle)
        submit.sampling.max_tokens = max_tokens
        for name, value in sampling.items():
            setattr(submit.sampling, name, value)
        if resumed is not None:
            submit.resumed.add(sequence_index=0, output_token_ids=resumed)
        if timeout_ms:
            submit.timeout.FromMilliseconds(timeout_ms)
        await self.call.write(serve_pb2.ServeRequest(submit=submit))

    async def abort(self, handle):
        await self.call.write(serve_pb2.ServeRequest(abort=serve_pb2.Abort(handle=handle)))

    async def until(self, condition, timeout_s=10.0):
        """Wait until condition() holds; it is looked at after every frame."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_finished(self, *handles, index=0):
        await self.until(lambda: all((handle, index) in self.finished for handle in handles))

    async def close(self):
        self.call.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self):
        try:
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self._take(message.step_frame)
            self.status = await self.call.code()
        except grpc.aio.AioRpcError as error:
            self.status = error.code()
        self._changed.set()

    def _take(self, frame):
        self.frames.append(frame)
        first = 0
        for row, key in enumerate(zip(frame.handles, frame.sequence_indices, strict=True)):
            end = first + frame.num_tokens[row]
            self.tokens.setdefault(key, []).extend(frame.token_ids[first:end])
            first = end
            if frame.finish_reasons and frame.finish_reasons[row]:
                assert key not in self.finished
                self.finished[key] = frame.finish_reasons[row]
        self.cached.update(zip(frame.started_handles, frame.num_cached_tokens, strict=True))
        self.rejections.update({rejection.handle: rejection.status for rejection in frame.rejections})
        self._changed.set()


class Pipeline:
    """One worker and one scheduler, each of which can be stopped and started again, and gateways."""

    def __init__(self, stack):
        self._stack = stack
        self._worker_address = "127.0.0.1:0"
        self._channel = None
        self.worker = None
        self.executor = None
        self.scheduler = None

    async def start_worker(self, **settings):
        options = {"listen": self._worker_address, "num_blocks": 512, "max_model_len": 512, **settings}
        worker_settings = SimulatedWorkerSettings(**options)
        self.executor = RecordingExecutor(worker_settings.simulated_model())
        self.worker = WorkerService(worker_settings, self.executor, ModelSource("simulated"))
        await self.worker.start()
        self._worker_address = self.worker.server.address

    async def stop_worker(self):
        await self.worker.__aexit__(None, None, None)
        self.worker = None

    async def start_scheduler(self, *, healthy=True, **settings):
        options = {
            "listen": "127.0.0.1:0", "worker": self._worker_address, "reconnect_delay_s": 0.02, "max_num_seqs": 8,
            "max_num_batched_tokens": 64, **settings,
        }  # fmt: skip
        self.scheduler = SchedulerService(SchedulerSettings(**options))
        await self._stack.enter_async_context(self.scheduler)
        channel = connect(self.scheduler.server.address)
        self._stack.push_async_callback(channel.close)
        self.use_channel(channel)
        await self.until_healthy(healthy)

    def use_channel(self, channel):
        """Talk to the scheduler at its other end from now on."""
        self._channel = channel
        self.stub = scheduler_service_pb2_grpc.SchedulerStub(channel)
        self.admin = admin_service_pb2_grpc.AdminStub(channel)

    async def is_healthy(self):
        return await health.check(self._channel, "quire.scheduler.v1.Scheduler")

    async def until_healthy(self, expected=True):
        async with asyncio.timeout(10):
            while await self.is_healthy() != expected:
                await asyncio.sleep(0.005)

    async def gateway(self, *, reading=True, **hello):
        stub = self.stub if reading else self._stub_with_small_windows()
        gateway = await Gateway(stub.Serve()).open(**hello)
        self._stack.push_async_callback(gateway.close)
        return gateway.start_reading() if reading else gateway

    def _stub_with_small_windows(self):
        """A connection whose buffers fill after 64 KiB, so that a gateway that doesn't read is felt soon."""
        options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
        channel = grpc.aio.insecure_channel(self.scheduler.server.address, options)
        self._stack.push_async_callback(channel.close)
        return scheduler_service_pb2_grpc.SchedulerStub(channel)

    async def load(self):
        return (await self.stub.GetLoad(load_pb2.GetLoadRequest())).load

    async def until_load(self, condition):
        async with asyncio.timeout(10):
            while not condition(await self.load()):
                await asyncio.sleep(0.005)


@pytest.fixture
async def pipeline():
    """An empty Pipeline: the test starts what it needs, all is stopped at the end."""
    async with contextlib.AsyncExitStack() as stack:
        pipeline = Pipeline(stack)
        try:
            yield pipeline
        finally:
            await stack.aclose()
            if pipeline.worker is not None:
                await pipeline.stop_worker()


@pytest.fixture
async def running(pipeline):
    """A Pipeline with its worker and scheduler running."""
    await pipeline.start_worker()
    await pipeline.start_scheduler()
    return pipeline
