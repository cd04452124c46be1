"""The same changes applied to the same base by others: Spark alone, DuckDB, delta-rs, Delta Lake and Iceberg on Spark."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from dev import readers
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as sf

from benchmarks.orders import SCHEMA

NEWEST = """
    select * exclude (rank) from (select *, row_number() over (partition by order_id order by seq desc) as rank
    from read_parquet('{changes}/*.parquet')) where rank = 1"""


class Peers:
    """Others, on a base and on changes that are Parquet files."""

    def __init__(self, spark: SparkSession, base: Path, changes: Path, folder: Path) -> None:
        self.spark, self.base, self.changes, self.folder = spark, base, changes, folder
        folder.mkdir(exist_ok=True)

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
        connection.execute(f"create temp table newest as {NEWEST.format(changes=self.changes)}")
        connection.execute(f"""
            copy (select * from read_parquet('{self.base}/*.parquet') b anti join newest n using (order_id)
            union all by name select * exclude (gone, seq) from newest where not gone)
            to '{self.folder}/duck.parquet' (format parquet, compression zstd, compression_level 1)""")

    def prepare_delta(self) -> None:
        write_deltalake(str(self.folder / "delta"), pq.read_table(self.base))

    def delta_rs(self) -> None:
        newest: Any = duckdb.connect().sql(NEWEST.format(changes=self.changes))
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


class FormatsOnSpark:
    """Delta Lake and Iceberg, with a release of Spark that they know, in an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._missing = readers.why_missing("spark")
        try:
            self._python = None if self._missing else readers.set_up("spark")
        except RuntimeError as error:
            self._missing = str(error).partition("\n")[0]

    def merge(self, way: str, base: Path, changes: Path) -> dict[str, Any] | str:
        """Merge in one of the ways of `format_merge`; return what it measured, or why it could not be had."""
        if self._missing or self._python is None:
            return str(self._missing)
        own = self.folder / "merged"
        own.mkdir()
        script = Path(__file__).with_name("format_merge.py")
        command: list[str | Path] = [self._python, script, way, base, changes, own, readers.spark_jars()]
        done = subprocess.run(command, capture_output=True, text=True)
        shutil.rmtree(own)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if re.match(r"\S*(Error|Exception)\b", line)]
            return f"it failed: {errors[-1] if errors else done.stderr[-200:]}"
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**told, "release": readers.JARS[way.partition(" ")[0].lower()][2]}
