"""The processes below this one, as the kernel keeps them: their CPU time, and the peak memory of Spark's Python workers."""

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

_WORKER = re.compile(rb"-m\0(pyspark|siltstone\.spark)\.daemon\0")


def _below(parent: int) -> list[Path]:
    """Return the folders under /proc of the processes below one."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [parent]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        found += [Path("/proc", str(each)) for each in below]
    return found


def _workers(parent: int) -> list[Path]:
    found = []
    for each in _below(parent):
        with contextlib.suppress(OSError):
            if _WORKER.search((each / "cmdline").read_bytes()):
                found.append(each)
    return found


def _ticks(parent: int) -> dict[Path, int]:
    """Return what a process and each one below it have taken so far."""
    ticks = {}
    for process in [Path("/proc", str(parent)), *_below(parent)]:
        # One that has ended meanwhile is among what its parent has of children that ended.
        with contextlib.suppress(OSError):
            # The name, which comes second, may hold anything; user, system, and both of children that ended.
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ticks[process] = sum(map(int, fields[11:15]))
    return ticks


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of some work on the clock, and of CPU, of this process and all below it."""
    parent = os.getpid()
    workers, before = _workers(parent), _ticks(parent)
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    after = _ticks(parent)
    # Spark ends workers that are idle, and nobody waits for them, so that what they have taken is in no sum any more.
    ended = {worker for worker in workers if worker not in after}
    ticks = sum(after.values()) - sum(taken for process, taken in before.items() if process not in ended)
    return seconds, ticks / os.sysconf("SC_CLK_TCK")


def forget_peaks(parent: int) -> None:
    """Let the kernel count from what the workers hold now."""
    for worker in _workers(parent):
        with contextlib.suppress(OSError):
            (worker / "clear_refs").write_text("5")


def peak_megabytes(parent: int) -> int:
    """Return the greatest peak of any worker."""
    peaks = [0]
    for worker in _workers(parent):
        with contextlib.suppress(OSError):
            lines = (worker / "status").read_text().splitlines()
            peaks += [int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")]
    return max(peaks)
