"""Keys of every type, null and odd values included: the same key is found again in every round, another one never."""

import datetime
import itertools
import math
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import siltstone
from siltstone.rows.job import Settings
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import MAJOR, MINOR, check_rows, compact, found_rows, make_table

UTC = datetime.UTC
BERLIN = ZoneInfo("Europe/Berlin")
BIG = Decimal("99999999999999999999999999999999999.999")
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [0, -128, 127]),
    "uint32": (pa.uint32(), [0, 1, 2**32 - 1]),
    "int64": (pa.int64(), [0, -1, 2**63 - 1, -(2**63)]),
    "float": (pa.float32(), [0.0, math.nan, 0.1, -math.inf]),
    "double": (pa.float64(), [0.0, math.nan, 5e-324, math.inf, -1e308]),
    "string": (pa.string(), ["", "a", "a\0", "null", "é", "e\u0301", "\U0001f642", "x" * 5000]),
    "large_string": (pa.large_string(), ["", "a"]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"\xff\xfe", b"a"]),
    "fixed_binary": (pa.binary(2), [b"\0\0", b"ab"]),
    "date": (pa.date32(), [datetime.date(1970, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "time": (pa.time64("us"), [datetime.time(0), datetime.time(23, 59, 59, 999999)]),
    "duration": (pa.duration("us"), [datetime.timedelta(0), datetime.timedelta(days=-1, microseconds=1)]),
    "timestamp": (pa.timestamp("us"), [datetime.datetime(1970, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 1)]),
    "timestamp_ms": (pa.timestamp("ms"), [datetime.datetime(2026, 3, 29, 2, 30), datetime.datetime(1900, 1, 1)]),
    "timestamp_utc": (
        pa.timestamp("us", tz="UTC"),
        [datetime.datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime.datetime(2026, 10, 25, 1, 30, tzinfo=UTC)],
    ),
    "timestamp_berlin": (
        # One wall-clock time that comes twice, an hour apart.
        pa.timestamp("us", tz="Europe/Berlin"),
        [
            datetime.datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=BERLIN),
            datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
        ],
    ),
    "decimal": (pa.decimal128(6, 2), [Decimal("0.00"), Decimal("-0.01"), Decimal("9999.99")]),
    "wide_decimal": (pa.decimal128(38, 3), [Decimal("0.000"), BIG, BIG.copy_negate()]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
}
ROUNDS = [MINOR, MINOR, MAJOR, MINOR]


def check_rounds(table: siltstone.Table, keys: dict[str, Any], settings: list[Settings]) -> None:
    """Write all keys again and again, with deletes between, and compare after each round."""
    count = len(next(iter(keys.values())))
    for number, each in enumerate(settings):
        table.write(pa.table({**keys, "v": [f"{number}-{row}" for row in range(count)]}))
        if number % 2:
            some = {name: values.slice(number % count, 1) for name, values in keys.items()}
            table.write(pa.table(some), "delete")
        operations = ["d" if row == (number + 2) % count else "u" for row in range(count)]
        doubled = {name: pa.chunked_array([values, values]) for name, values in keys.items()}
        table.write(
            pa.table({**doubled, "v": [f"{number}+{row}" for row in range(2 * count)], "op": operations * 2}),
            op_column="op",
        )
        compact(table, each)
        check_rows(table)
        assert len(found_rows(table)) == count - 1
        assert table.fsck(deep=True) == []
    for row in found_rows(table):
        same_rows(table.lookup({name: row[name] for name in keys}), [row])


@pytest.mark.parametrize("name", VALUES)
def test_a_key_of_any_type_with_null_is_found_again_in_every_round(local_root: str, name: str) -> None:
    kind, values = VALUES[name]
    keys = pa.array([*values, None], kind)
    table = make_table(local_root, schema=pa.schema({"id": kind, "v": pa.string()}))
    check_rounds(table, {"id": keys}, ROUNDS)


def test_keys_of_several_columns_compare_by_column_and_not_by_their_text(local_root: str) -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), (None, "abc"), ("abc", None), ("abc", ""), (None, None), ("", "")]
    keys = {"a": pa.array([one for one, _ in pairs]), "b": pa.array([two for _, two in pairs])}
    table = make_table(local_root, schema={"a": "string", "b": "string", "v": "string"}, primary_keys=["a", "b"])
    check_rounds(table, keys, ROUNDS)


def test_odd_floats_in_composite_keys_are_one_key_each_across_rounds(local_root: str) -> None:
    table = make_table(
        local_root, schema={"x": "double", "y": "float", "z": "int64", "v": "string"}, primary_keys=["x", "y", "z"]
    )
    other_nan = pa.array([0xFFF8000000000123], pa.uint64()).view(pa.float64())
    spellings = [
        {"x": pa.array([0.0, math.nan, None]), "y": pa.array([-0.0, math.nan, 0.0], pa.float32())},
        {"x": pa.array([-0.0, -math.nan, None]), "y": pa.array([0.0, -math.nan, -0.0], pa.float32())},
        {"x": pa.concat_arrays([pa.array([0.0]), other_nan, pa.array([None], pa.float64())]),
         "y": pa.array([0.0, math.nan, 0.0], pa.float32())},
    ]  # fmt: skip
    for number, (spelling, settings) in enumerate(itertools.product(spellings, (MINOR, MAJOR))):
        table.write(pa.table({**spelling, "z": [1, None, 2], "v": [str(number)] * 3}))
        compact(table, settings)
        check_rows(table)
        assert [row["v"] for row in found_rows(table)] == [str(number)] * 3
    assert table.lookup({"x": -0.0, "y": 0.0, "z": 1})
    assert table.lookup({"x": math.nan, "y": math.nan, "z": None})
    table.write(pa.table({"x": [-0.0], "y": pa.array([-0.0], pa.float32()), "z": [1]}), "delete")
    compact(table)
    assert len(found_rows(table)) == 2


@pytest.mark.parametrize("name", VALUES)
def test_sort_keys_of_any_type_keep_late_rows_out_in_every_round(local_root: str, name: str) -> None:
    kind, values = VALUES[name]
    table = make_table(
        local_root,
        schema=pa.schema({"id": pa.int64(), "at": kind, "v": pa.string()}),
        sort_keys=["at"],
    )
    moments = [None, *values]
    for number, moment in enumerate([*moments, *reversed(moments)]):
        operations = ["d" if number % 3 == 1 else "u", "u"]
        at = pa.array([moment, moments[number % len(moments)]], kind)
        table.write(pa.table({"id": [1, 2], "at": at, "v": [str(number)] * 2, "op": operations}), op_column="op")
        compact(table, ROUNDS[number % len(ROUNDS)])
        check_rows(table)


def test_wider_keys_find_rows_of_narrower_rounds(local_root: str) -> None:
    steps: list[tuple[pa.DataType, pa.DataType]] = [
        (pa.int8(), pa.decimal128(6, 2)),
        (pa.int32(), pa.decimal128(6, 2)),
        (pa.int32(), pa.decimal128(10, 4)),
        (pa.int64(), pa.decimal128(38, 4)),
    ]
    first = pa.schema({"a": steps[0][0], "b": steps[0][1], "v": pa.string()})
    table = make_table(local_root, schema=first, primary_keys=["a", "b"])
    for number, (whole, exact) in enumerate(steps):
        keys = {"a": pa.array([1, -7, None], whole), "b": pa.array([Decimal("1.5"), Decimal("-3.25"), None], exact)}
        table.write(pa.table({**keys, "v": [str(number)] * 3}))
        compact(table, ROUNDS[number])
        check_rows(table)
        assert {row["v"] for row in found_rows(table)} == {str(number)}
        assert len(found_rows(table)) == 3


@pytest.mark.parametrize("primary_keys", [["id"], []], ids=["key", "no key"])
def test_nested_columns_are_carried_through_deletes_and_rewrites(local_root: str, primary_keys: list[str]) -> None:
    nested = pa.struct([("tags", pa.list_(pa.string())), ("by", pa.map_(pa.string(), pa.list_(pa.float64())))])
    schema = pa.schema({"id": pa.int64(), "v": pa.string(), "n": nested, "many": pa.list_(nested)})
    table = make_table(local_root, schema=schema, primary_keys=primary_keys)
    one = {"tags": ["a", None, ""], "by": [("k", [1.5, None]), ("l", None)]}
    odd: list[Any] = [one, None, {"tags": None, "by": []}, {"tags": [], "by": None}]
    for number, settings in enumerate(ROUNDS):
        rows = [
            {"id": row, "v": f"{number}", "n": odd[(row + number) % 4], "many": odd[: row % 4] or None}
            for row in range(number, number + 12)
        ]
        table.write(pa.Table.from_pylist(rows, schema=schema))
        table.write(pa.table({"v": [str(number - 1)]}), "delete", ["v"])
        table.write(pa.table({"id": [number + 3, None]}), "delete", ["id"])
        compact(table, settings)
        check_rows(table)
        assert table.to_arrow().schema == table.schema
    same_rows(table.to_arrow(), oracle_of(table).rows())
