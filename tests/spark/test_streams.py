"""`writeStream.format("siltstone")`: each batch of a query is one commit, however often it is run."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.unit.cdc.messages import change

import siltstone
from siltstone.spark.options import WriteOptions
from siltstone.spark.sink import _app_id
from siltstone.testing.oracle import same_rows


@dataclass
class Query:
    """A query that reads JSON lines from a folder, one file a batch, and writes them to a table."""

    spark: SparkSession
    folder: Path
    table: str
    root: str
    schema: str = "id long, zone string"

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        self.source.mkdir(parents=True, exist_ok=True)
        name = f"{len(list(self.source.iterdir())):03}.json"
        aside = self.folder / name
        aside.write_text("\n".join(json.dumps(row) for row in rows))
        aside.rename(self.source / name)

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.source)).repartition(2)

    def run(self, frame: DataFrame | None = None, mode: str = "append", **options: str) -> None:
        """Run all batches that there are."""
        writer = (self.frame() if frame is None else frame).writeStream.format("siltstone").outputMode(mode)
        options = {"root": self.root, "checkpointLocation": str(self.checkpoint), **options}
        query = writer.queryName("orders").options(**options).trigger(availableNow=True).start(self.table)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_commit(self, batch_id: int) -> None:
        """Leave the checkpoint as the death of a driver does between the commit of a batch and Spark's note of it."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def rows(*ids: int, zone: str = "eu") -> list[dict[str, Any]]:
    return [{"id": number, "zone": zone} for number in ids]


def files(table: siltstone.Table) -> set[Path]:
    return set(Path(table.lake.root).rglob("*.parquet"))


def positions(table: siltstone.Table) -> list[int]:
    return sorted({delta.stream_position for delta in table.deltas()})


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    """A table without a key, so that a row that comes twice is there twice."""
    return siltstone.open(local_root).create_table(
        "shop.orders", schema={"id": "int64", "zone": "string"}, partition_keys=["zone"]
    )


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path, table: siltstone.Table) -> Query:
    return Query(spark, tmp_path, table.name, table.lake.root)


def test_each_batch_is_committed_once_though_its_run_is_repeated_and_a_new_checkpoint_swallows_nothing(
    query: Query, table: siltstone.Table
) -> None:
    for number in range(2):
        query.add([*rows(number), *rows(number + 10, zone="us")])
    query.run()
    assert positions(table) == [1, 2]
    assert {delta.idempotency["app_id"] for delta in table.deltas() if delta.idempotency} == {
        _app_id(WriteOptions(query.root, table.name, checkpoint=str(query.checkpoint)))
    }
    before = files(table)
    query.forget_commit(1)
    query.run()
    assert positions(table) == [1, 2]
    assert files(table) == before
    query.add(rows(2))
    query.run()
    assert positions(table) == [1, 2, 3]
    same_rows(table.scan(fresh=True).to_arrow().to_pylist(), [*rows(0, 1, 2), *rows(10, 11, zone="us")])
    shutil.rmtree(query.checkpoint)
    query.run()
    assert positions(table) == [1, 2, 3, 4, 5, 6]
    assert table.scan(fresh=True).count() == 10


def test_a_name_that_is_used_again_with_another_checkpoint_stops_the_query(
    query: Query, table: siltstone.Table
) -> None:
    query.add(rows(1))
    query.add(rows(2))
    query.run(app_id="orders")
    shutil.rmtree(query.checkpoint)
    query.source.joinpath("000.json").unlink()
    with pytest.raises(Exception, match="batch 0 of 'orders' comes after its batch 1 is committed"):
        query.run(app_id="orders")
    assert positions(table) == [1, 2]


def test_a_batch_that_does_not_fit_or_fails_commits_nothing(query: Query, table: siltstone.Table) -> None:
    query.add(rows(*range(20)))
    broken = query.frame().withColumn(
        "id", sf.when(sf.spark_partition_id() == 1, sf.raise_error(sf.lit("no"))).otherwise(sf.col("id"))
    )
    with pytest.raises(Exception, match="no"):
        query.run(broken)
    with pytest.raises(Exception, match=r"shop\.orders: column 'id'"):
        query.run(query.frame().withColumn("id", sf.lit("x")))
    assert positions(table) == []
    query.run()
    assert table.scan(fresh=True).count() == 20


def test_output_modes_that_would_replace_rows_are_refused_with_a_reason(query: Query, table: siltstone.Table) -> None:
    query.add(rows(1))
    counted = query.frame().groupBy("zone").agg(sf.max("id").alias("id"))
    with pytest.raises(Exception, match="output mode complete would replace the table with each batch"):
        query.run(counted, mode="complete")
    with pytest.raises(Exception, match="siltstone does not support Update mode"):
        query.run(counted, mode="update")
    query.spark.conf.set("spark.sql.streaming.checkpointLocation", str(query.folder / "conf"))
    try:
        writer = query.frame().writeStream.format("siltstone").option("root", query.root).trigger(availableNow=True)
        with pytest.raises(Exception, match="give the query a name of its own"):
            writer.start(table.name).awaitTermination()
    finally:
        query.spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_batch_is_written_once_by_a_function_of_three_lines(query: Query, table: siltstone.Table) -> None:
    query.add(rows(1, 2, 3))
    counted = query.frame().groupBy("zone").agg(sf.max("id").alias("id")).select("id", "zone")

    def write(frame: DataFrame, batch_id: int) -> None:
        once = frame.write.format("siltstone").mode("append").option("idempotency", f"orders-by-zone:{batch_id}")
        once.option("root", query.root).save(query.table)

    for _ in range(2):
        stream = counted.writeStream.outputMode("update").foreachBatch(write)
        stream.option("checkpointLocation", str(query.checkpoint)).trigger(availableNow=True).start().awaitTermination()
        query.forget_commit(0)
    assert positions(table) == [1]
    same_rows(table.scan(fresh=True).to_arrow().to_pylist(), rows(3))


def test_documents_take_streams(spark: SparkSession, query: Query, table: siltstone.Table) -> None:
    docs = table.lake.create_document_table("shop.reviews")
    of_docs = Query(spark, query.folder / "docs", docs.name, query.root, "key string, delta string")
    of_docs.add([{"key": f"r{number}", "delta": '{..,"n":1}'} for number in range(4)])
    for _ in range(2):
        of_docs.run()
        of_docs.forget_commit(0)
    assert positions(docs.table) == [1]
    assert [docs.get(f"r{number}")["~version"] for number in range(4)] == [1] * 4


def test_a_stream_of_change_events_is_the_table_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    lake = siltstone.open(tmp_path / "lake")
    columns = {"id": "int64", "zone": "string", "_source_position": "binary"}
    table = lake.create_table("shop.orders", schema=columns, primary_keys=["id"], sort_keys=["_source_position"])
    query = Query(spark, tmp_path, "shop.orders", lake.root, "key string, value string, topic string")

    def events(*messages: Any) -> list[dict[str, Any]]:
        made = []
        for message in messages:
            row = message and (message["after"] or message["before"])
            key = json.dumps({"id": row["id"]}) if row else None
            made.append({"key": key, "value": json.dumps(message) if message else None, "topic": "shop"})
        return made

    query.add(events(*(change("c", number, {"id": number, "zone": "new"}) for number in range(1, 9))))
    query.add(events(change("u", 20, {"id": 1, "zone": "paid"}), change("d", 21, {"id": 2, "zone": None}), None))
    # These come late, and one comes again.
    query.add(events(change("u", 12, {"id": 2, "zone": "late"}), change("u", 20, {"id": 1, "zone": "paid"})))
    query.run(format="debezium")
    query.forget_commit(2)
    query.run(format="debezium")
    expected = [{"id": 1, "zone": "paid"}, *({"id": number, "zone": "new"} for number in range(3, 9))]
    same_rows(table.scan(["id", "zone"], fresh=True).to_arrow(), expected)
    table.compact(spark=spark)
    same_rows(table.scan(["id", "zone"]).to_arrow(), expected)
    with pytest.raises(Exception, match="debezium events are in a column value"):
        query.run(
            query.frame().withColumnRenamed("value", "data"),
            format="debezium",
            checkpointLocation=str(tmp_path / "other"),
        )
