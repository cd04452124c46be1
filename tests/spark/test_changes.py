"""Changes and deltas on Spark: between two bounds as a data frame, and as streams that go on where they were."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import siltstone
from siltstone.spark.stream_limits import READS_STREAMS
from siltstone.testing.oracle import same_rows

COLUMNS = ["zone", "id", "v", "at"]


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


def test_changes_are_a_data_frame(spark: SparkSession, table: siltstone.Table) -> None:
    def changes(**options: str) -> DataFrame:
        return spark.read.format("siltstone").options(root=table.lake.root, **options).load(table.name)

    frame = changes(changes_after="1")
    assert frame.columns == [*COLUMNS, "_change_type", "_round", "_position", "_committed_at"]
    found = sorted((row["id"], row["_change_type"], row["v"], row["_round"]) for row in frame.collect())
    assert found == [
        (0, "update_after", "b", 2),
        (0, "update_before", "a", 2),
        (1, "update_after", "b", 2),
        (1, "update_before", "a", 2),
    ]
    with pytest.raises(Exception, match="unknown option as_of"):
        changes(changes_after="1", as_of="1")


@pytest.mark.skipif(not READS_STREAMS, reason="Spark 4.1 reads no streams of ours")
@pytest.mark.parametrize("feed", ["changes", "deltas"])
def test_a_stream_of_a_feed_makes_another_table_the_same(
    spark: SparkSession, table: siltstone.Table, tmp_path: Path, feed: str
) -> None:
    lake = table.lake
    keys: Any = {"primary_keys": ["zone", "id"], "partition_keys": ["zone"]}
    if feed == "changes":
        copy = lake.create_table("shop.copy", schema=table.schema, **keys)
        of_feed, select = {"images": "after"}, ["if(_change_type = 'delete', 'd', 'u') as op"]
    else:
        # Rows of deltas come in any order, so that theirs is kept with them.
        schema = table.schema.append(pa.field("position", pa.int64())).append(pa.field("row", pa.int64()))
        copy = lake.create_table("shop.copy", schema=schema, sort_keys=["position", "row"], **keys)
        of_feed, select = {}, ["if(_op like 'delete%', 'd', 'u') as op", "_position as position", "_row as row"]

    def run() -> int:
        reader = spark.readStream.format("siltstone").options(root=lake.root, feed=feed, snapshot="true", **of_feed)
        writer = reader.option("max_positions", "1").load("shop.orders").selectExpr(*COLUMNS, *select).writeStream
        options = {"root": lake.root, "op_column": "op", "checkpointLocation": str(tmp_path / "checkpoint")}
        query = writer.format("siltstone").options(**options).trigger(availableNow=True).start("shop.copy")
        try:
            query.awaitTermination()
        finally:
            query.stop()
        same_rows(copy.scan(COLUMNS, fresh=True).to_arrow(), table.to_arrow().to_pylist())
        return len({delta.stream_position for delta in copy.deltas()})

    assert run() == 1
    table.write(pa.table({"zone": ["eu"], "id": [2]}), "delete")
    table.compact(engine="local")
    write(table, (3, 4, 8), "c")
    assert run() == 3
