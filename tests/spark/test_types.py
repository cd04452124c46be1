"""Every type that a table can have comes back from Spark in the type that the docs say, with equal values."""

import datetime
import decimal
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import siltstone
from siltstone.model.schema import _SIMPLE
from siltstone.spark.native import NATIVE_READS
from siltstone.spark.source import register
from siltstone.testing.oracle import comparable

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
UTC = datetime.UTC
# By type: what Spark calls it, and values that are hard to hand over.
KINDS: dict[str, tuple[str, list[Any]]] = {
    "bool": ("boolean", [True, False]),
    "int8": ("tinyint", [-(1 << 7), 127]),
    "int16": ("smallint", [-(1 << 15), 32767]),
    "int32": ("int", [-(1 << 31), (1 << 31) - 1]),
    "int64": ("bigint", [-(1 << 63), (1 << 63) - 1]),
    "float": ("float", [1.5, float("nan")]),
    "double": ("double", [5e-324, float("-inf")]),
    "decimal(38,10)": ("decimal(38,10)", [decimal.Decimal("9" * 28 + ".0123456789"), decimal.Decimal("-1E-10")]),
    "string": ("string", ["", "ü\u0000€😀"]),
    "binary": ("binary", [b"", b"\x00\xff"]),
    "date": ("date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "time": ("interval day to second", [datetime.time(0), datetime.time(23, 59, 59, 999999)]),
    "timestamp": (
        "timestamp_ntz",
        [datetime.datetime(1500, 2, 28, 1, 2, 3, 4), datetime.datetime(2026, 3, 8, 2, 30, 0, 999999)],
    ),
    "timestamp_utc": (
        "timestamp",
        [datetime.datetime(1500, 2, 28, 1, 2, 3, 4, UTC), datetime.datetime(2026, 3, 8, 2, 30, 0, 999999, UTC)],
    ),
    "duration": (
        "interval day to second",
        [datetime.timedelta(days=-3, microseconds=1), datetime.timedelta(days=40000, seconds=1)],
    ),
}
NAMES = {kind: f"c{number}" for number, kind in enumerate(KINDS)}


def expected_value(value: Any) -> Any:
    """Return a value as Spark should have it: a time of day as the interval since midnight."""
    if isinstance(value, datetime.time):
        return datetime.datetime.combine(datetime.date.min, value) - datetime.datetime.min
    if isinstance(value, list):
        return [expected_value(each) for each in value]
    if isinstance(value, tuple):
        return tuple(expected_value(each) for each in value)
    if isinstance(value, dict):
        return {name: expected_value(each) for name, each in value.items()}
    return value


def nested(kind: str) -> list[dict[str, Any]]:
    """Return columns with lists, structs and maps of a type."""
    name = NAMES[kind]
    return [
        {"name": name, "type": kind},
        {"name": f"{name}_list", "type": {"list": kind}},
        {"name": f"{name}_deep", "type": {"struct": [{"name": "x", "type": {"map": ["string", {"list": kind}]}}]}},
    ]


def row_of(number: int, pick: Callable[[list[Any]], Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": number, "a.b": number, "`": str(number)}
    for kind, (_, values) in KINDS.items():
        value, name = pick(values), NAMES[kind]
        row |= {name: value, f"{name}_list": [value, None], f"{name}_deep": {"x": [("k", [value])]}}
    return row


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> siltstone.Table:
    """A table with files that have dead rows, files that have none, and a delta that is not compacted."""
    fields = [{"name": "id", "type": "int64"}, {"name": "a.b", "type": "int64"}, {"name": "`", "type": "string"}]
    schema = [*fields, *(field for kind in KINDS for field in nested(kind))]
    made = siltstone.open(tmp_path_factory.mktemp("types")).create_table(
        "shop.types", schema=schema, primary_keys=["id"]
    )
    arrow = made.schema
    rows = [row_of(1, lambda values: values[0]), row_of(2, lambda values: values[1]), row_of(3, lambda _: None)]
    made.write(pa.Table.from_pylist([*rows, {"id": 4}], schema=arrow))
    made.compact(spark=spark)
    made.write(pa.Table.from_pylist([row_of(4, lambda values: values[1])], schema=arrow))
    made.compact(spark=spark)
    made.write(pa.Table.from_pylist([row_of(5, lambda values: values[0])], schema=arrow))
    kinds = {file.deletion_vector is None for file in made.current_rounds()[0].files}
    assert kinds == {True, False}
    return made


def by_format(spark: SparkSession, table: siltstone.Table, **options: str) -> DataFrame:
    register(spark)
    return spark.read.format("siltstone").options(root=table.lake.root, **options).load(table.name)


@pytest.mark.parametrize(
    ("way", "arguments"),
    [
        ("natively", {}),
        ("in Python", {}),
        ("with what is not compacted", {"include_uncompacted": True}),
        ("as of a position", {"as_of": 1}),
        ("by format", {}),
    ],
)
def test_every_type_is_handed_over_with_equal_values(
    spark: SparkSession, table: siltstone.Table, way: str, arguments: dict[str, Any]
) -> None:
    spark.conf.set(NATIVE_READS, str(way != "in Python").lower())
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = by_format(spark, table) if way == "by format" else table.to_spark(spark, **arguments)
        arrow: pa.Table = frame.toArrow()
    finally:
        spark.conf.unset(NATIVE_READS)
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    types = dict(frame.dtypes)
    for kind, (spark_type, _) in KINDS.items():
        assert types[NAMES[kind]] == spark_type
        assert types[f"{NAMES[kind]}_list"] == f"array<{spark_type}>"
        assert types[f"{NAMES[kind]}_deep"] == f"struct<x:map<string,array<{spark_type}>>>"
    expected = {row["id"]: expected_value(row) for row in table.to_arrow(**arguments).to_pylist()}
    found = {row["id"]: row for row in arrow.to_pylist()}
    assert found.keys() == expected.keys()
    for number, row in expected.items():
        for name, value in row.items():
            assert comparable({name: found[number][name]}) == comparable({name: value}), (number, name)


def test_every_type_of_tables_is_tried_and_on_the_page() -> None:
    assert {kind for kind in KINDS if not kind.startswith("decimal")} == set(_SIMPLE)
    listed = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    for kind, (spark_type, _) in KINDS.items():
        assert listed[re.sub(r"\(.*", "(p,s)", kind)].lower() == re.sub(r"\(.*", "(p,s)", spark_type)


def test_files_from_before_a_column_was_widened_are_handed_over_in_the_wide_type(
    spark: SparkSession, local_root: str
) -> None:
    narrow = {"id": "int8", "small": "int16", "count": "int32", "ratio": "float", "price": "decimal(5,2)"}
    wide = {"id": "int64", "small": "int32", "count": "int64", "ratio": "double", "price": "decimal(30,6)"}
    table = siltstone.open(local_root).create_table("shop.wide", schema=narrow, primary_keys=["id"])
    price = decimal.Decimal("-999.99")
    table.write(
        pa.Table.from_pylist(
            [{"id": n, "small": -n, "count": n, "ratio": 0.5, "price": price} for n in range(9)], schema=table.schema
        )
    )
    table.compact(spark=spark)
    table.alter(add_columns=wide)
    table.write(
        pa.Table.from_pylist(
            [{"id": 3, "count": 1 << 40, "price": decimal.Decimal("1E20")}, {"id": 1 << 40}], schema=table.schema
        )
    )
    table.compact(spark=spark)
    assert len(table.current_rounds()[0].files) > 1
    expected = table.to_arrow().to_pylist()
    for frame in (table.to_spark(spark), by_format(spark, table)):
        assert [kind for _, kind in frame.dtypes] == ["bigint", "int", "bigint", "double", "decimal(30,6)"]
        found = frame.toArrow().to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, expected))


def test_a_frame_that_was_read_can_be_written_back_and_a_time_beyond_the_day_cannot(
    spark: SparkSession, local_root: str
) -> None:
    schema = {"id": "int64", "opens_at": "time", "lasts": "duration"}
    table = siltstone.open(local_root).create_table("shop.hours", schema=schema, primary_keys=["id"])
    rows: list[dict[str, Any]] = [
        {"id": 1, "opens_at": datetime.time(23, 59, 59, 999999), "lasts": datetime.timedelta(hours=30)},
        {"id": 2, "opens_at": None, "lasts": None},
    ]
    table.write(pa.Table.from_pylist(rows, schema=table.schema))
    frame = table.to_spark(spark, include_uncompacted=True)
    table.write(frame.selectExpr("id + 10 as id", "opens_at", "lasts"))
    assert table.schema.field("opens_at").type == pa.time64("us")
    written = sorted(table.to_arrow(include_uncompacted=True).to_pylist(), key=lambda row: row["id"])
    assert written == [*rows, *({**row, "id": row["id"] + 10} for row in rows)]
    with pytest.raises(Exception, match="'opens_at' has 1 day, 6:00:00, which is not a time of day"):
        table.write(frame.selectExpr("id", "lasts as opens_at"))
