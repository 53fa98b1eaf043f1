"""Wiring of the simulated worker: `quire-worker-sim`."""

from __future__ import annotations

from quire_servicekit.service import run_service
from quire_worker.executor import ModelSource
from quire_worker.serving import serve
from quire_worker.simulated.executor import SimulatedExecutor
from quire_worker.simulated.settings import SimulatedWorkerSettings


async def _serve(settings: SimulatedWorkerSettings) -> None:
    source = ModelSource(settings.model, settings.served_model_name)
    await serve(settings, SimulatedExecutor(settings.simulated_model()), source)


def main() -> None:
    """Run until SIGTERM."""
    run_service(SimulatedWorkerSettings, _serve)


if __name__ == "__main__":
    main()
