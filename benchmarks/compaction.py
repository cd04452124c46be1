"""Compaction of 500,000 changes into a table, beside others that do the same work on the same data in the same run.

`python -m benchmarks.compaction [--rows 5000000] [--large 20000000] [--json]` prints tables, and writes
benchmarks/results/compaction.json and a plot. The Spark session is warm; its start is measured apart. Every result is
checked: the number of rows, and the sum of a column. What can be repeated runs twice, and the quicker run counts.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks import cold_start
from benchmarks.orders import Changes, create, orders, save_base
from benchmarks.peers import Peers, delta_on_spark
from benchmarks.workers import forget_peaks, peak_megabytes
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results"
INITIAL, MINOR, MAJOR = "Siltstone, initial", "Siltstone, minor", "Siltstone, major"
ONE, TINY, LARGE = "Siltstone, minor, 1 % changed", "Siltstone, minor, 0.01 % changed", "Siltstone, minor, large table"
WINDOW, DUCK, DUCK_ONE = "Spark, union and window, overwrite", "DuckDB, anti-join and union", "DuckDB, 1 % changed"
DELTA_RS, DELTA, FLOOR = "delta-rs, merge", "Delta Lake on Spark, MERGE", "pyarrow, read and rewrite the base (floor)"
REPARTITION = "Spark, read, repartition, write"


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def twice(work: Callable[[], object]) -> float:
    return min(timed(work) for _ in range(2))


def summary(table: pa.Table) -> tuple[int, int]:
    return table.num_rows, int(np.sum(table.column("quantity").to_numpy()))


class Ours:
    """Rounds of one table; before a round is run again, the table is rolled back."""

    def __init__(self, spark: SparkSession, table: siltstone.Table) -> None:
        self.spark, self.table = spark, table

    def round(self, *, full: bool = False) -> float:
        (current,) = self.table.current_rounds()
        first = timed(lambda: self.table.compact(spark=self.spark, full=full))
        self.table.rollback(current.round_id)
        return min(first, timed(lambda: self.table.compact(spark=self.spark, full=full)))

    def back_to(self, round_id: int) -> None:
        self.table.rollback(round_id)

    def current(self) -> int:
        return self.table.current_rounds()[0].round_id


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def measure_reads(spark: SparkSession, table: siltstone.Table) -> dict[str, float]:
    """Time Spark reading the table, beside Spark reading the same files as if nothing in them were dead."""
    (current,) = table.current_rounds()
    paths = [f"file://{table.lake.root.removeprefix('file://')}/{file.uri}" for file in current.files]
    ours, files = table.to_spark(spark), spark.read.parquet(*paths)
    return {
        "to_spark": twice(lambda: drain(ours)),
        "spark.read.parquet": twice(lambda: drain(files)),
        "to_spark, two columns and a filter": twice(
            lambda: drain(ours.where("quantity = 3").select("order_id", "amount"))
        ),
        "spark.read.parquet, two columns and a filter": twice(
            lambda: drain(files.where("quantity = 3").select("order_id", "amount"))
        ),
    }


def measure(folder: Path, rows: int, large: int, count: int) -> dict[str, Any]:
    base = save_base(folder / "base", rows)
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    spark = local_session("benchmark", conf={"spark.driver.memory": "8g"})
    spark.range(10).count()
    result: dict[str, Any] = {"rows": rows, "large": large, "changes": count, "seconds": seconds}
    result["start of Spark"] = time.perf_counter() - start
    result["bytes a row"] = sum(path.stat().st_size for path in base.iterdir()) / rows
    lake = siltstone.open(folder / "lake")
    warm = lake.create_table("shop.warm", schema=orders(np.arange(0), np.random.default_rng(0)).schema,
                             primary_keys=["order_id"])  # fmt: skip
    warm.write(orders(np.arange(10_000), np.random.default_rng(0)))
    warm.compact(spark=spark)
    table = create(lake, "shop.orders", base)
    ours = Ours(spark, table)
    seconds[INITIAL] = timed(lambda: table.compact(spark=spark))
    changes = Changes(rows, count, 1)
    peers = Peers(spark, base, changes.save(folder / "changes"), folder / "peers")
    seconds[REPARTITION] = twice(peers.repartition)
    seconds[FLOOR] = twice(peers.floor)
    seconds[WINDOW] = twice(peers.window)
    seconds[DUCK] = twice(peers.duck)
    peers.prepare_delta()
    seconds[DELTA_RS] = timed(peers.delta_rs)
    expected = summary(spark.read.parquet(str(folder / "peers" / "window")).select("quantity").toArrow())
    assert summary(pq.read_table(folder / "peers" / "duck.parquet", columns=["quantity"])) == expected
    assert summary(DeltaTable(str(folder / "peers" / "delta")).to_pyarrow_table(columns=["quantity"])) == expected
    measure_rounds(ours, changes, seconds, result, expected)
    result["read, no dead rows"] = measure_reads(spark, table)
    Changes(rows, rows // 50, 5).write_to(table)
    table.compact(spark=spark)
    result["read, 2 % dead"] = measure_reads(spark, table)
    few = Changes(rows, rows // 100, 3)
    seconds[DUCK_ONE] = twice(Peers(spark, base, few.save(folder / "few"), folder / "peers-few").duck)
    few.write_to(table)
    seconds[ONE] = ours.round()
    Changes(rows, max(rows // 10_000, 8 * 20), 4).write_to(table)
    seconds[TINY] = ours.round()
    assert table.fsck(deep=True) == []
    if large:
        measure_large(spark, folder, large, count, result)
    spark.stop()
    told = delta_on_spark(base, folder / "changes", folder / "delta-on-spark")
    if isinstance(told, str):
        result["Delta Lake on Spark"] = told
    else:
        assert (told["rows"], told["quantity"]) == expected
        seconds[DELTA] = told["seconds"]
    return result


def measure_rounds(
    ours: Ours, changes: Changes, seconds: dict[str, float], result: dict[str, Any], expected: tuple[int, int]
) -> None:
    first = ours.current()
    changes.write_to(ours.table)
    forget_peaks(os.getpid())
    seconds[MINOR] = ours.round()
    result["worker megabytes, minor"] = peak_megabytes(os.getpid())
    assert ours.table.current_rounds()[0].bucket_actions.keys() == {"minor"}
    assert summary(ours.table.to_arrow(["quantity"])) == expected
    ours.back_to(first)
    seconds[MAJOR] = ours.round(full=True)
    assert summary(ours.table.to_arrow(["quantity"])) == expected


def measure_large(spark: SparkSession, folder: Path, rows: int, count: int, result: dict[str, Any]) -> None:
    base = save_base(folder / "large-base", rows)
    table = create(siltstone.open(folder / "lake"), "shop.large", base)
    shutil.rmtree(base)
    table.compact(spark=spark)
    Changes(rows, count, 1).write_to(table)
    forget_peaks(os.getpid())
    result["seconds"][LARGE] = Ours(spark, table).round()
    result["worker megabytes, minor, large table"] = peak_megabytes(os.getpid())


def against_aims(result: dict[str, Any]) -> list[tuple[str, float, str, bool]]:
    """Return (what, ratio, aim, whether it is met)."""
    seconds, cold = result["seconds"], result["cold start"]
    lines = [
        ("plain Spark / major", seconds[WINDOW] / seconds[MAJOR], ">=", 5.0),
        ("major / DuckDB", seconds[MAJOR] / seconds[DUCK], "<=", 1.5),
        ("minor / DuckDB", seconds[MINOR] / seconds[DUCK], "<=", 1.0),
        ("minor at 1 % / DuckDB at 1 %", seconds[ONE] / seconds[DUCK_ONE], "<=", 0.5),
        ("initial / Spark's read, repartition, write", seconds[INITIAL] / seconds[REPARTITION], "<=", 2.0),
        ("cold start / untuned", cold["siltstone"]["total"] / cold["untuned"]["total"], "<=", 0.5),
    ]
    if DELTA in seconds:
        lines.append(("Delta MERGE / major", seconds[DELTA] / seconds[MAJOR], ">=", 3.0))
    if LARGE in seconds:
        lines.append(("minor on the large table / minor", seconds[LARGE] / seconds[MINOR], "<=", 1.5))
    for name, aim in (("read, no dead rows", 1.1), ("read, 2 % dead", 2.0)):
        reads = result[name]
        for each in ("", ", two columns and a filter"):
            ratio = reads[f"to_spark{each}"] / reads[f"spark.read.parquet{each}"]
            lines.append((f"{name}{each}: to_spark / parquet", ratio, "<=", aim))
    return [
        (what, ratio, f"{sign} {aim}", ratio >= aim if sign == ">=" else ratio <= aim)
        for what, ratio, sign, aim in lines
    ]


def plot(result: dict[str, Any]) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    seconds = result["seconds"]
    names = sorted(seconds, key=lambda name: seconds[name], reverse=True)
    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    colors = ["#b07d3b" if name.startswith("Siltstone") else "#8a8a8a" for name in names]
    bars = axes.barh(names, [seconds[name] for name in names], color=colors)
    axes.bar_label(bars, fmt="%.1f s", padding=3)
    axes.set_title(f"{result['changes']:,} changes to {result['rows']:,} rows, seconds on 2 cores")
    axes.spines[["top", "right"]].set_visible(False)
    for ending in ("png", "svg"):
        figure.savefig(RESULTS / f"compaction.{ending}", dpi=120)


def show(result: dict[str, Any]) -> None:
    console = Console()
    shown = Table("work", "seconds", title=f"{result['changes']:,} changes to {result['rows']:,} rows")
    for name, each in result["seconds"].items():
        shown.add_row(name, f"{each:.2f}")
    aims = Table("ratio", "measured", "aim", "met")
    for what, ratio, aim, is_met in against_aims(result):
        aims.add_row(what, f"{ratio:.2f}", aim, "yes" if is_met else "no")
    console.print(shown, aims)
    others = {name: each for name, each in result.items() if name not in ("seconds", "rows", "changes")}
    console.print(json.dumps(others, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--large", type=int, default=20_000_000, help="rows of the large table, 0 for none")
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="siltstone-benchmark-"))
    try:
        result = measure(folder, options.rows, options.large, options.changes)
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
