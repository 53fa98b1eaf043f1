"""Wiring of the worker: `quire-worker`."""

from __future__ import annotations

from quire_servicekit.service import run_service
from quire_worker.executor import Executor, ModelSource
from quire_worker.model_executor import ModelExecutor, ModelExecutorSettings
from quire_worker.serving import serve
from quire_worker.settings import WorkerSettings


def _executor(settings: WorkerSettings) -> Executor:
    if settings.device != "cpu":
        # Imported only where it is used: it wants a device.
        from quire_worker.cuda.executor import DeviceExecutor, DeviceExecutorSettings

        return DeviceExecutor(
            DeviceExecutorSettings(
                device=settings.device,
                attention=settings.attention,
                load_format=settings.load_format,
                pool_memory_bytes=settings.pool_memory_bytes,
            )
        )
    return ModelExecutor(
        ModelExecutorSettings(
            device=settings.device,
            num_threads=settings.num_threads,
            attention=settings.attention,
            pool_memory_bytes=settings.pool_memory_bytes,
            load_format=settings.load_format,
            has_raw_logprobs=settings.logprobs_mode == "raw",
        )
    )


async def _serve(settings: WorkerSettings) -> None:
    executor = _executor(settings)
    source = None
    if settings.model is not None:
        source = ModelSource(str(settings.model), settings.served_model_name, settings.dtype)
    await serve(settings, executor, source)


def main() -> None:
    """Run until SIGTERM."""
    run_service(WorkerSettings, _serve)


if __name__ == "__main__":
    main()
