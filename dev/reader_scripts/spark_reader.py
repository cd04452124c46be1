"""Reads Delta Lake and Iceberg tables with their own code on Spark, for whoever asks: a line of JSON in, a line that begins with `answer:` out.

It runs in an environment of its own, whose Spark is a release that both have jars for: `python spark_reader.py JARS`. A request has a
`format`, a `path` and a file for the rows, `out`; or `sql` for a statement, in which `{table}` stands for the path, and `out` if it has rows.
With `changes`, a range of versions, it is answered with the table's change data feed. `settings` are made before.
"""

import json
import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession


def start(jars: str) -> SparkSession:
    """Start Spark with the extensions of both formats."""
    options: dict[str, Any] = {
        "spark.driver.extraClassPath": jars,
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    return SparkSession.builder.master("local[2]").config(map=options).getOrCreate()


def read(spark: SparkSession, request: dict[str, Any]) -> DataFrame:
    """Return the rows of a table, perhaps of an older version, or what changed between two; or those of a statement."""
    if "sql" in request:
        return spark.sql(request["sql"].replace("{table}", f"{request['format']}.`{request['path']}`"))
    reader = spark.read.format(request["format"])
    if "changes" in request:
        first, last = request["changes"]
        reader = reader.option("readChangeFeed", "true").option("startingVersion", first).option("endingVersion", last)
    elif request.get("version") is not None:
        option = "versionAsOf" if request["format"] == "delta" else "snapshot-id"
        reader = reader.option(option, request["version"])
    return reader.load(request["path"])


def answer(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked for."""
    for name, value in request.get("settings", {}).items():
        spark.conf.set(name, value)
    rows = read(spark, request).toArrow()
    if "out" not in request:
        return {"rows": rows.num_rows}
    with pa.OSFile(request["out"], "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return {"rows": rows.num_rows}


def main() -> None:
    """Answer requests until there are no more."""
    spark = start(sys.argv[1])
    spark.sparkContext.setLogLevel("OFF")
    for line in sys.stdin:
        try:
            told = answer(spark, json.loads(line))
        except Exception as error:  # noqa: BLE001
            told = {"error": str(error)[:2000]}
        print(f"answer: {json.dumps(told)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
