"""Delta Lake's MERGE of the same changes into the same base, run by a Python of its own: it needs an older Spark.

`python delta_merge.py BASE CHANGES FOLDER JARS` prints one line of JSON with the seconds that the merge took, warm.
"""

import json
import sys
import time

from delta import DeltaTable  # type: ignore[import-not-found]
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf


def newest(spark: SparkSession, changes: str, keep: str) -> DataFrame:
    window = Window.partitionBy("order_id").orderBy(sf.col("seq").desc())
    rows = spark.read.parquet(changes).where(keep)
    return rows.withColumn("rank", sf.row_number().over(window)).where("rank = 1").drop("rank", "seq")


def merge(spark: SparkSession, table: str, changes: str, keep: str = "true") -> None:
    source = newest(spark, changes, keep)
    columns = [field.name for field in spark.read.format("delta").load(table).schema]
    values = {name: f"s.{name}" for name in columns}
    (
        DeltaTable.forPath(spark, table)
        .alias("t")
        .merge(source.alias("s"), "t.order_id = s.order_id")
        .whenMatchedDelete("s.gone")
        .whenMatchedUpdate(set=values)
        .whenNotMatchedInsert("not s.gone", values)
        .execute()
    )


def main() -> None:
    base, changes, folder, jars = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.extraClassPath", jars)
        .config("spark.driver.memory", "8g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    rows = spark.read.parquet(base)
    rows.limit(10_000).write.format("delta").save(f"{folder}/warm")
    rows.write.format("delta").save(f"{folder}/table")
    merge(spark, f"{folder}/warm", changes, "order_id < 10000")
    started = time.perf_counter()
    merge(spark, f"{folder}/table", changes)
    seconds = time.perf_counter() - started
    found = spark.read.format("delta").load(f"{folder}/table").agg(sf.count("*"), sf.sum("quantity")).first()
    assert found is not None
    print(json.dumps({"seconds": seconds, "rows": found[0], "quantity": found[1]}))


if __name__ == "__main__":
    main()
