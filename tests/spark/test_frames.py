"""Tables and data frames: executors write deltas, and read what is compacted."""

import contextlib
import datetime
import decimal
import io
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.unit.rounds.compaction import MINOR, compact

import siltstone
from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.model.buckets import CompactedFile
from siltstone.spark import native
from siltstone.spark.frames import spark_schema
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


@pytest.mark.parametrize(
    "name", ["[ab]", "{a,b}", "a*", "a?", "a\\b", "a b", "100%", "a%20b", "%C3%BC", "ü", "a#b", "a+b", "a:b", "file:"]
)
def test_a_root_whose_name_could_be_a_pattern_or_a_url_is_that_folder(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    orders = siltstone.open(tmp_path / name).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    orders.write(pa.table({"id": [1, 2, 3]}))
    compact(orders)
    orders.write(pa.table({"id": [2]}), "delete")
    compact(orders)
    assert orders.current_rounds()[0].files[0].deletion_vector is not None
    same_rows(rows(orders.to_spark(spark)), [{"id": 1}, {"id": 3}])


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


def plan_of(frame: DataFrame) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain(extended=True)
    return printed.getvalue()


SIZE = 3 * 32768 + 70
BORDERS = [0, 62, 63, 64, 65, 32767, 32768, 98303, 98304, SIZE - 2, SIZE - 1]


@pytest.fixture(scope="module")
def long_table(tmp_path_factory: pytest.TempPathFactory) -> siltstone.Table:
    """A table whose rows are dead at the borders of words, in its first file of two."""
    table = siltstone.open(tmp_path_factory.mktemp("long")).create_table(
        "shop.long",
        schema=[
            {"name": "id", "type": "int64"},
            {"name": "x", "type": "double"},
            {"name": "word", "type": "string"},
            {"name": "in", "type": {"struct": [{"name": "a.b", "type": "float"}, {"name": "n", "type": "int32"}]}},
        ],
        primary_keys=["id"],
    )
    values = [float("nan") if number % 1000 == 7 else float(number) for number in range(SIZE)]
    words = [str(number % 5) for number in range(SIZE)]
    inside = [{"a.b": float("nan"), "n": 1} if value != value else None for value in values]
    inside[1] = {"a.b": -0.0, "n": 2}
    columns = {"id": range(SIZE), "x": values, "word": words, "in": pa.array(inside, table.schema.field("in").type)}
    table.write(pa.table(columns))
    compact(table)
    table.write(pa.table({"id": BORDERS[1:]}), "delete")
    table.write(pa.table({"id": [0], "x": [-1.0], "word": ["new"]}))
    compact(table)
    dead = [file.record_count - file.live_count for file in table.current_rounds()[0].files]
    assert sorted(dead) == [0, len(BORDERS)]
    return table


@pytest.mark.parametrize("where", ["here", "in two scans", "on executors", "in Python"])
def test_exactly_the_dead_rows_are_left_out(
    spark: SparkSession, long_table: siltstone.Table, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "in two scans":
        monkeypatch.setattr(native, "_LEAST_PART", SIZE + 1)
    if where == "on executors":
        monkeypatch.setattr(native, "_FEW_SCANS", 0)
    if where == "in Python":
        monkeypatch.setattr(native, "_most_rows", lambda spark: SIZE - 1)
    frame = long_table.to_spark(spark)
    assert ("MapInArrow" in plan_of(frame)) is (where in ("on executors", "in Python"))
    assert ("Subquery" in plan_of(frame)) is (where != "in Python")
    assert ("Union" in plan_of(frame)) is (where in ("in two scans", "in Python"))
    ids = frame.select("id").toArrow().column("id").to_pylist()
    assert sorted(ids) == [0, *(number for number in range(SIZE) if number not in BORDERS)]
    assert frame.count() == SIZE - len(BORDERS) + 1 == long_table.to_spark(spark, []).count()
    # To Spark, NaN is greater than any number.
    numbers = {row.id for row in frame.where(f"x > {SIZE - 4}").collect()}
    nans = {number for number in range(SIZE) if number % 1000 == 7}
    assert numbers == nans | {SIZE - 3}
    for condition in ("x = double('nan')", "in.`a.b` > 5", "in.`a.b` != 0", "in.n = 1"):
        assert {row.id for row in frame.where(condition).select("id").collect()} == nans, condition
    assert frame.where("in is null").count() == SIZE - len(BORDERS) + 1 - len(nans) - 1
    assert str(frame.where("id = 1").collect()[0]["in"]["a.b"]) == "-0.0"
    assert [tuple(row) for row in frame.where("word = 'new'").select("x", "id").collect()] == [(-1.0, 0)]


def test_filters_and_columns_reach_files_with_dead_rows(spark: SparkSession, long_table: siltstone.Table) -> None:
    plan = plan_of(long_table.to_spark(spark).where("id = 5").select("id").withColumnRenamed("id", "n"))
    physical = plan[plan.index("== Physical Plan ==") :]
    assert physical.count("PushedFilters: [IsNotNull(id), EqualTo(id,5)]") == 1
    assert physical.count("ReadSchema: struct<id:bigint,_tmp_metadata") == 1
    # Only rows that pass the filter are looked up, where Spark knows how to put off what is expensive.
    is_put_off = spark.version >= "4.2"
    assert (physical.index("Filter (isnotnull(_siltstone_dead") < physical.index("Filter (isnotnull(id")) is is_put_off


def test_queries_can_ask_for_the_file_and_position_of_a_row(spark: SparkSession, long_table: siltstone.Table) -> None:
    file = next(file for file in long_table.current_rounds()[0].files if file.deletion_vector)
    found = long_table.to_spark(spark).where("id = 5").select("_metadata.file_name", "_metadata.row_index", "_metadata")
    (row,) = found.collect()
    assert (row.file_name, row.row_index) == (file.uri.rpartition("/")[2], row._metadata.row_index)
    assert 0 <= row.row_index < SIZE


def test_rows_of_no_columns_are_counted_without_reading_a_file(spark: SparkSession, local_root: str) -> None:
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    assert table.to_spark(spark, []).count() == 0
    table.write(pa.table({"id": range(10)}))
    compact(table)
    table.write(pa.table({"id": [3, 20]}), "delete")
    compact(table)
    for file in table.current_rounds()[0].files:
        Path(local_root, file.uri).unlink()
    frame = table.to_spark(spark, [])
    assert (frame.columns, frame.count()) == ([], 9)


@pytest.mark.parametrize("least_part", [0, 8])
def test_files_of_one_name_keep_their_own_rows(
    spark: SparkSession, local_root: str, monkeypatch: pytest.MonkeyPatch, least_part: int
) -> None:
    monkeypatch.setattr(native, "_LEAST_PART", least_part)
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    files = []
    for number, dead in enumerate(([0, 1], [2], [])):
        table.write(pa.table({"id": [10 * number + each for each in range(4)]}))
        compact(table, MINOR)
        table.write(pa.table({"id": [10 * number + each for each in dead]}), "delete")
        compact(table, MINOR)
        data = table.current_rounds()[0].files[-1]
        folder = Path(local_root, f"copies/{number}")
        folder.mkdir(parents=True)
        (folder / "one.parquet").write_bytes(Path(local_root, data.uri).read_bytes())
        files.append(CompactedFile.from_serializable({**data, "uri": f"copies/{number}/one.parquet"}))
    assert [file.deletion_vector is None for file in files] == [False, False, True]
    frames, left = native.read_files(spark, local_root, spark_schema(table.schema), files)
    assert left == []
    assert sorted(row.id for frame in frames for row in frame.collect()) == [2, 3, 10, 11, 13, 20, 21, 22, 23]


@pytest.mark.parametrize("name", ["_metadata", "_Metadata"])
def test_a_column_may_have_the_name_that_spark_has_for_a_file_and_position(
    spark: SparkSession, local_root: str, name: str
) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.odd", schema={"id": "int64", name: "string"}, primary_keys=["id"]
    )
    table.write(pa.table({"id": [1, 2], name: ["a", "b"]}))
    compact(table)
    table.write(pa.table({"id": [1]}), "delete")
    compact(table)
    assert rows(table.to_spark(spark)) == [{"id": 2, name: "b"}]


def test_another_file_in_place_of_a_data_file_with_dead_rows_is_noticed(spark: SparkSession, local_root: str) -> None:
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    table.write(pa.table({"id": range(1000)}))
    compact(table)
    table.write(pa.table({"id": [3]}), "delete")
    compact(table)
    (file,) = [file for file in table.current_rounds()[0].files if file.deletion_vector]
    for count in range(1001, 1009):
        pq.write_table(pa.table({"id": pa.array(range(count))}), Path(local_root, file.uri), compression="none")
        with pytest.raises(SparkRuntimeException, match="not the one that was compacted; run `siltstone fsck`"):
            table.to_spark(spark).collect()


def test_a_file_without_a_live_row_has_none(spark: SparkSession, local_root: str) -> None:
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    for ids in ([1, 2], [3, 4]):
        table.write(pa.table({"id": ids}))
        compact(table)
    table.write(pa.table({"id": [1, 2]}), "delete")
    compact(table)
    same_rows(rows(table.to_spark(spark)), [{"id": 3}, {"id": 4}])
    table.write(pa.table({"id": [3, 4]}), "delete")
    compact(table)
    assert rows(table.to_spark(spark)) == []
    assert table.to_spark(spark).count() == 0


@pytest.mark.parametrize("few", [0, 32])
def test_a_damaged_deletion_vector_is_noticed(
    spark: SparkSession, local_root: str, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(native, "_FEW_SCANS", few)
    table = siltstone.open(local_root).create_table("shop.orders", schema={"id": "int64"}, primary_keys=["id"])
    table.write(pa.table({"id": [1, 2]}))
    compact(table)
    table.write(pa.table({"id": [1]}), "delete")
    compact(table)
    (vector,) = [file.deletion_vector for file in table.current_rounds()[0].files if file.deletion_vector]
    Path(local_root, vector.uri).write_bytes(b"no")
    # Spark may wrap what a task of a subquery raises, depending on who awaits it first.
    error = CorruptionError if few else (PythonException, Py4JJavaError)
    with pytest.raises(error, match="deletion vector is damaged"):
        table.to_spark(spark).collect()


@pytest.mark.parametrize("how", ["natively", "in a scan for each", "on executors", "in Python"])
def test_files_that_buckets_share_are_read_once_and_without_what_was_rewritten_away(
    spark: SparkSession, local_root: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "in a scan for each":
        monkeypatch.setattr(native, "_MOST_FILES", 1)
    if how == "on executors":
        monkeypatch.setattr(native, "_FEW_SCANS", 0)
    if how == "in Python":
        monkeypatch.setattr(native, "_most_rows", lambda spark: 0)
    table = siltstone.open(local_root).create_table(
        "shop.orders", schema={"id": "int64", "v": "string"}, primary_keys=["id"]
    )
    small = replace(MINOR, bucket_rows=20)
    for value, step in (("a", 1), ("b", 2), ("c", 3)):
        ids = list(range(0, 200, step))
        table.write(pa.table({"id": ids, "v": [f"{value}{number}" for number in ids]}))
        compact(table, small)
    shared = {file.uri for file in table.current_rounds()[0].files if file.is_shared}
    assert len(shared) == 3
    # Of one bucket the slices are rewritten away; its rows stay in the files of the others.
    table.write(pa.table({"id": [7], "v": ["d7"]}))
    compact(table, replace(small, max_dead_fraction=0.0))
    assert shared <= {file.uri for file in table.current_rounds()[0].files}
    expected = oracle_of(table).rows()
    frame = table.to_spark(spark)
    same_rows(rows(frame), expected)
    assert frame.count() == len(expected) == table.to_spark(spark, []).count()
    same_rows(
        rows(frame.where("v like 'b%' and id > 50")),
        [row for row in expected if is_b(row) and int(str(row["id"])) > 50],
    )
    same_rows(rows(table.scan(where="v >= 'c'").to_spark(spark)), [row for row in expected if str(row["v"]) >= "c"])
    table.write(pa.table({"id": range(190, 210), "v": ["e"] * 20}))
    same_rows(rows(table.scan(fresh=True).to_spark(spark)), oracle_of(table).rows())


def is_b(row: dict[str, object]) -> bool:
    return str(row["v"]).startswith("b")
