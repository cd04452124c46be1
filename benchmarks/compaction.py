"""Compaction of 500,000 changes into a table, beside others that do the same work on the same data in the same run.

`python -m benchmarks.compaction [--rows 5000000] [--json]` prints a table, and writes benchmarks/results/compaction.json
and a plot. The Spark session is warm; its start is measured apart. The changes come in 8 deltas, 5 % of them deletes and
5 % new keys. Every result is checked: the number of rows, and the sum of a column.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Table

import siltstone
from siltstone.spark import local_session

RESULTS = Path(__file__).parent / "results"
DELTAS = 8
SCHEMA = {
    "order_id": "int64", "customer": "int64", "status": "string", "amount": "double", "quantity": "int32",
    "city": "string", "updated": "timestamp", "note": "string",
}  # fmt: skip
STATUS = np.array(["new", "paid", "sent", "done"])
CITY = np.array([f"city {number}" for number in range(500)])
NOTE = np.array(["", "gift", "fragile"])


def orders(ids: Any, rng: np.random.Generator) -> pa.Table:
    size = len(ids)
    return pa.table(
        {
            "order_id": ids,
            "customer": rng.integers(0, 100_000, size),
            "status": STATUS[rng.integers(0, len(STATUS), size)],
            "amount": np.round(rng.random(size) * 100, 2),
            "quantity": rng.integers(1, 9, size).astype(np.int32),
            "city": CITY[rng.integers(0, len(CITY), size)],
            "updated": pa.array(rng.integers(0, 10**9, size) * 1000, pa.timestamp("us")),
            "note": NOTE[rng.integers(0, len(NOTE), size)],
        }
    )


class Changes:
    """Changes to a table of `rows` rows: per delta, upserts of old and new keys, and deletes."""

    def __init__(self, rows: int, count: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size = count // DELTAS
        self.deltas = []
        for number in range(DELTAS):
            new = rows + seed * 100_000_000 + number * size + np.arange(size // 20)
            old = rng.integers(0, rows, size - 2 * (size // 20))
            self.deltas.append((orders(np.concatenate([old, new]), rng), rng.integers(0, rows, size // 20)))

    def write_to(self, table: siltstone.Table) -> None:
        for upserts, deletes in self.deltas:
            table.write(upserts)
            table.write(pa.table({"order_id": deletes}), type="delete")

    def save(self, folder: Path) -> Path:
        """Write all changes as one Parquet folder for the others: a sequence number and a flag tell what they are."""
        folder.mkdir(parents=True)
        for number, (upserts, deletes) in enumerate(self.deltas):
            empty = pa.Table.from_arrays(
                [
                    pa.array(deletes) if each.name == "order_id" else pa.nulls(len(deletes), each.type)
                    for each in upserts.schema
                ],
                schema=upserts.schema,
            )
            both = pa.concat_tables([upserts, empty])
            gone = np.concatenate([np.zeros(len(upserts), bool), np.ones(len(deletes), bool)])
            both = both.append_column("gone", pa.array(gone))
            both = both.append_column("seq", pa.array(np.arange(len(both)) + number * 10_000_000))
            pq.write_table(both, folder / f"{number}.parquet", compression="zstd")
        return folder


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


class Others:
    """The same changes applied by others to the same base."""

    def __init__(self, spark: SparkSession, base: Path, changes: Path, folder: Path) -> None:
        self.spark, self.base, self.changes, self.folder = spark, base, changes, folder

    def window(self) -> None:
        newest = Window.partitionBy("order_id").orderBy(sf.col("seq").desc())
        base = self.spark.read.parquet(str(self.base)).withColumns({"gone": sf.lit(False), "seq": sf.lit(-1)})
        rows = base.unionByName(self.spark.read.parquet(str(self.changes)))
        kept = rows.withColumn("rank", sf.row_number().over(newest)).where("rank = 1 and not gone")
        kept.drop("gone", "seq", "rank").write.mode("overwrite").option("compression", "zstd").parquet(
            str(self.folder / "window")
        )

    def duck(self) -> None:
        connection = duckdb.connect()
        connection.execute("set threads = 2; set preserve_insertion_order = false")
        connection.execute(f"""
            create temp table newest as
            select * exclude (rank) from (select *, row_number() over (partition by order_id order by seq desc) as rank
            from read_parquet('{self.changes}/*.parquet')) where rank = 1""")
        connection.execute(f"""
            copy (select * from read_parquet('{self.base}/*.parquet') b anti join newest n using (order_id)
            union all by name select * exclude (gone, seq) from newest where not gone)
            to '{self.folder}/duck.parquet' (format parquet, compression zstd, compression_level 1)""")

    def prepare_delta(self) -> None:
        write_deltalake(str(self.folder / "delta"), pq.read_table(self.base))

    def delta_rs(self) -> None:
        newest: Any = duckdb.connect().sql(f"""
            select * exclude (rank) from (select *, row_number() over (partition by order_id order by seq desc) as rank
            from read_parquet('{self.changes}/*.parquet')) where rank = 1""")
        columns = {name: f"s.{name}" for name in SCHEMA}
        (
            DeltaTable(str(self.folder / "delta"))
            .merge(newest, "t.order_id = s.order_id", source_alias="s", target_alias="t")
            .when_matched_delete("s.gone")
            .when_matched_update(columns)
            .when_not_matched_insert(columns, "not s.gone")
            .execute()
        )

    def floor(self) -> None:
        folder = self.folder / "floor"
        folder.mkdir(exist_ok=True)
        for path in self.base.glob("*.parquet"):
            pq.write_table(pq.read_table(path), folder / path.name, compression="zstd", compression_level=1)

    def repartition(self) -> None:
        read = self.spark.read.parquet(str(self.base))
        read.repartition(16, "order_id").write.mode("overwrite").option("compression", "zstd").parquet(
            str(self.folder / "repartitioned")
        )


def summary(table: pa.Table) -> tuple[int, int]:
    return table.num_rows, int(sum(table.column("quantity").to_pylist()))


def measure(folder: Path, rows: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    base = folder / "base"
    base.mkdir()
    parts = [range(start, min(start + rows // 16 + 1, rows)) for start in range(0, rows, rows // 16 + 1)]
    for number, ids in enumerate(parts):
        pq.write_table(orders(np.array(ids), rng), base / f"{number}.parquet", compression="zstd", compression_level=1)
    results: dict[str, float] = {}
    start = time.perf_counter()
    spark = local_session("benchmark", conf={"spark.driver.memory": "8g"})
    spark.range(10).count()
    results["start of Spark"] = time.perf_counter() - start
    table = siltstone.open(folder / "lake").create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])
    table.write(batch for path in sorted(base.glob("*.parquet")) for batch in pq.read_table(path).to_batches())
    warm = siltstone.open(folder / "lake").create_table("shop.warm", schema=SCHEMA, primary_keys=["order_id"])
    warm.write(orders(np.arange(10_000), rng))
    warm.compact(spark=spark)
    results["Siltstone, initial"] = timed(lambda: table.compact(spark=spark))
    changes = Changes(rows, count, 1)
    others = Others(spark, base, changes.save(folder / "changes"), folder)
    results["Spark, read, repartition, write"] = timed(others.repartition)
    results["pyarrow, read and rewrite the base (floor)"] = timed(others.floor)
    results["Spark, union and window, overwrite"] = min(timed(others.window) for _ in range(2))
    results["DuckDB, anti-join and union"] = min(timed(others.duck) for _ in range(2))
    others.prepare_delta()
    results["delta-rs, merge"] = timed(others.delta_rs)
    changes.write_to(table)
    results["Siltstone, minor, all changes"] = timed(lambda: table.compact(spark=spark))
    expected = summary(spark.read.parquet(str(folder / "window")).select("quantity").toArrow())
    assert summary(table.to_arrow(["quantity"])) == expected
    assert summary(pq.read_table(folder / "duck.parquet", columns=["quantity"])) == expected
    assert summary(DeltaTable(str(folder / "delta")).to_pyarrow_table(columns=["quantity"])) == expected
    for name, part in (("a tenth of the changes", count // 10), ("a thousandth of the changes", count // 1000)):
        Changes(rows, part, 2 + len(results)).write_to(table)
        results[f"Siltstone, minor, {name}"] = timed(lambda: table.compact(spark=spark))
    Changes(rows, count, 99).write_to(table)
    results["Siltstone, major, all changes"] = timed(lambda: table.compact(spark=spark, full=True))
    assert table.fsck(deep=True) == []
    spark.stop()
    return {"rows": rows, "changes": count, "seconds": {name: round(each, 2) for name, each in results.items()}}


def plot(result: dict[str, Any]) -> None:
    mpl.use("Agg")
    from matplotlib import pyplot

    seconds = {name: each for name, each in result["seconds"].items() if name != "start of Spark"}
    names = sorted(seconds, key=lambda name: seconds[name], reverse=True)
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    colors = ["#b07d3b" if name.startswith("Siltstone") else "#8a8a8a" for name in names]
    bars = axes.barh(names, [seconds[name] for name in names], color=colors)
    axes.bar_label(bars, fmt="%.1f s", padding=3)
    axes.set_title(f"{result['changes']:,} changes to {result['rows']:,} rows, seconds on 2 cores")
    axes.spines[["top", "right"]].set_visible(False)
    for ending in ("png", "svg"):
        figure.savefig(RESULTS / f"compaction.{ending}", dpi=120)


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
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "compaction.json").write_text(json.dumps(result, indent=2) + "\n")
    plot(result)
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    shown = Table("work", "seconds", title=f"{result['changes']:,} changes to {result['rows']:,} rows")
    for name, seconds in result["seconds"].items():
        shown.add_row(name, f"{seconds:.2f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
