"""Renamed and dropped columns, and deletes that concern every partition, through Spark."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import siltstone
from siltstone.spark.source import register
from siltstone.testing.oracle import oracle_of, same_rows


@pytest.fixture
def people(local_root: str) -> siltstone.Table:
    return siltstone.open(local_root).create_table(
        "crm.people", schema={"id": "int64", "name": "string", "age": "int64"}, primary_keys=["id"]
    )


def test_frames_have_todays_names_of_columns_on_every_path(spark: SparkSession, people: siltstone.Table) -> None:
    people.write(pa.table({"id": [1, 2, 3], "name": ["Ann", "Bob", "Cay"], "age": [30, 40, 50]}))
    people.compact(spark=spark)
    people.alter(rename_columns={"id": "person", "name": "age", "age": "years"})
    people.alter(drop_columns=["years"])
    renamed = spark.range(2, 3).select(
        sf.col("id").alias("person"), sf.lit("Bea").alias("age"), sf.lit(7).alias("years")
    )
    people.write(renamed.withColumn("years", sf.col("years").cast("bigint")))
    expected = [
        {"person": 1, "age": "Ann", "years": None},
        {"person": 2, "age": "Bea", "years": 7},
        {"person": 3, "age": "Cay", "years": None},
    ]
    same_rows(people.to_spark(spark, include_uncompacted=True).toArrow(), expected)
    people.compact(spark=spark)
    same_rows(people.to_spark(spark).toArrow(), expected)
    same_rows(people.to_spark(spark, ["years"]).toArrow(), [{"years": row["years"]} for row in expected])
    register(spark)
    source = spark.read.format("siltstone").option("root", people.lake.root).load("crm.people")
    same_rows(source.toArrow(), expected)
    same_rows(source.where("age = 'Bea'").toArrow(), [expected[1]])
    assert source.where("person = 1").collect()[0].age == "Ann"


def test_deletes_of_any_task_reach_the_partitions_of_all_tasks(spark: SparkSession, local_root: str) -> None:
    visits = siltstone.open(local_root).create_table(
        "web.visits",
        schema={"id": "int64", "region": "string"},
        primary_keys=["id"],
        partition_keys=["region"],
        unique_within_partition=True,
    )
    visits.write(pa.table({"id": [1, 2, 3, 4], "region": ["eu", "us", "asia", None]}))
    # Four tasks: the first has deletes without a region, the others upserts, each to a partition of its own.
    changes = spark.range(0, 4, 1, 4).select(
        sf.when(sf.col("id") == 0, 2).otherwise(sf.col("id") + 10).alias("id"),
        sf.when(sf.col("id") == 1, "eu").when(sf.col("id") == 2, "us").when(sf.col("id") == 3, "new").alias("region"),
        sf.when(sf.col("id") == 0, "d").otherwise("u").alias("op"),
    )
    visits.write(changes, op_column="op")
    expected = {(1, "eu"), (3, "asia"), (4, None), (11, "eu"), (12, "us"), (13, "new")}
    found = visits.to_arrow(include_uncompacted=True).to_pylist()
    assert {(row["id"], row["region"]) for row in found} == expected
    same_rows(found, oracle_of(visits).rows())
