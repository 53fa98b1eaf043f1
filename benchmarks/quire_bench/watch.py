"""Who uses the processors while something is measured: the servers, the clients, and what is none of ours."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

from quire_bench.procstat import machine_busy_s
from quire_bench.server_process import Server, program_name


def own_cpu_s() -> float:
    """Processor time that this process, the clients, has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Watch:
    """Who uses the processors during a run: each service, the clients, and everything that is none of ours."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._meters = [server.cpu_meter(program_name) for server in servers]
        for meter in self._meters:
            meter.start()
        self._clients, self._machine = own_cpu_s(), machine_busy_s()

    def stop(self) -> dict[str, float]:
        """Seconds of processor time since the start, by user. `elsewhere` spoils the figures when it is much."""
        used = {"clients": own_cpu_s() - self._clients}
        for meter in self._meters:
            for name, seconds in meter.stop().items():
                used[name] = used.get(name, 0.0) + seconds
        elsewhere = machine_busy_s() - self._machine - sum(used.values())
        return dict(sorted(used.items())) | {"elsewhere": max(0.0, elsewhere)}


def shares(used: dict[str, float], duration_s: float) -> dict[str, float]:
    """Seconds of processor time as shares of what the machine has."""
    return {name: round(seconds / duration_s / (os.cpu_count() or 1), 4) for name, seconds in used.items()}
