"""Wiring of the worker: `quire-worker`."""

from __future__ import annotations

from quire_servicekit.service import run_service
from quire_worker.executor import ModelSource
from quire_worker.model_choice import ChosenExecutor
from quire_worker.profile import TorchProfiler
from quire_worker.serving import serve
from quire_worker.settings import WorkerSettings


async def _serve(settings: WorkerSettings) -> None:
    source = None
    if settings.model is not None:
        source = ModelSource(str(settings.model), settings.served_model_name, settings.dtype)
    await serve(settings, ChosenExecutor(settings), source, TorchProfiler(settings.profile_dir))


def main() -> None:
    """Run until SIGTERM."""
    run_service(WorkerSettings, _serve)


if __name__ == "__main__":
    main()
