"""A stream into a table, beside the same stream into plain Parquet files, by Spark's own sink, in the same run.

`python -m benchmarks.streams [--batches 5] [--rows 400000] [--runs 3] [--json]` prints a table, and writes
benchmarks/results/streams.json. Both streams read the same Parquet files, one a batch, in alternation in a warm session. CPU
seconds are those of this process and of all it started; of seconds the least counts, of CPU seconds the median.
"""

import argparse
import functools
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import siltstone
from benchmarks.orders import SCHEMA, orders
from benchmarks.workers import timed
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results/streams.json"
OURS, PLAIN = "siltstone", "parquet"
AIM = 1.3


def make_source(folder: Path, batches: int, rows: int) -> None:
    """Write a file of orders for each batch."""
    folder.mkdir()
    rng = np.random.default_rng(14)
    for number in range(batches):
        ids = np.arange(number * rows, (number + 1) * rows)
        pq.write_table(orders(ids, rng), folder / f"{number:02}.parquet", row_group_size=rows // 2)


def stream(spark: SparkSession, source: Path, folder: Path, sink: str) -> None:
    """Stream all files of the source into a new place."""
    schema = spark.read.parquet(str(source)).schema
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(folder / "checkpoint"))
    target = str(folder / "files")
    if sink == OURS:
        made = siltstone.open(folder / "lake").create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])
        writer, target = writer.option("root", made.lake.root), made.name
    query = writer.trigger(availableNow=True).start(target)
    query.awaitTermination()


def measure(folder: Path, batches: int, rows: int, runs: int) -> dict[str, Any]:
    spark = local_session("benchmark", conf={"spark.driver.memory": "4g"})
    source = folder / "source"
    make_source(source, batches, rows)
    times: dict[str, list[tuple[float, float]]] = {OURS: [], PLAIN: []}
    for run in range(runs + 1):
        for sink, measured in times.items():
            place = folder / f"{sink}-{run}"
            took = timed(functools.partial(stream, spark, source, place, sink))
            if sink == OURS:
                table = siltstone.open(place / "lake").table("shop.orders")
                assert [delta.stream_position for delta in table.deltas()] == list(range(1, batches + 1))
            shutil.rmtree(place)
            # The first run of each warms the session up.
            if run:
                measured.append(took)
    spark.stop()
    results = {
        sink: {
            "seconds": round(min(seconds for seconds, _ in measured), 2),
            "cpu_seconds": round(statistics.median(cpu for _, cpu in measured), 2),
        }
        for sink, measured in times.items()
    }
    return {
        "batches": batches,
        "rows": rows,
        "runs": runs,
        "sinks": results,
        "ratio": round(results[OURS]["seconds"] / results[PLAIN]["seconds"], 2),
        "cpu_ratio": round(results[OURS]["cpu_seconds"] / results[PLAIN]["cpu_seconds"], 2),
        "aim": AIM,
    }


def show(result: dict[str, Any]) -> Table:
    title = f"{result['batches']} batches of {result['rows']:,} rows"
    table = Table("sink", "seconds", "CPU seconds", title=title)
    for sink, figures in result["sinks"].items():
        table.add_row(sink, f"{figures['seconds']:.2f}", f"{figures['cpu_seconds']:.2f}")
    table.add_row("ratio", f"{result['ratio']:.2f}", f"{result['cpu_ratio']:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), options.batches, options.rows, options.runs)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    if options.json:
        json.dump(result, sys.stdout)
    else:
        Console().print(show(result))


if __name__ == "__main__":
    main()
