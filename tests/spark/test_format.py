"""`format("siltstone")`, found by Spark itself: options, tables in SQL, writes, and filters with and without push-down."""

import datetime
import decimal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.unit.rounds.compaction import MINOR, compact, completion_of

import siltstone
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.spark.source import register
from siltstone.table.completion import compacted_partition
from siltstone.testing.oracle import same_rows

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["true", "false"], ids=["push-down", "no push-down"])
def spark_either_way(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    spark.conf.set(PUSH_DOWN, request.param)
    yield spark
    spark.conf.unset(PUSH_DOWN)


@pytest.fixture
def table(spark: SparkSession, local_root: str) -> siltstone.Table:
    """A table with three deltas, of which two are compacted, and a column whose name has a comma."""
    made = siltstone.open(local_root).create_table(
        "shop.orders", schema={"id": "int64", "zone": "string", "a,b": "double"}, primary_keys=["id"]
    )
    made.write(pa.table({"id": range(20), "zone": ["old"] * 20, "a,b": [0.5] * 20}))
    made.write(pa.table({"id": [3, 20], "zone": ["new", "new"]}))
    made.compact(spark=spark)
    made.write(pa.table({"id": [4], "zone": ["newest"]}))
    made.write(pa.table({"id": [5]}), type="delete")
    return made


def load(spark: SparkSession, table: siltstone.Table, **options: str) -> DataFrame:
    return spark.read.format("siltstone").options(root=table.lake.root, **options).load(table.name)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def test_options_are_honoured_and_filters_hold(spark_either_way: SparkSession, table: siltstone.Table) -> None:
    spark = spark_either_way
    assert rows(load(spark, table).where("id = 3 and zone = 'new'")) == [{"id": 3, "zone": "new", "a,b": None}]
    pruned = load(spark, table, columns='["a,b", "id"]', as_of="1")
    assert pruned.columns == ["a,b", "id"]
    same_rows(rows(pruned.where("id < 4")), [{"a,b": 0.5, "id": number} for number in range(4)])
    time = datetime.datetime.fromtimestamp(table.deltas()[-1].committed_at / 1000, datetime.UTC)
    for option in ({"fresh": "true"}, {"as_of": time.isoformat()}):
        same_rows(rows(load(spark, table, **option)), table.to_arrow(include_uncompacted=True).to_pylist())


def test_tags_clones_and_what_an_erasure_left_are_read(spark: SparkSession, table: siltstone.Table) -> None:
    tagged = table.to_arrow(as_of=3).to_pylist()
    table.tag("kept", as_of=3)
    table.compact(spark=spark)
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    same_rows(rows(load(spark, table, as_of="kept")), tagged)
    table.lake.clone_table(table.name, "shop.twin", as_of="kept")
    twin = table.lake.table("shop.twin")
    twin.erase({"id": 20})
    expected = [row for row in tagged if row["id"] != 20]
    same_rows(rows(load(spark, twin, fresh="true")), expected)
    twin.compact(spark=spark)
    for frame in (load(spark, twin), twin.to_spark(spark)):
        same_rows(rows(frame), expected)


def test_versions_of_a_table_that_keeps_history_are_chosen_by_options(spark: SparkSession, local_root: str) -> None:
    made = siltstone.open(local_root).create_table(
        "shop.prices",
        schema={"id": "int64", "at": "int64", "v": "string"},
        primary_keys=["id"],
        sort_keys=["at"],
        merge_engine="history",
    )
    made.write(
        pa.table({"id": [1, 1, 2], "at": [10, 30, 5], "v": ["a", "c", "x"], "op": ["u", "u", "u"]}), op_column="op"
    )
    made.compact(spark=spark)
    frame = spark.createDataFrame([(1, 20, "b", "u"), (2, 9, None, "d")], "id long, at long, v string, op string")
    frame.write.format("siltstone").options(root=local_root, op_column="op").mode("append").save(made.name)
    made.compact(spark=spark)
    same_rows(rows(load(spark, made)), made.to_arrow().to_pylist())
    assert [row["v"] for row in rows(load(spark, made, current_only="true"))] == ["c"]
    assert sorted(row["v"] for row in rows(load(spark, made, valid_at="8").where("at < 20"))) == ["x"]
    assert [row["v"] for row in rows(made.scan(valid_at=25).to_spark(spark))] == ["b"]
    assert made.to_spark(spark, current_only=True).count() == 1


def test_options_that_are_wrong_for_the_table_are_refused(spark: SparkSession, table: siltstone.Table) -> None:
    with pytest.raises(Exception, match=r"unknown option asof; .*did you mean as_of\?"):
        load(spark, table, asOf="1")
    with pytest.raises(Exception, match="'nope' is not a column"):
        load(spark, table, columns="id,nope")


def test_a_table_that_was_never_compacted_is_empty_by_format(spark: SparkSession, local_root: str) -> None:
    made = siltstone.open(local_root).create_table("shop.empty", schema={"id": "int64"}, primary_keys=["id"])
    assert rows(load(spark, made)) == []
    assert rows(load(spark, made, fresh="true")) == []


def test_tables_created_in_sql_are_read_and_wrong_options_are_refused(
    spark: SparkSession, table: siltstone.Table
) -> None:
    root = table.lake.root
    created = []

    def create(name: str, rest: str) -> None:
        spark.sql(f"CREATE TABLE {name} {rest}")
        created.append(name)

    try:
        create("by_table", f"USING siltstone OPTIONS (root '{root}', table 'shop.orders')")
        create("by_path", f"USING siltstone OPTIONS (root '{root}', path 'shop.orders', columns 'zone,id')")
        same_rows(rows(spark.table("by_table")), table.to_arrow().to_pylist())
        assert spark.sql("SELECT * FROM by_path WHERE id = 20").collect() == [("new", 20)]
        assert spark.sql("SELECT count(*) FROM by_table WITH (as_of = '1')").collect() == [(20,)]
        with pytest.raises(Exception, match=r"unknown option tabel.*did you mean table\?"):
            create("wrong", f"USING siltstone OPTIONS (root '{root}', tabel 'shop.orders')")
        with pytest.raises(Exception, match=r"there is no table shop\.nothing"):
            create("wrong", f"USING siltstone OPTIONS (root '{root}', table 'shop.nothing')")
        create("with_columns", f"(id BIGINT) USING siltstone OPTIONS (root '{root}', table 'shop.orders')")
        with pytest.raises(Exception, match=r"is missing; write .*without columns"):
            spark.table("with_columns").collect()
        table.alter(add_columns={"note": "string"})
        assert spark.table("by_table").columns == ["id", "zone", "a,b"]
        assert spark.table("by_table").count() == 21
    finally:
        for name in created:
            spark.sql(f"DROP TABLE {name}")


def save(frame: DataFrame, table: siltstone.Table, **options: str) -> None:
    frame.write.format("siltstone").mode("append").options(root=table.lake.root, **options).save(table.name)


def test_a_data_frame_is_written_as_one_commit_under_the_options_that_a_write_has(
    spark: SparkSession, table: siltstone.Table
) -> None:
    expected = {row["id"]: row["zone"] for row in table.scan(fresh=True).to_arrow().to_pylist()}
    frame = spark.range(30, 40, 1, 3).selectExpr("id", "'spark' AS zone", "id / 2 AS half")
    for _ in range(2):
        save(frame, table, idempotency="job:7")
    assert [delta.stream_position for delta in table.deltas()] == [1, 2, 3, 4, 5]
    assert table.schema.field("half").type == pa.float64()
    save(spark.sql("SELECT 30L AS id, 'd' AS op UNION ALL SELECT 31L, 'u'"), table, op_column="op")
    save(spark.sql("SELECT 'new' AS zone"), table, type="delete", delete_columns="zone")
    save(frame.where("id < 0"), table)
    expected |= dict.fromkeys(range(32, 40), "spark") | {31: None}
    found = table.scan(fresh=True).to_arrow().to_pylist()
    assert {row["id"]: row["zone"] for row in found} == {id_: zone for id_, zone in expected.items() if zone != "new"}


def test_a_write_that_cannot_be_is_refused_in_one_sentence_and_leaves_nothing(
    spark: SparkSession, table: siltstone.Table
) -> None:
    before = sorted(Path(table.lake.root).rglob("*"))
    rows_ = spark.sql("SELECT 1L AS id, 'x' AS zone")
    for options, message in (
        ({"path": "shop.nothing"}, r"there is no table shop\.nothing.*; create it first"),
        ({"colums": "id"}, "unknown option colums; use root, table, type"),
    ):
        writer = rows_.write.format("siltstone").mode("append").options(root=table.lake.root, path=table.name)
        with pytest.raises(Exception, match=message):
            writer.options(**options).save()
    with pytest.raises(Exception, match=r"shop\.orders: column 'id'"):
        save(rows_.selectExpr("array(id) AS id"), table)
    for options, message in (
        ({"op_column": "zone"}, "leave out op_column; an overwrite has the rows that are to be there"),
        ({"partitions": "some"}, "partitions is 'some'; use present"),
        ({"format": "debezium"}, "change events change rows, and replace no table"),
    ):
        writer = rows_.write.format("siltstone").mode("overwrite").options(root=table.lake.root, **options)
        with pytest.raises(Exception, match=message):
            writer.save(table.name)
    assert sorted(Path(table.lake.root).rglob("*")) == before


def test_inserts_go_to_the_table_that_they_name_and_never_to_the_one_that_rows_come_from(
    spark: SparkSession, table: siltstone.Table
) -> None:
    other = table.lake.create_table("shop.other", schema=table.schema, primary_keys=["id"])
    place = "USING siltstone OPTIONS (root '{}', table '{}')"
    spark.sql(f"CREATE TABLE read_from {place.format(table.lake.root, table.name)}")
    spark.sql(f"CREATE TABLE inserted {place.format(table.lake.root, other.name)}")
    spark.sql(f"CREATE TEMPORARY VIEW inserted_view {place.format(table.lake.root, other.name)}")
    before = [delta.stream_position for delta in table.deltas()]
    named = f"INSERT INTO inserted WITH (root = '{table.lake.root}', table = 'shop.other')"
    try:
        spark.sql(f"{named} SELECT * FROM read_from WHERE id < 2")
        spark.sql(f"{named} (id) VALUES (101)")
        spark.sql("INSERT INTO inserted_view SELECT * FROM read_from WHERE id = 2")
        frame = spark.table("read_from").where("id = 3")
        save(frame, other)
        assert (
            spark.read.schema(frame.schema)
            .format("siltstone")
            .option("root", table.lake.root)
            .load(other.name)
            .collect()
            == []
        )
        for values in ("SELECT * FROM read_from", "VALUES (102, 'x', 1)"):
            with pytest.raises(Exception, match=r"root is missing; write .* INSERT INTO name WITH \(root = "):
                spark.sql(f"INSERT INTO inserted {values}")
        kept = other.scan(["id", "zone"], fresh=True).to_arrow().sort_by("id").to_pylist()
        spark.sql("INSERT OVERWRITE inserted_view VALUES (100, 'sql', 0.25)")
    finally:
        spark.sql("DROP TABLE read_from")
        spark.sql("DROP TABLE inserted")
        spark.sql("DROP VIEW inserted_view")
    assert [delta.stream_position for delta in table.deltas()] == before
    assert [(row["id"], row["zone"]) for row in kept] == [(0, "old"), (1, "old"), (2, "old"), (3, "new"), (101, None)]
    assert other.scan(["id"], fresh=True).to_arrow().to_pylist() == [{"id": 100}]


def test_an_overwrite_replaces_the_table_or_the_partitions_that_rows_belong_to(
    spark: SparkSession, local_root: str
) -> None:
    visits = siltstone.open(local_root).create_table(
        "shop.visits", schema={"day": "string", "id": "int64"}, primary_keys=["day", "id"], partition_keys=["day"]
    )
    visits.write(pa.table({"day": ["mon", "mon", "tue"], "id": [1, 2, 1]}))

    def overwrite(frame: DataFrame, **options: str) -> list[tuple[str, int]]:
        frame.write.format("siltstone").mode("overwrite").options(root=local_root, **options).save("shop.visits")
        found = visits.scan(fresh=True).to_arrow().to_pylist()
        return sorted((row["day"], row["id"]) for row in found)

    assert overwrite(spark.sql("SELECT 'mon' AS day, 9L AS id"), partitions="present") == [("mon", 9), ("tue", 1)]
    assert overwrite(spark.sql("SELECT 'wed' AS day, 5L AS id")) == [("wed", 5)]
    assert overwrite(spark.sql("SELECT 'wed' AS day, 5L AS id WHERE false")) == []
    visits.compact(spark=spark)
    assert visits.scan().count() == 0


def test_renamed_columns_are_read_and_filtered_by_their_names_of_today(
    spark: SparkSession, table: siltstone.Table
) -> None:
    table.alter(rename_columns={"zone": "area", "id": "number"}, add_columns={"zone": "int32"})
    for options, expected in (({}, "old"), ({"fresh": "true"}, "newest")):
        frame = load(spark, table, columns="area,zone,number", **options)
        assert frame.where("number = 4 and zone is null").collect() == [(expected, None, 4)]


def test_a_schema_that_the_table_does_not_have_is_refused(spark: SparkSession, table: siltstone.Table) -> None:
    reader = spark.read.format("siltstone").option("root", table.lake.root)
    assert reader.schema("zone string, id bigint").load("shop.orders").where("id = 20").collect() == [("new", 20)]
    with pytest.raises(Exception, match="column 'id' is bigint, but Spark expects int"):
        reader.schema("id int").load("shop.orders").collect()
    with pytest.raises(Exception, match="'nope' is not a column"):
        reader.schema("nope int").load("shop.orders").collect()


def test_a_key_of_any_type_is_found_by_a_filter_on_all_of_it(spark: SparkSession, local_root: str) -> None:
    register(spark)
    parts: dict[str, tuple[str, Any, str]] = {
        "flag": ("bool", True, "true"),
        "tiny": ("int8", -5, "-5Y"),
        "number": ("int64", 1 << 40, "1099511627776L"),
        "ratio": ("float", 0.5, "0.5F"),
        "share": ("double", -0.0, "0.0D"),
        "price": ("decimal(20,4)", decimal.Decimal("12.5"), "12.5000BD"),
        "name": ("string", "ü", "'ü'"),
        "raw": ("binary", b"\x00\xff", "X'00FF'"),
        "day": ("date", datetime.date(2026, 3, 8), "DATE'2026-03-08'"),
        "opens_at": ("time", datetime.time(8, 30), "INTERVAL '0 08:30:00' DAY TO SECOND"),
        "at": ("timestamp", datetime.datetime(2026, 3, 8, 2, 30), "TIMESTAMP_NTZ'2026-03-08 02:30:00'"),
        "seen": (
            "timestamp_utc",
            datetime.datetime(2026, 3, 8, 7, 30, tzinfo=datetime.UTC),
            "TIMESTAMP'2026-03-08 07:30:00Z'",
        ),
        "lasts": ("duration", datetime.timedelta(hours=30), "INTERVAL '1 06:00:00' DAY TO SECOND"),
    }
    lake = siltstone.open(local_root)
    made = lake.create_table(
        "shop.keys", schema={name: kind for name, (kind, _, _) in parts.items()}, primary_keys=list(parts)
    )
    row = {name: value for name, (_, value, _) in parts.items()}
    others = [{**row, "number": number} for number in range(200)]
    made.write(pa.Table.from_pylist([row, *others], schema=made.schema))
    compact(made, replace(MINOR, bucket_rows=10))
    assert len(completion_of(made).buckets) > 8
    frame = load(spark, made)
    where = " AND ".join(f"{name} = {literal}" for name, (_, _, literal) in parts.items())
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert frame.where(where).count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_commit_is_seen_in_all_partitions_although_one_only_is_compacted(
    spark_either_way: SparkSession, local_root: str
) -> None:
    spark = spark_either_way
    table = siltstone.open(local_root).create_table(
        "shop.stock", schema={"zone": "string", "n": "int64"}, primary_keys=["zone"], partition_keys=["zone"]
    )
    for n in (1, 2):
        table.write(pa.table({"zone": ["asia", "eu", "us"], "n": [n] * 3}))
        for source in table._sources():
            if n == 1 or source.partition_values == ["eu"]:
                run_session(Request(source, compacted_partition(source), ("zone",), local_root), run_here)
    seen = [{"zone": zone, "n": 2} for zone in ("asia", "eu", "us")]
    for frame in (load(spark, table), load(spark, table, as_of="2"), table.to_spark(spark)):
        same_rows(rows(frame), seen)
        same_rows(rows(frame.where("zone = 'us'")), seen[-1:])
        same_rows(rows(frame.where("n < 2")), [])
    same_rows(rows(table.to_spark(spark, ["n"])), [{"n": 2}] * 3)


def test_partitions_that_a_filter_rules_out_are_not_opened(spark: SparkSession, local_root: str) -> None:
    register(spark)
    table = siltstone.open(local_root).create_table(
        "shop.stock", schema={"zone": "string", "n": "int64"}, primary_keys=["zone"], partition_keys=["zone"]
    )
    table.write(pa.table({"zone": ["asia", "us"], "n": [1, 2]}))
    for source in table._sources():
        run_session(Request(source, compacted_partition(source), ("zone",), local_root), run_here)
    (completion,) = Path(local_root).glob("**/compacted/asia/rounds/*.json")
    completion.unlink()
    assert rows(load(spark, table).where("zone = 'us'")) == [{"zone": "us", "n": 2}]
    with pytest.raises(Exception, match="the round completion file is missing"):
        load(spark, table).where("n = 2").collect()


def test_filters_mean_what_they_mean_to_spark_with_and_without_push_down(
    spark_either_way: SparkSession, local_root: str
) -> None:
    spark = spark_either_way
    table = siltstone.open(local_root).create_table(
        "shop.ratios",
        schema={"id": "int64", "x": "double", "note": "string"},
        primary_keys=["id"],
        properties={"row_group_rows": "2"},
    )
    values = [1.0, float("nan"), 1.0, 9.0, None, -0.0]
    table.write(pa.table({"id": range(6), "x": values, "note": [None, "b", "c", "d", "e", "f"]}))
    compact(table)
    table.write(pa.table({"id": [3], "x": [8.0]}))
    for options, changed in (({}, 9.0), ({"fresh": "true"}, 8.0)):
        frame = load(spark, table, **options)
        # To Spark, NaN is greater than any number, and equal to itself.
        for where, ids in (
            ("x > 5", {1, 3}),
            ("x >= 1", {0, 1, 2, 3}),
            ("x = double('nan')", {1}),
            ("x < 5", {0, 2, 5}),
            ("x = 0", {5}),
            (f"x in (1, {changed})", {0, 2, 3}),
            ("x in (double('nan'), 0)", {1, 5}),
            ("x is null", {4}),
            ("x is not null and id > 3", {5}),
            ("not x > 5", {0, 2, 5}),
            ("note is null and id < 2", {0}),
        ):
            assert {row.id for row in frame.where(where).collect()} == ids, where


def test_a_scan_is_filtered_where_executors_read_it(spark: SparkSession, table: siltstone.Table) -> None:
    for fresh in (False, True):
        for columns, where in ((None, "id in (3, 4, 5)"), (["zone"], "id > 17 and `a,b` is null"), ([], "id < 4")):
            scan = table.scan(columns, where, fresh=fresh)
            frame = scan.to_spark(spark)
            assert frame.columns == list(scan.columns)
            assert frame.count() == scan.count() > 0
            if columns != []:
                same_rows(rows(frame), scan.to_arrow().to_pylist())
    expression = table.scan(["id"], pc.field("id") * 2 > 36).to_spark(spark)
    same_rows(rows(expression), [{"id": 19}, {"id": 20}])


@pytest.mark.parametrize(
    ("where", "is_native"),
    [
        ("small > -3 and small <= 5", True),
        ("not small = 5", True),
        ("small != 127 or word is null", True),
        ("big in (1, 9223372036854775807) or not flag = true", True),
        ("not (word in ('é', 'Z') and flag = false)", True),
        ("word >= 'a' and word < 'é'", True),
        ("word = ''", True),
        ("day between '1582-10-04' and '2026-03-08'", True),
        ("day > '0001-01-01' and not day = '0900-01-01'", True),
        ("day in ('1582-10-10', '0900-01-01') or day >= '1582-10-15'", True),
        ('"odd `name.x" is null or "odd `name.x" = \'y\'', True),
        ("tags is not null and x is null", True),
        ("not (small < 0 or day is null)", True),
        ("x > 1", False),
        ("x is not nan", False),
        ("word like 'a%'", False),
        ("id = 3", False),
        (pc.field("small") > 0, False),
        (~((pc.field("big") > 0) & (pc.field("word") == "Z")), True),
        (pc.field("big") * 0 == 0, False),
        (pc.field("small").isin(pa.array([None], pa.int8())), False),
        # Nothing is read for it at all.
        (pc.field("small").isin(pa.array([], pa.int8())), True),
    ],
    ids=str,
)
def test_a_filter_that_means_the_same_to_spark_is_left_to_spark(
    spark: SparkSession, odd_values: siltstone.Table, where: Any, is_native: bool
) -> None:
    for columns in (None, ["id"], ["word", "small"]):
        scan = odd_values.scan(columns, where)
        frame = scan.to_spark(spark)
        assert frame.columns == list(scan.columns)
        same_rows(rows(frame), scan.to_arrow().to_pylist())
        is_in_python = "MapInArrow" in frame._jdf.queryExecution().toString()
        assert is_in_python is not is_native


OLD_DAYS = [datetime.date(900, 1, 1), datetime.date(1582, 10, 4), datetime.date(1582, 10, 15)]


@pytest.fixture(scope="module")
def odd_values(tmp_path_factory: pytest.TempPathFactory) -> siltstone.Table:
    """A table with odd values of many types, in many row groups and two files, with dead rows and a column of later."""
    lake = siltstone.open(tmp_path_factory.mktemp("odd"))
    types = {"id": "int64", "small": "int8", "big": "int64", "flag": "bool", "word": "string", "day": "date"}
    table = lake.create_table(
        "shop.odd",
        schema=[
            {"name": name, "type": kind} for name, kind in {**types, "x": "double", "tags": {"list": "string"}}.items()
        ],
        primary_keys=["id"],
        properties={"row_group_rows": "7"},
    )
    choices: dict[str, list[Any]] = {
        "small": [None, -128, -3, 0, 5, 127],
        "big": [1, None, -(1 << 63), (1 << 63) - 1],
        "flag": [True, None, False],
        "word": ["", "a", None, "Z", "é", "e\u0301", "\U0001f642", "\uffff", "a\0"],
        "day": [datetime.date(1, 1, 1), None, datetime.date(1582, 10, 10), datetime.date(2026, 3, 8), *OLD_DAYS],
        "x": [0.0, -0.0, float("nan"), None, 1.5],
        "tags": [None, [], ["t"]],
    }
    made = [
        {"id": number, **{name: values[number % len(values)] for name, values in choices.items()}}
        for number in range(200)
    ]
    table.write(pa.Table.from_pylist(made[:150], schema=table.schema))
    compact(table, MINOR)
    table.alter(add_columns={"odd `name.x": "string"})
    later = [{**row, "odd `name.x": "y"} for row in made[140:]]
    table.write(pa.Table.from_pylist(later, schema=table.schema))
    table.write(pa.table({"id": range(0, 150, 11)}), type="delete")
    compact(table, MINOR)
    (bucket,) = completion_of(table).buckets
    assert [file.deletion_vector is None for file in bucket.files] == [False, True]
    return table


@pytest.mark.parametrize("fresh", [False, True])
def test_columns_that_must_not_be_null_are_read(spark: SparkSession, local_root: str, fresh: bool) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string(), nullable=False)])
    table = siltstone.open(local_root).create_table("shop.notes", schema=schema, primary_keys=["id"])
    table.write(pa.table({"id": [1, 2], "note": ["a", "b"]}))
    compact(table)
    table.write(pa.table({"id": [3], "note": ["c"]}))
    frame = spark.read.format("siltstone").option("root", local_root).option("fresh", fresh).load("shop.notes")
    assert sorted(row.note for row in frame.collect()) == (["a", "b", "c"] if fresh else ["a", "b"])
