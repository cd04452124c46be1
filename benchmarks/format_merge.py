"""MERGE of the same changes into the same base by Delta Lake and Iceberg, run by a Python of their own: they need an older Spark.

`python format_merge.py WAY BASE CHANGES FOLDER JARS` prints one line of JSON: seconds on the clock, and of CPU, of a merge in
a warm session and of a read of all columns before and after it. It imports nothing but pyspark and its neighbours here.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.workers import timed

DELTA_COPY, DELTA_VECTORS = "Delta Lake MERGE, copy-on-write", "Delta Lake MERGE, deletion vectors"
ICEBERG_COPY, ICEBERG_MERGE = "Iceberg MERGE, copy-on-write", "Iceberg MERGE, merge-on-read"
WAYS = (DELTA_COPY, DELTA_VECTORS, ICEBERG_COPY, ICEBERG_MERGE)
# The formats as their documents advise for the two ways; all else is what they do by default.
_ICEBERG_MODES = {ICEBERG_COPY: "copy-on-write", ICEBERG_MERGE: "merge-on-read"}
MERGE = """
    MERGE INTO {table} t USING newest s ON t.order_id = s.order_id
    WHEN MATCHED AND s.gone THEN DELETE
    WHEN MATCHED THEN UPDATE SET {sets}
    WHEN NOT MATCHED AND NOT s.gone THEN INSERT ({columns}) VALUES ({values})"""
NEWEST = """
    SELECT * EXCEPT (rank, seq) FROM
    (SELECT *, row_number() OVER (PARTITION BY order_id ORDER BY seq DESC) AS rank FROM changes) WHERE rank = 1"""


def read_all(frame: DataFrame) -> tuple[int, int]:
    """Read every value of all rows, and return how many there are, and the sum of a column."""
    others = [sf.bit_xor(sf.xxhash64(name)) for name in frame.columns]
    found = frame.agg(sf.count("*"), sf.sum("quantity"), *others).first()
    assert found is not None
    return found[0], found[1]


def start(way: str, folder: str, jars: str) -> SparkSession:
    builder = SparkSession.builder.master("local[*]").config("spark.driver.extraClassPath", jars)
    options: dict[str, bool | float | int | str | None]
    options = {"spark.driver.memory": "8g", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    if way in _ICEBERG_MODES:
        options |= {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.local": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.local.type": "hadoop",
            "spark.sql.catalog.local.warehouse": f"{folder}/warehouse",
        }
    else:
        options |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
        }
    return builder.config(map=options).getOrCreate()


class Format:
    """Tables of a format, merged in one of its ways."""

    def __init__(self, way: str, spark: SparkSession) -> None:
        self.way, self.spark = way, spark
        self.is_iceberg = way in _ICEBERG_MODES

    def create(self, name: str, rows: DataFrame) -> str:
        table = f"local.shop.{name}" if self.is_iceberg else f"default.{name}"
        writer = rows.writeTo(table).using("iceberg" if self.is_iceberg else "delta")
        if self.is_iceberg:
            mode = _ICEBERG_MODES[self.way]
            writer = writer.tableProperty("format-version", "3").tableProperty("write.merge.mode", mode)
        else:
            vectors = "true" if self.way == DELTA_VECTORS else "false"
            writer = writer.tableProperty("delta.enableDeletionVectors", vectors)
        writer.create()
        return table

    def merge(self, table: str, changes: DataFrame) -> None:
        changes.createOrReplaceTempView("changes")
        self.spark.sql(NEWEST).createOrReplaceTempView("newest")
        names = self.spark.table(table).columns
        self.spark.sql(
            MERGE.format(
                table=table,
                sets=", ".join(f"t.{name} = s.{name}" for name in names),
                columns=", ".join(names),
                values=", ".join(f"s.{name}" for name in names),
            )
        )

    def state(self, table: str) -> int:
        if self.is_iceberg:
            found = self.spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").first()
        else:
            found = self.spark.sql(f"DESCRIBE HISTORY {table}").agg(sf.max("version")).first()
        assert found is not None
        return int(found[0])

    def go_back(self, table: str, state: int) -> None:
        if self.is_iceberg:
            self.spark.sql(f"CALL local.system.rollback_to_snapshot('{table.removeprefix('local.')}', {state})")
        else:
            self.spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {state}")


def measure(way: str, base: str, changes: str, folder: str, jars: str) -> dict[str, Any]:
    spark = start(way, folder, jars)
    rows, changed = spark.read.parquet(base), spark.read.parquet(changes)
    tables = Format(way, spark)
    if tables.is_iceberg:
        spark.sql("CREATE NAMESPACE IF NOT EXISTS local.shop")
    warm = tables.create("warm", rows.limit(10_000))
    tables.merge(warm, changed.where("order_id < 10000"))
    table = tables.create("orders", rows)
    first = tables.state(table)
    before = min(timed(lambda: read_all(spark.table(table))) for _ in range(2))
    merges = [timed(lambda: tables.merge(table, changed))]
    tables.go_back(table, first)
    merges.append(timed(lambda: tables.merge(table, changed)))
    after = min(timed(lambda: read_all(spark.table(table))) for _ in range(2))
    count, quantity = read_all(spark.table(table))
    return {
        "rows": count, "quantity": quantity, "Spark": spark.version,
        "merge": min(merges), "read before": before, "read after": after,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
