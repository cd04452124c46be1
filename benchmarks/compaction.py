"""Compaction of 500,000 changes into a table, beside others that do the same work on the same data in the same run.

`python -m benchmarks.compaction [--rows 5000000] [--json]` prints tables, and writes benchmarks/results/compaction.json and a
plot. The Spark session is warm; its start is measured apart. Every result is checked: the number of rows, and the sum of a
column. What can be repeated runs three times, and the quickest run counts; what is compared runs in turn, since a machine is not
equally fast all the time. CPU seconds are those of all processes. Delta Lake and Iceberg run on the Spark that they have jars for, in processes of their own; where they cannot be had, the results say why.
"""

import argparse
import functools
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks import cold_start
from benchmarks.format_merge import WAYS, read_all
from benchmarks.orders import SCHEMA, Changes, create, orders, save_base
from benchmarks.peers import FormatsOnSpark, Peers
from benchmarks.workers import timed
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results"
RUNS = 3
INITIAL, MINOR, MAJOR = "Siltstone, initial", "Siltstone, minor", "Siltstone, major"
ONE, TINY = "Siltstone, minor, 1 % changed", "Siltstone, minor, 0.01 % changed"
WINDOW, DUCK, DUCK_ONE = "Spark, union and window, overwrite", "DuckDB, anti-join and union", "DuckDB, 1 % changed"
DELTA_RS, FLOOR = "delta-rs, merge", "pyarrow, read and rewrite the base (floor)"
REPARTITION = "Spark, read, repartition, write"
WHOLE, FEW = "whole", "two columns and a filter"
OURS, PLAIN = "to_spark", "spark.read.parquet"


@dataclass
class Times:
    """Seconds of work on the clock, and of CPU."""

    seconds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, run: tuple[float, float]) -> None:
        """Note a run, unless there was a quicker one."""
        before = self.seconds.get(name, math.inf), self.cpu.get(name, math.inf)
        self.seconds[name], self.cpu[name] = min(before, run)

    def take_turns(self, works: dict[str, Callable[[], tuple[float, float]]]) -> None:
        """Note several runs of each, one of all of them after another."""
        for _ in range(RUNS):
            for name, work in works.items():
                self.add(name, work())


def summary(table: pa.Table) -> tuple[int, int]:
    return table.num_rows, int(np.sum(table.column("quantity").to_numpy()))


class Ours:
    """Rounds of one table, each from the same round on."""

    def __init__(self, spark: SparkSession, table: siltstone.Table) -> None:
        self.spark, self.table = spark, table
        self.first = self.current()

    def round(self, *, full: bool = False) -> tuple[float, float]:
        if self.current() != self.first:
            self.table.rollback(self.first)
        return timed(lambda: self.table.compact(spark=self.spark, full=full))

    def read(self) -> tuple[float, float]:
        """Read every value on Spark."""
        frame = self.table.to_spark(self.spark)
        return min(timed(lambda: read_all(frame)) for _ in range(2))

    def current(self) -> int:
        return self.table.current_rounds()[0].round_id


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure_reads(spark: SparkSession, table: siltstone.Table) -> dict[str, dict[str, float]]:
    """Time Spark reading the table, beside Spark reading the same files as if nothing in them were dead."""
    (current,) = table.current_rounds()
    paths = [f"file://{table.lake.root.removeprefix('file://')}/{file.uri}" for file in current.files]
    frames = {OURS: table.to_spark(spark), PLAIN: spark.read.parquet(*paths)}
    reads: dict[str, Callable[[DataFrame], DataFrame]] = {
        WHOLE: lambda frame: frame,
        FEW: lambda frame: frame.where("quantity = 3").select("order_id", "amount"),
    }
    seconds: dict[str, dict[str, float]] = {name: dict.fromkeys(frames, math.inf) for name in reads}
    for run in range(3):
        for name, read in reads.items():
            for which, frame in frames.items():
                taken, _ = timed(lambda read=read, frame=frame: drain(read(frame)))  # type: ignore[misc]
                # The first is to warm up: whichever came first would be at a disadvantage.
                seconds[name][which] = min(seconds[name][which], taken) if run else math.inf
    return seconds


def start(folder: Path, result: dict[str, Any]) -> SparkSession:
    """Start Spark, and compact a small table, so that what follows is warm."""
    started = time.perf_counter()
    spark = local_session("benchmark", conf={"spark.driver.memory": "8g"})
    spark.range(10).count()
    result["start of Spark"] = time.perf_counter() - started
    warm = siltstone.open(folder / "lake").create_table("shop.warm", schema=SCHEMA, primary_keys=["order_id"])
    warm.write(orders(np.arange(10_000), np.random.default_rng(0)))
    warm.compact(spark=spark)
    return spark


def measure(folder: Path, rows: int, count: int) -> dict[str, Any]:
    base = save_base(folder / "base", rows)
    times = Times()
    result: dict[str, Any] = {"rows": rows, "changes": count, "seconds": times.seconds, "CPU seconds": times.cpu}
    spark = start(folder, result)
    changes = Changes(rows, count, 1)
    peers = Peers(spark, base, changes.save(folder / "changes"), folder / "peers")
    tables = [create(siltstone.open(folder / "lake"), f"shop.orders_{run}", base) for run in range(RUNS)]
    waiting = iter(tables)
    times.take_turns(
        {
            INITIAL: lambda: timed(lambda: next(waiting).compact(spark=spark)),
            REPARTITION: lambda: timed(peers.repartition),
        }
    )
    expected = measure_peers(peers, times)
    table = tables[-1]
    changes.write_to(table)
    measure_rounds(Ours(spark, table), peers, times, result, expected)
    result["read, no dead rows"] = measure_reads(spark, table)
    Changes(rows, rows // 50, 5).write_to(table)
    table.compact(spark=spark)
    result["read, 2 % dead"] = measure_reads(spark, table)
    few = Changes(rows, rows // 100, 3)
    few_of_duck = Peers(spark, base, few.save(folder / "few"), folder / "peers-few").duck
    few.write_to(table)
    times.take_turns({ONE: Ours(spark, table).round, DUCK_ONE: lambda: timed(few_of_duck)})
    Changes(rows, max(rows // 10_000, 8 * 20), 4).write_to(table)
    times.take_turns({TINY: Ours(spark, table).round})
    assert table.fsck(deep=True) == []
    spark.stop()
    measure_formats(folder, base, times, result, expected)
    return result


def measure_peers(peers: Peers, times: Times) -> tuple[int, int]:
    """Let the others do the same, and return the rows and the sum that all of them find."""
    times.take_turns({FLOOR: lambda: timed(peers.floor), WINDOW: lambda: timed(peers.window)})
    peers.prepare_delta()
    times.add(DELTA_RS, timed(peers.delta_rs))
    expected = summary(peers.spark.read.parquet(str(peers.folder / "window")).select("quantity").toArrow())
    assert summary(DeltaTable(str(peers.folder / "delta")).to_pyarrow_table(columns=["quantity"])) == expected
    return expected


def measure_rounds(ours: Ours, peers: Peers, times: Times, result: dict[str, Any], expected: tuple[int, int]) -> None:
    reads = result["read of all values after"] = {}
    times.add(MINOR, ours.round())
    assert ours.table.current_rounds()[0].bucket_actions.keys() == {"minor"}
    assert summary(ours.table.to_arrow(["quantity"])) == expected
    reads[MINOR] = ours.read()
    times.take_turns(
        {DUCK: lambda: timed(peers.duck), MINOR: ours.round, MAJOR: functools.partial(ours.round, full=True)}
    )
    assert summary(pq.read_table(peers.folder / "duck.parquet", columns=["quantity"])) == expected
    assert summary(ours.table.to_arrow(["quantity"])) == expected
    reads[MAJOR] = ours.read()


def measure_formats(folder: Path, base: Path, times: Times, result: dict[str, Any], expected: tuple[int, int]) -> None:
    """Let Delta Lake and Iceberg do the same, where they can be had."""
    formats = FormatsOnSpark(folder / "formats")
    releases, left_out = result.setdefault("formats", {}), result.setdefault("left out", {})
    before = result["read of all values before"] = {}
    for way in WAYS:
        told = formats.merge(way, base, folder / "changes")
        if not isinstance(told, str) and (told["rows"], told["quantity"]) != expected:
            told = f"it has {told['rows']} rows with a sum of {told['quantity']} instead of {expected}"
        if isinstance(told, str):
            left_out[way] = told
            continue
        times.add(way, tuple(told["merge"]))
        result["read of all values after"][way] = told["read after"]
        before[way] = told["read before"]
        releases[way] = f"{told['release']} with Spark {told['Spark']}"


def plot(result: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    seconds = result["seconds"]
    names = sorted(seconds, key=lambda name: seconds[name], reverse=True)
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    colors = ["#b07d3b" if name.startswith("Siltstone") else "#8a8a8a" for name in names]
    bars = axes.barh(names, [seconds[name] for name in names], color=colors)
    axes.bar_label(bars, fmt="%.1f s", padding=3)
    axes.set_title(f"{result['changes']:,} changes to {result['rows']:,} rows, seconds on {os.cpu_count()} cores")
    axes.spines[["top", "right"]].set_visible(False)
    for ending in ("png", "svg"):
        figure.savefig(RESULTS / f"compaction.{ending}", dpi=120)


def show(result: dict[str, Any]) -> None:
    shown = Table("work", "seconds", "CPU seconds", title=f"{result['changes']:,} changes to {result['rows']:,} rows")
    for name, seconds in result["seconds"].items():
        shown.add_row(name, f"{seconds:.2f}", f"{result['CPU seconds'][name]:.2f}")
    for name, why in result["left out"].items():
        shown.add_row(name, f"left out: {why}", "")
    reads = Table("read of all values on Spark", "before", "after")
    for name, (seconds, _) in result["read of all values after"].items():
        before = result["read of all values before"].get(name)
        reads.add_row(name, f"{before[0]:.2f}" if before else "", f"{seconds:.2f}")
    Console().print(shown, reads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="siltstone-benchmark-"))
    try:
        result = measure(folder, options.rows, options.changes)
    finally:
        shutil.rmtree(folder)
    result["cold start"] = cold_start.measure()
    result = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 3))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "compaction.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(result)
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        show(result)


if __name__ == "__main__":
    main()
