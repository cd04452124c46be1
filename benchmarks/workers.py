"""The peak memory of Spark's Python workers, as the kernel keeps it."""

from pathlib import Path

_WORKER = b"pyspark.daemon"


def _workers(parent: int) -> list[Path]:
    """Return the folders under /proc of the Python workers below a process."""
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
    return [each for each in found if _WORKER in (each / "cmdline").read_bytes()]


def forget_peaks(parent: int) -> None:
    """Let the kernel count from what the workers hold now."""
    for worker in _workers(parent):
        (worker / "clear_refs").write_text("5")


def peak_megabytes(parent: int) -> int:
    """Return the greatest peak of any worker."""
    peaks = [0]
    for worker in _workers(parent):
        for line in (worker / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                peaks.append(int(line.split()[1]) // 1024)
    return max(peaks)
