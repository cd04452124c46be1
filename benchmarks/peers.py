"""The same changes applied to the same base by others: Spark alone, DuckDB, delta-rs, and Delta Lake on Spark."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as sf

from benchmarks.orders import SCHEMA

# The newest release of Delta Lake whose jars could be had, with the release of Spark that it was built for.
DELTA_VERSION = "4.1.0"
DELTA_ARTIFACT = f"delta-spark_4.1_2.13:{DELTA_VERSION}"
DELTA_PACKAGES = [f"delta-spark=={DELTA_VERSION}", "pyspark==4.1.0"]
NEWEST = """
    select * exclude (rank) from (select *, row_number() over (partition by order_id order by seq desc) as rank
    from read_parquet('{changes}/*.parquet')) where rank = 1"""
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>b</groupId><artifactId>b</artifactId><version>1</version>
<dependencies><dependency><groupId>io.delta</groupId><artifactId>{0}</artifactId><version>{1}</version></dependency>
</dependencies></project>"""


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


def delta_on_spark(base: Path, changes: Path, folder: Path) -> dict[str, Any] | str:
    """Run Delta Lake's MERGE in an environment of its own; return what it tells, or why it could not be had."""
    folder.mkdir()
    maven = shutil.which("mvn")
    if maven is None:
        return "no mvn to fetch its jars with"
    name, version = DELTA_ARTIFACT.split(":")
    (folder / "pom.xml").write_text(POM.format(name, version))
    python = folder / "venv" / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    commands: list[list[str | Path]] = [
        [maven, "-q", "-f", folder / "pom.xml", "dependency:copy-dependencies", "-DincludeScope=runtime"],
        [uv, "venv", "-q", "--python", sys.executable, folder / "venv"],
        [uv, "pip", "install", "-q", "--python", python, *DELTA_PACKAGES],
    ]
    for command in commands:
        if subprocess.run(command, cwd=folder, capture_output=True).returncode:
            return f"{Path(str(command[0])).name} could not fetch it"
    jars = ":".join(map(str, (folder / "target" / "dependency").glob("delta-*.jar")))
    script = Path(__file__).with_name("delta_merge.py")
    done = subprocess.run([python, script, base, changes, folder, jars], capture_output=True, text=True)
    if done.returncode:
        return f"it failed: {done.stderr.strip().splitlines()[-1]}"
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
