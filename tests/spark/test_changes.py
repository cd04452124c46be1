"""Changes on Spark: between two bounds as a data frame, and as a stream that goes on where it was."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import siltstone
from siltstone.testing.oracle import same_rows


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    table = siltstone.open(local_root).create_table(
        "shop.orders",
        schema={"zone": "string", "id": "int64", "v": "string", "at": "time"},
        primary_keys=["zone", "id"],
        partition_keys=["zone"],
    )
    write(table, range(6), "a")
    write(table, (0, 1), "b")
    return table


def write(table: siltstone.Table, ids: "range | tuple[int, ...]", value: str) -> None:
    rows = [{"zone": ("eu", "us")[number % 2], "id": number, "v": value} for number in ids]
    table.write(pa.Table.from_pylist(rows, schema=table.schema))
    table.compact(engine="local")


def changes_of(spark: SparkSession, table: siltstone.Table, **options: str) -> DataFrame:
    return spark.read.format("siltstone").options(root=table.lake.root, **options).load(table.name)


def test_changes_are_a_data_frame(spark: SparkSession, table: siltstone.Table) -> None:
    frame = changes_of(spark, table, changes_after="1")
    assert frame.columns == [*table.schema.names, "_change_type", "_round", "_position", "_committed_at"]
    found = sorted((row["id"], row["_change_type"], row["v"], row["_round"]) for row in frame.collect())
    assert found == [
        (0, "update_after", "b", 2),
        (0, "update_before", "a", 2),
        (1, "update_after", "b", 2),
        (1, "update_before", "a", 2),
    ]
    after = changes_of(spark, table, changes_after="0", changes_upto="1", columns="id", images="after", net="false")
    assert sorted(row["id"] for row in after.collect()) == list(range(6))
    with pytest.raises(Exception, match="unknown option as_of"):
        changes_of(spark, table, changes_after="1", as_of="1")


def test_a_stream_of_changes_makes_another_table_the_same(
    spark: SparkSession, table: siltstone.Table, tmp_path: Path
) -> None:
    lake = table.lake
    copy = lake.create_table("shop.copy", schema=table.schema, primary_keys=["zone", "id"], partition_keys=["zone"])
    sizes: list[int] = []

    def take(frame: DataFrame, batch_id: int) -> None:
        rows = frame.where("_change_type != 'update_before'").selectExpr(
            "zone", "id", "v", "at", "if(_change_type = 'delete', 'd', 'u') as op"
        )
        sizes.append(rows.count())
        rows.write.format("siltstone").mode("append").options(
            root=lake.root, op_column="op", idempotency=f"copy:{batch_id}"
        ).save("shop.copy")

    def run(**options: str) -> None:
        stream = spark.readStream.format("siltstone").options(root=lake.root, feed="changes", **options)
        query = (
            stream.load("shop.orders")
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    run(max_rows="6")
    assert sizes == [6, 2]
    same_rows(copy.scan(fresh=True).to_arrow(), table.to_arrow().to_pylist())
    table.write(pa.table({"zone": ["eu"], "id": [2]}), "delete")
    table.compact(engine="local")
    write(table, (3, 8), "c")
    run()
    run()
    assert sizes == [6, 2, 3]
    same_rows(copy.scan(fresh=True).to_arrow(), table.to_arrow().to_pylist())
    with pytest.raises(Exception, match="a stream is one of changes"):
        spark.readStream.format("siltstone").option("root", lake.root).load("shop.orders").writeStream.format(
            "noop"
        ).option("checkpointLocation", str(tmp_path / "other")).start().processAllAvailable()
