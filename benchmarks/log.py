"""Compacting and loading a sink log: ours against Spark's own `FileStreamSinkLog`, on the same files.

`python -m benchmarks.log [--entries 1000000] [--json]` prints a table and writes benchmarks/results/log.json.
Both do each piece of work three times on a copy of the same directory, and the best time counts: Spark's JVM is warm.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from siltstone.log import SinkEntry, SinkLog
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results/log.json"
LAST = 19
REPEATS = 3
RETENTION_MS = 100 * 24 * 3_600_000
ENTRY = (
    '{"path":"file:///data/events/day=2024-01-%02d/part-%05d-3f1c2a9e-7d5b-4a52-9a51-%012x-c000.snappy.parquet",'
    '"size":%d,"isDir":false,"modificationTime":%d,"blockReplication":1,"blockSize":33554432,"action":"add"}'
)


def line(number: int, entries: int) -> str:
    """The `number`-th of `entries` entries; half of them are past the retention."""
    modified_ms = int(time.time() * 1000) - RETENTION_MS * 2 * (entries - number) // entries
    return ENTRY % (number % 28 + 1, number % 200, number, 3_000_000 + number, modified_ms)


def write_log(output: Path, entries: int) -> None:
    """A log up to the batch before a compaction: one big compact file and nine small plain ones."""
    folder = output / "_spark_metadata"
    folder.mkdir(parents=True)
    with (folder / "9.compact").open("w") as file:
        file.write("v1")
        file.writelines("\n" + line(number, entries) for number in range(entries))
    for batch_id in range(10, LAST):
        lines = [line(entries + batch_id * 10 + each, entries) for each in range(10)]
        (folder / str(batch_id)).write_text("\n".join(["v1", *lines]))


class Ours:
    """The work done by Siltstone."""

    def __init__(self, output: Path, retention_ms: int | None = None) -> None:
        self.log = SinkLog(output, retention_ms=retention_ms)

    def compact(self) -> None:
        assert self.log.add(LAST, [SinkEntry("file:///data/events/last", 1, False, int(time.time() * 1000))])

    def load(self) -> Sized:
        return self.log.all_files()

    def load_columns(self) -> Sized:
        table: Sized = self.log.to_arrow()
        return table


class Sparks:
    """The same work done by Spark."""

    def __init__(self, spark: SparkSession, output: Path, retention_ms: int | None = None) -> None:
        jvm: Any = spark._jvm
        gateway: Any = spark.sparkContext._gateway
        sinks = jvm.org.apache.spark.sql.execution.streaming.sinks
        nothing = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        retention = nothing if retention_ms is None else jvm.scala.Some(retention_ms)
        self.log = sinks.FileStreamSinkLog(1, spark._jsparkSession, str(output / "_spark_metadata"), retention)
        self.batch = gateway.new_array(sinks.SinkFileStatus, 1)
        self.batch[0] = sinks.SinkFileStatus("file:///data/events/last", 1, False, int(time.time() * 1000), 1, 1, "add")

    def compact(self) -> None:
        assert self.log.add(LAST, self.batch)

    def load(self) -> Sized:
        entries: Sized = self.log.allFiles()
        return entries


def best(work: Callable[[], object], prepare: Callable[[], None] = lambda: None) -> float:
    """Seconds of the best of some runs; neither `prepare` nor freeing the result counts."""
    seconds = []
    for _ in range(REPEATS):
        prepare()
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
        del result
    return min(seconds)


def forget_last(output: Path) -> None:
    for name in (f"{LAST}.compact", f".{LAST}.compact.crc"):
        (output / "_spark_metadata" / name).unlink(missing_ok=True)


def measure(folder: Path, entries: int) -> dict[str, Any]:
    ours, theirs = folder / "ours", folder / "spark"
    write_log(ours, entries)
    shutil.copytree(ours, theirs)
    spark = local_session("benchmark", conf={"spark.driver.memory": "6g"})
    rows = []
    for work, retention_ms in (("compact, dropping half by retention", RETENTION_MS), ("compact", None)):
        compact_ours, compact_theirs = Ours(ours, retention_ms).compact, Sparks(spark, theirs, retention_ms).compact
        mine = best(compact_ours, lambda: forget_last(ours))
        rows.append(compared(work, mine, best(compact_theirs, lambda: forget_last(theirs))))
    ours_bytes = (ours / f"_spark_metadata/{LAST}.compact").read_bytes()
    assert ours_bytes.count(b"\n") == (theirs / f"_spark_metadata/{LAST}.compact").read_bytes().count(b"\n")
    sparks = best(lambda: Sparks(spark, theirs).load())
    rows.append(compared("load as a list", best(lambda: Ours(ours).load()), sparks))
    rows.append(compared("load as columns", best(lambda: Ours(ours).load_columns()), sparks))
    assert len(Ours(ours).load()) == len(Sparks(spark, theirs).load()) == entries + 91
    spark.stop()
    return {"entries": entries, "compact_bytes": len(ours_bytes), "work": rows}


def compared(work: str, ours: float, sparks: float) -> dict[str, object]:
    return {
        "work": work,
        "siltstone_seconds": round(ours, 3),
        "spark_seconds": round(sparks, 3),
        "ratio": round(sparks / ours, 1),
    }


def peak_growth_bytes(folder: Path, entries: int) -> int:
    """How much memory a new process needs on top to compact a log of this size."""
    output = folder / f"memory-{entries}"
    write_log(output, entries)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.log", "--compact-only", str(output)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


def compact_only(output: Path) -> int:
    log = Ours(output)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status_kib("VmRSS")
    log.compact()
    return (_status_kib("VmHWM") - before) * 1024


def _status_kib(name: str) -> int:
    for each in Path("/proc/self/status").read_text().splitlines():
        if each.startswith(name + ":"):
            return int(each.split()[1])
    raise LookupError(name)


def table(result: dict[str, Any]) -> Table:
    shown = Table(title=f"A sink log of {result['entries']:,} entries ({result['compact_bytes'] / 1e6:.0f} MB)")
    for name in ("", "Siltstone", "Spark", "times faster"):
        shown.add_column(name, justify="left" if not name else "right")
    for row in result["work"]:
        shown.add_row(
            row["work"], f"{row['siltstone_seconds']:.2f} s", f"{row['spark_seconds']:.2f} s", f"{row['ratio']:.1f}"
        )
    for entries, grown in result["peak_growth_bytes"].items():
        shown.add_row(f"peak memory growth, compacting {int(entries):,}", f"{grown / 1e6:.1f} MB", "", "")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--compact-only", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compact_only is not None:
        print(compact_only(arguments.compact_only))
        return
    with tempfile.TemporaryDirectory() as folder:
        growth = {
            str(size): peak_growth_bytes(Path(folder), size) for size in (arguments.entries // 10, arguments.entries)
        }
        result = {**measure(Path(folder), arguments.entries), "peak_growth_bytes": growth}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    if arguments.json:
        print(json.dumps(result))
    else:
        Console().print(table(result))


if __name__ == "__main__":
    main()
