"""What one changed row, one touched bucket and one stored row cost: the constants of the cost model, measured on Spark.

`python -m benchmarks.constants [--rows 4000000] [--buckets 256] [--runs 3] [--json]` compacts the same changes in a table of few buckets and in one of many,
all buckets with as many files as they have on average, and takes differences of CPU seconds, those of all processes; the
least of some runs counts. It writes benchmarks/results/constants.json, which `benchmarks.cost_model` reads.
"""

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks.orders import SCHEMA, Changes, orders
from benchmarks.workers import forget_peaks, peak_megabytes, timed
from siltstone.rows.job import Settings
from siltstone.rows.parts import Tasks, read_parts
from siltstone.spark import local_session
from siltstone.spark.compaction import compact_partition
from siltstone.table.completion import compacted_partition, locate_destination
from siltstone.table.jobs import Keys, merging_job

RESULTS = Path(__file__).parent / "results/constants.json"
STEP = 500_000
FILES = 4
# How each constant is named in the results, and in words.
WORDS = {
    "change_us": "CPU of a changed row, µs",
    "rewrite_mb_per_second": "bytes rewritten in a CPU second, MB",
    "row_bytes": "bytes of a compacted row",
    "index_bytes": "bytes of the key index for a row",
    "vector_bytes": "bytes of a deletion vector for a dead row",
    "delta_bytes": "bytes of a changed row in a delta",
    "shuffled_bytes": "bytes of a changed row that are shuffled",
    "driver_bucket_kb": "memory of the driver for a touched bucket, kB",
    "idle_worker_mb": "memory of a worker with little to do, MB",
    "worker_mb": "memory of a worker, MB",
    "base_seconds": "CPU of a round besides, s",
}


class Rounds:
    """A table with several files in every bucket, and rounds of changes to it that are rolled back again."""

    def __init__(self, spark: SparkSession, root: Path, name: str, rows: int, bucket_rows: int | None) -> None:
        self.spark, self.rows = spark, rows
        self.table = siltstone.open(root).create_table(f"shop.{name}", schema=SCHEMA, primary_keys=["order_id"])
        rng = np.random.default_rng(0)
        starts = range(0, rows, STEP)
        self.table.write(
            batch for start in starts for batch in orders(np.arange(start, min(start + STEP, rows)), rng).to_batches()
        )
        (self.source,) = self.table._sources()
        compact_partition(
            self.source,
            compacted_partition(self.source),
            ["order_id"],
            compaction_artifact_path=str(root),
            spark=spark,
            settings=Settings(bucket_rows=bucket_rows),
        )
        for seed in range(1, FILES):
            Changes(rows, rows // 100, seed).write_to(self.table)
            self.table.compact(spark=spark)
        (self.before,) = self.table.current_rounds()
        assert max(len(bucket.files) for bucket in self.before.buckets) == FILES

    @property
    def buckets(self) -> int:
        return len(self.before.buckets)

    def cpu_seconds(self, count: int, runs: int) -> float:
        """Return the CPU seconds of a minor round of so many changes; the table is then as it was."""
        Changes(self.rows, count, 10).write_to(self.table)
        least = min(self._run(lambda: self.table.compact(spark=self.spark)) for _ in range(runs))
        # What was written is compacted once more, as the last run was rolled back, too.
        self.table.compact(spark=self.spark)
        (self.before,) = self.table.current_rounds()
        assert self.before.bucket_actions.keys() <= {"minor", "untouched"}, self.before.bucket_actions
        return least

    def _run(self, work: Callable[[], object]) -> float:
        _, cpu = timed(work)
        self.table.rollback(self.before.round_id)
        return cpu

    def rewrite(self) -> tuple[float, int]:
        """Return the CPU seconds of a rewrite of all, and its bytes."""
        _, cpu = timed(lambda: self.table.compact(spark=self.spark, full=True))
        return cpu, sum(file.content_length for file in self.table.current_rounds()[0].files)

    def driver_bytes(self, count: int) -> int:
        """Return the most memory that Python has on the driver at once in a round of so many changes."""
        Changes(self.rows, count, 20).write_to(self.table)
        gc.collect()
        tracemalloc.start()
        try:
            self.table.compact(spark=self.spark)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def delta_and_shuffled_bytes(self, count: int) -> tuple[float, float]:
        """Return what a changed row has in its delta, and in the parts that are sent to other tasks."""
        before = len(self.table.deltas())
        Changes(self.rows, count, 30).write_to(self.table)
        deltas = self.table.deltas()[before:]
        destination = locate_destination(compacted_partition(self.source), root=self.table.lake.root)
        version = self.table.version
        job = merging_job(destination, self.before, deltas, Keys(tuple(version.primary_keys)), version, version)
        tasks = Tasks(range(self.buckets), self.buckets)
        sent = sum(len(part) for _, part in read_parts(job, job.reads, tasks))
        stored = sum(entry.content_length for delta in deltas for entry in delta.manifest.entries)
        return stored / count, sent / count


def measure(folder: Path, rows: int, buckets: int, runs: int) -> dict[str, float]:
    spark = local_session("benchmark", conf={"spark.driver.memory": "4g"})
    many_changes, few_changes = rows // 10, rows // 100
    # A JVM compiles what runs often: none of that is to be in the first round that counts.
    Rounds(spark, folder, "warm", rows // 10, rows // 10 // 16).cpu_seconds(rows // 100, 5)
    few = Rounds(spark, folder, "few", rows, None)
    forget_peaks(os.getpid())
    found: dict[str, float] = {"rows": rows}
    base = few.cpu_seconds(few_changes, runs)
    found["idle_worker_mb"] = peak_megabytes(os.getpid())
    found["change_us"] = 1e6 * (few.cpu_seconds(many_changes, runs) - base) / (many_changes - few_changes)
    found["worker_mb"] = peak_megabytes(os.getpid())
    found |= sizes(few)
    found["delta_bytes"], found["shuffled_bytes"] = few.delta_and_shuffled_bytes(few_changes)
    many = Rounds(spark, folder, "many", rows, rows // buckets)
    more = many.buckets - few.buckets
    found["base_seconds"] = base - found["change_us"] * few_changes / 1e6
    more_bytes = many.driver_bytes(few_changes) - few.driver_bytes(few_changes)
    found["driver_bucket_kb"] = max(0.0, more_bytes / more / 1e3)
    cpu, size = few.rewrite()
    found["rewrite_mb_per_second"] = size / cpu / 1e6
    found["buckets"], found["many_buckets"] = few.buckets, many.buckets
    spark.stop()
    return found


def sizes(rounds: Rounds) -> dict[str, float]:
    """Return the bytes of what the newest round has."""
    files = rounds.table.current_rounds()[0].files
    vectors = [file.deletion_vector for file in files if file.deletion_vector is not None]
    rows = sum(file.record_count for file in files)
    return {
        "row_bytes": sum(file.content_length for file in files) / rows,
        "index_bytes": sum(file.index_length or 12 * file.record_count for file in files) / rows,
        "vector_bytes": sum(each.content_length for each in vectors) / sum(each.record_count for each in vectors),
    }


def load() -> dict[str, float]:
    """Return the constants as they were measured last."""
    found: dict[str, float] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def show(found: dict[str, Any]) -> None:
    shown = Table("constant", "measured", title=f"Constants, of {found['rows']:,} rows of eight columns, on Spark")
    for name, words in WORDS.items():
        shown.add_row(words, f"{found[name]:,.2f}")
    Console().print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--buckets", type=int, default=256, help="of the table that has many")
    parser.add_argument("--runs", type=int, default=3, help="how often a round runs")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="siltstone-constants-"))
    try:
        found = measure(folder, options.rows, options.buckets, options.runs)
    finally:
        shutil.rmtree(folder)
    found = {name: round(value, 3) for name, value in found.items()}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        show(found)


if __name__ == "__main__":
    main()
