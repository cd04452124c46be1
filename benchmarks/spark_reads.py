"""Reads of a table with dead rows on Spark, beside Spark reading plain Parquet files of the same live rows in the same run.

`python -m benchmarks.spark_reads [--rows 5000000] [--dead 0.02] [--runs 40] [--json]` prints a table, and writes
benchmarks/results/spark_reads.json. The plain files are those of the same table when all of it is rewritten. Both are read in
alternation, first as many times as Java takes to optimize either; of seconds the least counts, of CPU seconds, those of this
process and of all it started, the median.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks.orders import Changes, create, save_base
from benchmarks.workers import timed
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results"
OURS, PLAIN = "to_spark", "plain Parquet"
WHOLE, TWO, COUNT, METADATA = "whole read", "two columns and a filter", "count", "count, of no columns"
Times = dict[tuple[str, str], list[tuple[float, float]]]
"""Seconds and CPU seconds of each run, by what is read and which way."""
_WARM_UP = 15
# Of seconds, as ratios to plain Parquet.
AIMS = {WHOLE: 1.2, TWO: 1.5}


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


READS: dict[str, Callable[[DataFrame], object]] = {
    WHOLE: drain,
    TWO: lambda frame: drain(frame.where("quantity = 3").select("order_id", "amount")),
    COUNT: lambda frame: frame.count(),
}


def make_table(spark: SparkSession, folder: Path, rows: int, dead: float) -> tuple[siltstone.Table, list[str]]:
    """Make a table some of whose rows are dead; return it, and plain files with its live rows."""
    base = save_base(folder / "base", rows)
    table = create(siltstone.open(folder / "lake"), "shop.orders", base)
    shutil.rmtree(base)
    table.compact(spark=spark)
    Changes(rows, int(rows * dead), 5).write_to(table)
    table.compact(spark=spark)
    (with_dead,) = table.current_rounds()
    table.compact(spark=spark, full=True)
    plain = [f"file://{table.lake.root}/{file.uri}" for file in table.current_rounds()[0].files]
    table.rollback(with_dead.round_id)
    return table, plain


def measure(folder: Path, rows: int, dead: float, runs: int) -> dict[str, Any]:
    spark = local_session("benchmark", conf={"spark.driver.memory": "6g"})
    table, paths = make_table(spark, folder, rows, dead)
    frames = {PLAIN: spark.read.parquet(*paths), OURS: table.to_spark(spark)}
    assert frames[OURS].count() == frames[PLAIN].count() == table.scan().count()
    times: Times = {}
    for run in range(_WARM_UP + runs):
        for name, read in READS.items():
            for what, frame in frames.items():
                taken = timed(lambda read=read, frame=frame: read(frame))  # type: ignore[misc]
                if run >= _WARM_UP:
                    times.setdefault((name, what), []).append(taken)
    times[METADATA, OURS] = [timed(lambda: table.to_spark(spark, []).count()) for _ in range(runs)]
    files = table.current_rounds()[0].files
    return {
        "rows": sum(file.live_count for file in files),
        "dead": sum(file.record_count - file.live_count for file in files),
        "files": len(files),
        "files with dead rows": sum(file.deletion_vector is not None for file in files),
        "seconds": summed_up(times, lambda taken: min(seconds for seconds, _ in taken)),
        "CPU seconds": summed_up(times, lambda taken: statistics.median(cpu for _, cpu in taken)),
    }


def summed_up(times: Times, of: Callable[[list[tuple[float, float]]], float]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for (name, what), taken in times.items():
        found.setdefault(name, {})[what] = round(of(taken), 3)
    return found


def show(result: dict[str, Any]) -> None:
    dead = f"{result['dead']:,} of {result['dead'] + result['rows']:,} rows dead in {result['files']} files"
    shown = Table("read", title=f"Reads on Spark, {dead}")
    for name in (OURS, PLAIN, "ratio", "aim", "CPU ratio"):
        shown.add_column(name, justify="right")
    for name, seconds in result["seconds"].items():
        cells = [f"{seconds[OURS]:.2f} s"]
        if PLAIN in seconds:
            cpu = result["CPU seconds"][name]
            aim = f"<= {AIMS[name]}" if name in AIMS else ""
            ratio, cpu_ratio = (f"{each[OURS] / each[PLAIN]:.2f}" for each in (seconds, cpu))
            cells += [f"{seconds[PLAIN]:.2f} s", ratio, aim, cpu_ratio]
        shown.add_row(name, *cells)
    Console().print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--dead", type=float, default=0.02, help="changes, as a part of the rows")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="siltstone-benchmark-"))
    try:
        result = measure(folder, options.rows, options.dead, options.runs)
    finally:
        shutil.rmtree(folder)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "spark_reads.json").write_text(json.dumps(result, indent=2) + "\n")
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        show(result)


if __name__ == "__main__":
    main()
