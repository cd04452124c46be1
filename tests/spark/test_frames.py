"""Tables and data frames: executors write deltas, and read what is compacted."""

import datetime
import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import siltstone
from siltstone.errors import InvalidInputError
from siltstone.spark.source import register
from siltstone.testing.oracle import oracle_of, same_rows

SCHEMA = {
    "id": "int64",
    "zone": "string",
    "price": "decimal(10,2)",
    "at": "timestamp",
    "seen": "timestamp_utc",
    "tags": {"list": "string"},
}


@pytest.fixture
def orders(local_root: str) -> siltstone.Table:
    return siltstone.open(local_root).create_table(
        "shop.orders", schema=[{"name": name, "type": kind} for name, kind in SCHEMA.items()], primary_keys=["id"]
    )


def frame(spark: SparkSession, start: int, stop: int) -> DataFrame:
    return spark.range(start, stop, 1, 4).select(
        "id",
        sf.when(sf.col("id") % 3 != 0, sf.concat(sf.lit("z"), sf.col("id") % 5)).alias("zone"),
        (sf.col("id") / 100).cast("decimal(10,2)").alias("price"),
        sf.lit(datetime.datetime(2026, 11, 15, 10, 30)).cast("timestamp_ntz").alias("at"),
        sf.timestamp_micros("id").alias("seen"),
        sf.array(sf.lit("a"), sf.lit(None)).alias("tags"),
    )


def rows(table: DataFrame) -> list[dict[str, object]]:
    arrow: pa.Table = table.toArrow()
    found: list[dict[str, object]] = arrow.to_pylist()
    return found


@pytest.mark.parametrize("name", ["[ab]", "{a,b}", "a*", "a?", "a\\b"])
def test_a_root_whose_name_could_be_a_pattern_is_that_folder(spark: SparkSession, tmp_path: Path, name: str) -> None:
    orders = siltstone.open(tmp_path / name).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    orders.write(pa.table({"id": [1, 2, 3]}))
    orders.compact(spark=spark)
    same_rows(rows(orders.to_spark(spark)), [{"id": 1}, {"id": 2}, {"id": 3}])


def test_executors_write_one_delta_that_the_driver_commits(spark: SparkSession, orders: siltstone.Table) -> None:
    assert orders.write(frame(spark, 0, 100), idempotency=("job", 1)) == 1
    assert orders.write(frame(spark, 0, 100), idempotency=("job", 1)) == 1
    (delta,) = orders.deltas()
    assert len(delta.manifest.entries) == 4
    assert delta.manifest.record_count == 100
    assert orders.write(spark.range(10).toDF("id"), type="delete") == 2
    assert orders.write(frame(spark, 0, 0)) == 3
    same_rows(orders.to_arrow(include_uncompacted=True), oracle_of(orders).rows())
    assert orders.to_arrow(["price"], as_of=1).to_pylist()[-1] == {"price": decimal.Decimal("0.99")}


def test_a_wrong_frame_is_refused_before_any_task_runs(spark: SparkSession, orders: siltstone.Table) -> None:
    with pytest.raises(siltstone.InvalidInputError, match="'id' is int64 in the table but string"):
        orders.write(spark.range(3).select(sf.col("id").cast("string").alias("id")))
    assert orders.deltas() == []


def test_frames_go_to_their_partitions_in_one_commit(spark: SparkSession, local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.zoned", schema={"id": "int64", "zone": "string"}, partition_keys=["zone"]
    )
    table.write(frame(spark, 0, 60).select("id", "zone"))
    deltas = table.deltas()
    assert {delta.stream_position for delta in deltas} == {1}
    assert len(deltas) == len({delta.locator for delta in deltas}) == 6
    assert sum(delta.manifest.record_count for delta in deltas) == 60


@pytest.mark.parametrize("is_full", [True, False], ids=["clean", "with dead rows"])
def test_compacted_rows_come_back_as_a_frame_and_by_format(
    spark: SparkSession, orders: siltstone.Table, *, is_full: bool
) -> None:
    orders.write(frame(spark, 0, 1000))
    orders.compact(spark=spark)
    orders.write(frame(spark, 900, 950).withColumn("zone", sf.lit("new")))
    orders.write(spark.range(0, 1000, 50).toDF("id"), type="delete")
    orders.compact(spark=spark, full=is_full)
    assert any(file.deletion_vector for file in orders.current_rounds()[0].files) != is_full
    expected = oracle_of(orders).rows()
    same_rows(rows(orders.to_spark(spark)), expected)
    chosen = orders.to_spark(spark, ["zone", "id"])
    assert chosen.columns == ["zone", "id"]
    assert chosen.where("zone = 'new'").count() == 49
    register(spark)
    source = spark.read.format("siltstone").option("root", orders.lake.root).load("shop.orders")
    same_rows(rows(source), expected)
    assert [row.zone for row in source.where("id = 901").collect()] == ["new"]
    assert source.where("id = 950").count() == 0


@pytest.mark.parametrize("is_partitioned", [True, False], ids=["partitioned", "in one piece"])
def test_frames_can_include_what_is_not_compacted_and_show_older_states(
    spark: SparkSession, local_root: str, *, is_partitioned: bool
) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.zoned",
        schema={"id": "int64", "zone": "string"},
        primary_keys=["zone", "id"],
        partition_keys=["zone"] if is_partitioned else [],
    )
    table.write(frame(spark, 0, 60).select("id", "zone"))
    table.compact(spark=spark)
    before = rows(table.to_spark(spark))
    table.write(frame(spark, 55, 70).select("id", "zone"))
    table.write(pa.table({"zone": ["z1", "z2"], "id": [1, 2]}), type="delete")
    same_rows(rows(table.to_spark(spark)), before)
    same_rows(rows(table.to_spark(spark, include_uncompacted=True)), oracle_of(table).rows())
    same_rows(rows(table.to_spark(spark, ["id"], as_of=1)), [{"id": row["id"]} for row in before])
    table.compact(spark=spark)
    same_rows(rows(table.to_spark(spark, as_of=1)), before)
    assert rows(table.to_spark(spark, as_of=0)) == []


def test_frames_have_the_columns_asked_for_and_all_rows(spark: SparkSession, local_root: str) -> None:
    table = siltstone.open(local_root).create_table("shop.orders", schema=SCHEMA, primary_keys=["id"])
    table.write(pa.table({"id": [1, 2, 3]}))
    table.compact(spark=spark)
    table.write(pa.table({"id": [3]}), "delete")
    table.compact(spark=spark)
    table.alter(add_columns={"more": "int64"})
    for how in ({}, {"include_uncompacted": True}, {"as_of": 2}):
        assert [tuple(row) for row in table.to_spark(spark, ["more"], **how).collect()] == [(None,)] * 2
        nothing = table.to_spark(spark, [], **how)
        assert (nothing.columns, nothing.count()) == ([], 2)
        with pytest.raises(siltstone.InvalidInputError, match="'nope' is not a column; there are"):
            table.to_spark(spark, ["nope"], **how)


def test_filters_leave_row_groups_unread(spark: SparkSession, local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.long", schema={"id": "int64", "day": "date", "share": "double", "name": "string"}, primary_keys=["id"]
    )
    size = 300_000
    day = datetime.date(2026, 1, 1)
    table.write(
        pa.table(
            {
                "id": range(size),
                "day": [day + datetime.timedelta(days=number // 1000) for number in range(size)],
                "share": [float("nan") if number == 7 else number / size for number in range(size)],
                "name": [f"{number:07}" for number in range(size)],
            }
        )
    )
    table.compact(spark=spark)
    (file,) = [file.uri for file in table.current_rounds()[0].files]
    register(spark)
    source = spark.read.format("siltstone").option("root", table.lake.root).load("shop.long")
    # The last row group becomes unreadable: only those who need it notice.
    data = Path(table.lake.root, file)
    last = pq.ParquetFile(data).metadata.row_group(2)
    begin = last.column(0).file_offset or last.column(0).data_page_offset
    content = bytearray(data.read_bytes())
    content[begin : begin + 1000] = bytes(1000)
    data.write_bytes(content)
    for condition, count in [
        ("id < 1000", 1000),
        ("id <= 999 and id >= 5", 995),
        ("id in (3, 4, 5)", 3),
        ("day = date'2026-01-03'", 1000),
        ("name > '0000100' and name < '0000103'", 2),
    ]:
        assert source.where(condition).count() == count, condition
    for condition in ["id > 290000", "day > date'2026-10-01'", "share > 0.99", "name like '%9'"]:
        with pytest.raises(Exception, match="damaged"):
            source.where(condition).count()


def test_a_table_that_was_never_compacted_is_an_empty_frame(spark: SparkSession, orders: siltstone.Table) -> None:
    assert orders.to_spark(spark).collect() == []
    assert orders.to_spark(spark).columns == list(SCHEMA)


def test_the_format_says_what_it_needs(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with pytest.raises(Exception, match="namespace"):
        spark.read.format("siltstone").load("orders")
    with pytest.raises(Exception, match=r"no table shop\.nothing"):
        spark.read.format("siltstone").option("root", str(tmp_path)).load("shop.nothing")


def test_key_only_deletes_come_in_frames_where_columns_must_not_be_null(spark: SparkSession, local_root: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string(), False)])
    table = siltstone.open(local_root).create_table("shop.strict", schema=schema, primary_keys=["id"])
    table.write(spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], "id long, v string"))
    table.compact(spark=spark)
    table.write(spark.createDataFrame([(1, "d")], "id long, op string"), op_column="op")
    mixed = spark.createDataFrame([(2, None, "d"), (4, "e", "c")], "id long, v string, op string")
    table.write(mixed, op_column="op")
    table.compact(spark=spark)
    expected = [{"id": 3, "v": "c"}, {"id": 4, "v": "e"}]
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
    assert [row.asDict() for row in table.to_spark(spark).orderBy("id").collect()] == expected
    newest = table.to_spark(spark, include_uncompacted=True)
    assert [row.asDict() for row in newest.orderBy("id").collect()] == expected
    with pytest.raises(InvalidInputError, match="only rows that are deletes may leave it out"):
        table.write(spark.createDataFrame([(1, "u")], "id long, op string"), op_column="op")
