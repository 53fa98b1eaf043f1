"""Processor time and memory of process trees, from /proc. Linux only; knows nothing of what the processes are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process. `cpu_s` is user and system time of its threads and of its children that have been waited for."""

    pid: int
    parent_pid: int
    command: tuple[str, ...]
    cpu_s: float


def read_process(pid: int) -> ProcessInfo | None:
    """The process, or None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in brackets may hold spaces and brackets itself; fields count from after the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    ticks = sum(int(field) for field in fields[11:15])
    words = tuple(word.decode("utf-8", "replace") for word in command.split(b"\0") if word)
    return ProcessInfo(pid, int(fields[1]), words, ticks / TICKS_PER_S)


def tree(root_pids: Iterable[int]) -> list[ProcessInfo]:
    """The roots that exist and all their descendants, parents first."""
    everyone: dict[int, ProcessInfo] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (info := read_process(int(entry.name))) is not None:
            everyone[info.pid] = info
    children: dict[int, list[ProcessInfo]] = {}
    for info in everyone.values():
        children.setdefault(info.parent_pid, []).append(info)
    found = [everyone[pid] for pid in dict.fromkeys(root_pids) if pid in everyone]
    for info in found:  # grows while it is walked
        found += [child for child in children.get(info.pid, ()) if child not in found]
    return found


def proportional_set_bytes(root_pids: Iterable[int]) -> int:
    """Memory of the trees, pages shared by several processes counted once among them (the sum of Pss)."""
    total = 0
    for info in tree(root_pids):
        try:
            lines = Path(f"/proc/{info.pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def machine_busy_s() -> float:
    """Processor time, of all processors together, that the machine has spent on anything since it started."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = (
        int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICKS_PER_S


class CpuMeter:
    """Processor time that trees use between `start` and `stop`, by a label that `label` gives each process."""

    def __init__(self, root_pids: Iterable[int], label: Callable[[ProcessInfo], str]) -> None:
        self._roots = tuple(root_pids)
        self._label = label
        self._before: dict[int, float] = {}

    def start(self) -> None:
        """Begin."""
        self._before = {info.pid: info.cpu_s for info in tree(self._roots)}

    def stop(self) -> dict[str, float]:
        """Seconds of processor time by label since `start`; a process born since then counts from its birth."""
        used: dict[str, float] = {}
        for info in tree(self._roots):
            label = self._label(info)
            used[label] = used.get(label, 0.0) + info.cpu_s - self._before.get(info.pid, 0.0)
        return used
