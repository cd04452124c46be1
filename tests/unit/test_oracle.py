"""The oracle of row semantics, pinned down by hand; other tests believe it."""

import math
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

import siltstone
from siltstone.catalog.main import delta_stream
from siltstone.errors import InvalidInputError
from siltstone.log.commit import forget_logs
from siltstone.storage import object_store as storage
from siltstone.testing.oracle import Oracle, Row, oracle_of, same_rows
from siltstone.testing.strategies import TableSettings, Write, histories

NAN = math.nan


def rows(columns: str, *values: tuple[Any, ...]) -> list[Row]:
    return [dict(zip(columns.split(), value, strict=True)) for value in values]


def keyed(**settings: Any) -> Oracle:
    return Oracle(**{"columns": ["id", "v"], "primary_keys": ["id"], **settings})


def sorted_by_at(**settings: Any) -> Oracle:
    return keyed(columns=["id", "at", "v"], sort_keys=["at"], **settings)


def test_a_row_replaces_the_row_of_its_key_in_order_of_rows_and_writes() -> None:
    oracle = keyed()
    oracle.apply(rows("id v", (1, "a"), (2, "b"), (1, "c")))
    same_rows(oracle.rows(), rows("id v", (1, "c"), (2, "b")))
    oracle.apply(rows("id v", (2, "d")), type="append")
    oracle.apply(rows("id v", (1, "e")), type="add")
    oracle.apply(rows("id v", (3, "f")), type="chrono")
    same_rows(oracle.rows(), rows("id v", (1, "e"), (2, "d"), (3, "f")))


@pytest.mark.parametrize("settings", [{"primary_keys": []}, {"drop_duplicates": False}])
def test_rows_are_kept_apart_without_key_or_with_duplicates_allowed(settings: dict[str, Any]) -> None:
    oracle = keyed(**settings)
    oracle.apply(rows("id v", (1, "a"), (1, "a"), (1, "b")))
    oracle.apply(rows("id v", (1, "a")), type="append")
    same_rows(oracle.rows(), rows("id v", (1, "a"), (1, "a"), (1, "a"), (1, "b")))


def test_a_row_with_smaller_sort_keys_is_late_and_a_tie_goes_to_the_later_row() -> None:
    oracle = sorted_by_at()
    oracle.apply(rows("id at v", (1, 5, "a"), (1, 4, "late"), (1, 5, "b")))
    same_rows(oracle.rows(), rows("id at v", (1, 5, "b")))
    oracle.apply(rows("id at v", (1, 4, "late"), (2, 1, "c")))
    same_rows(oracle.rows(), rows("id at v", (1, 5, "b"), (2, 1, "c")))


@pytest.mark.parametrize(
    ("smaller", "greater"),
    [
        (None, 0), (None, -math.inf), (None, ""), (None, NAN), (math.inf, NAN), ("", "a"), ("Z", "a"), (False, True),
        (b"\x7f", b"\x80"), (b"a", b"a\x00"), ("\uffff", "\U00010000"), (-1, 0), (-1.5, -0.0),
    ],
)  # fmt: skip
def test_sort_keys_are_ordered_with_null_first_and_nan_last(smaller: object, greater: object) -> None:
    oracle = sorted_by_at()
    oracle.apply(rows("id at v", (1, greater, "a"), (1, smaller, "late"), (2, smaller, "b"), (2, greater, "c")))
    same_rows(oracle.rows(), rows("id at v", (1, greater, "a"), (2, greater, "c")))


@pytest.mark.parametrize(("one", "other"), [(None, None), (NAN, -NAN), (0.0, -0.0), (-0.0, 0.0)])
def test_equal_sort_keys_and_equal_keys_are_equal_by_value(one: object, other: object) -> None:
    oracle = sorted_by_at()
    oracle.apply(rows("id at v", (one, one, "a"), (other, other, "b")))
    same_rows(oracle.rows(), rows("id at v", (one, one, "b")))


def test_the_second_sort_key_decides_where_the_first_is_equal() -> None:
    oracle = Oracle(primary_keys=["id"], sort_keys=["x", "y"])
    oracle.apply(rows("id x y", (1, 1, 9), (1, 2, None), (1, 1, 10), (1, 2, 0), (2, None, 5), (2, None, 4)))
    same_rows(oracle.rows(), rows("id x y", (1, 2, 0), (2, None, 5)))


def test_keys_are_tuples_of_values_and_null_is_one_of_them() -> None:
    oracle = Oracle(primary_keys=["x", "y"])
    different = rows(
        "x y v", ("a", "b|c", 1), ("a|b", "c", 2), (None, "", 3), ("", None, 4), (None, None, 5), ("", "", 6)
    )
    oracle.apply(different)
    same_rows(oracle.rows(), different)
    oracle.apply(rows("x y v", (None, None, 7)))
    same_rows(oracle.rows(), [row for row in different if row["v"] != 5] + rows("x y v", (None, None, 7)))


@pytest.mark.parametrize("operations", ["c r u d", "I U U D", "+I +U +U -D"])
def test_operations_of_each_dialect_upsert_and_delete(operations: str) -> None:
    insert, read, update, delete = operations.split()
    oracle = keyed()
    oracle.apply(rows("id v op", (1, "a", insert), (2, "b", read), (3, "c", update)), op_column="op")
    same_rows(oracle.rows(), rows("id v", (1, "a"), (2, "b"), (3, "c")))
    oracle.apply(
        rows("id v op", (1, None, delete), (4, None, delete), (2, None, delete), (2, "d", insert)), op_column="op"
    )
    same_rows(oracle.rows(), rows("id v", (2, "d"), (3, "c")))
    assert oracle.tombstones() == []


def test_a_before_image_is_ignored() -> None:
    oracle = sorted_by_at()
    oracle.apply(
        rows("id at v op", (1, 1, "a", "+I"), (1, 9, "no", "-U"), (2, 9, "no", "-U"), (1, 1, "b", "+U")), op_column="op"
    )
    same_rows(oracle.rows(), rows("id at v", (1, 1, "b")))
    assert oracle.tombstones() == []


def test_an_unknown_operation_is_refused() -> None:
    with pytest.raises(AssertionError, match="x"):
        keyed().apply(rows("id op", (1, "x")), op_column="op")


def test_the_operation_column_is_a_column_only_where_the_table_has_it() -> None:
    without, having = keyed(), keyed(columns=["id", "v", "op"])
    for oracle in (without, having):
        oracle.apply(rows("id v op", (1, "a", "c")), op_column="op")
    same_rows(without.rows(), rows("id v", (1, "a")))
    same_rows(having.rows(), rows("id v op", (1, "a", "c")))


def test_a_row_level_delete_that_wins_leaves_a_tombstone_that_keeps_older_rows_out() -> None:
    oracle = sorted_by_at()
    oracle.apply(rows("id at v op", (1, 5, "a", "c"), (1, 4, None, "d")), op_column="op")
    same_rows(oracle.rows(), rows("id at v", (1, 5, "a")))
    oracle.apply(rows("id at v op", (1, 5, None, "d")), op_column="op")
    same_rows(oracle.rows(), [])
    assert oracle.tombstones() == rows("id at", (1, 5))
    oracle.apply(rows("id at v", (1, 4, "late")))
    same_rows(oracle.rows(), [])
    oracle.apply(rows("id at v", (1, 5, "b")))
    same_rows(oracle.rows(), rows("id at v", (1, 5, "b")))
    assert oracle.tombstones() == []


def test_a_tombstone_is_left_without_a_row_and_moves_forward_only() -> None:
    oracle = sorted_by_at()
    oracle.apply(rows("id at op", (1, 5, "D"), (1, 7, "D"), (1, 6, "D"), (2, None, "D")), op_column="op")
    assert oracle.tombstones() == rows("id at", (1, 7), (2, None))
    oracle.apply(rows("id at v", (1, 6, "late"), (2, None, "a")))
    same_rows(oracle.rows(), rows("id at v", (2, None, "a")))


def test_with_duplicates_allowed_a_row_level_delete_removes_all_rows_of_its_key() -> None:
    oracle = sorted_by_at(drop_duplicates=False)
    oracle.apply(rows("id at v", (1, 5, "a"), (1, 6, "b"), (2, 5, "c")))
    oracle.apply(rows("id at v op", (1, 1, None, "d"), (1, 0, "d", "c")), op_column="op")
    same_rows(oracle.rows(), rows("id at v", (2, 5, "c"), (1, 0, "d")))
    assert oracle.tombstones() == []


def test_a_delete_removes_what_is_current_at_its_place_and_asks_no_sort_keys() -> None:
    oracle = sorted_by_at()
    oracle.apply(rows("id at v", (1, 5, "a"), (2, 5, "b")))
    oracle.apply(rows("id at", (1, 1), (7, 1)), type="delete")
    same_rows(oracle.rows(), rows("id at v", (2, 5, "b")))
    oracle.apply(rows("id at v", (1, 1, "c")))
    same_rows(oracle.rows(), rows("id at v", (1, 1, "c"), (2, 5, "b")))


def test_a_delete_leaves_no_tombstone_and_removes_none() -> None:
    oracle = sorted_by_at()
    oracle.apply(rows("id at op", (1, 5, "d"), (2, 5, "c")), op_column="op")
    oracle.apply(rows("id", (1,), (2,)), type="delete")
    assert oracle.tombstones() == rows("id at", (1, 5))
    oracle.apply(rows("id at v", (1, 4, "late"), (2, 4, "a")))
    same_rows(oracle.rows(), rows("id at v", (2, 4, "a")))


def test_a_delete_compares_the_given_columns_by_value() -> None:
    oracle = Oracle(columns=["x", "y", "z"])
    oracle.apply(rows("x y", (None, "a"), (None, "a"), (NAN, "a"), (0.0, "a"), (1.0, "a"), (1.0, "b")))
    oracle.apply(rows("x y", (None, "b")), type="delete", delete_columns=["x", "y"])
    assert len(oracle.rows()) == 6
    oracle.apply(rows("x y", (None, "b"), (NAN, "b"), (-0.0, "b")), type="delete", delete_columns=["x"])
    same_rows(oracle.rows(), rows("x y z", (1.0, "a", None), (1.0, "b", None)))
    oracle.apply([], type="delete", delete_columns=["x"])
    oracle.apply(rows("y z", ("b", None)), type="delete", delete_columns=["z", "y"])
    same_rows(oracle.rows(), rows("x y z", (1.0, "a", None)))


def test_a_partial_update_keeps_the_columns_that_the_delta_does_not_have() -> None:
    oracle = Oracle(columns=["id", "a", "b"], primary_keys=["id"], merge_engine="partial_update")
    oracle.apply(rows("id a", (1, "x"), (1, "y")))
    oracle.apply(rows("id b", (1, "z"), (2, "w")))
    same_rows(oracle.rows(), rows("id a b", (1, "y", "z"), (2, None, "w")))
    oracle.apply(rows("id a", (1, None)))
    same_rows(oracle.rows(), rows("id a b", (1, None, "z"), (2, None, "w")))
    oracle.apply(rows("id op", (1, "d"), (1, "c")), op_column="op")
    same_rows(oracle.rows(), rows("id a b", (1, None, None), (2, None, "w")))


def test_a_late_partial_update_changes_nothing() -> None:
    oracle = Oracle(primary_keys=["id"], sort_keys=["at"], merge_engine="partial_update")
    oracle.apply(rows("id at a", (1, 5, "x")))
    oracle.apply(rows("id at b", (1, 4, "late")))
    same_rows(oracle.rows(), rows("id at a b", (1, 5, "x", None)))
    oracle.apply(rows("id at b", (1, 6, "y")))
    same_rows(oracle.rows(), rows("id at a b", (1, 6, "x", "y")))


def test_first_row_takes_a_row_only_where_its_key_has_none() -> None:
    oracle = keyed(merge_engine="first_row")
    oracle.apply(rows("id v", (1, "a"), (1, "b"), (2, "c")))
    oracle.apply(rows("id v", (2, "d")))
    same_rows(oracle.rows(), rows("id v", (1, "a"), (2, "c")))
    oracle.apply(rows("id", (1,)), type="delete")
    oracle.apply(rows("id v op", (1, "e", "c"), (2, None, "d"), (2, "f", "c"), (2, "g", "u")), op_column="op")
    same_rows(oracle.rows(), rows("id v", (1, "e"), (2, "f")))
    with pytest.raises(InvalidInputError, match="first_row"):
        sorted_by_at(merge_engine="first_row")


def test_added_columns_are_null_in_earlier_rows_and_omitted_ones_in_later() -> None:
    oracle = keyed()
    oracle.apply(rows("id v", (1, "a")))
    oracle.apply(rows("id more", (2, [1])))
    same_rows(oracle.rows(), rows("id v more", (1, "a", None), (2, None, [1])))
    oracle.apply([], columns=["id", "last"])
    assert oracle.columns == ["id", "v", "more", "last"]


def test_wider_types_do_not_change_values_or_keys() -> None:
    oracle = Oracle(primary_keys=["id"])
    oracle.write(pa.table({"id": pa.array([1, 2], pa.int8()), "x": pa.array([0.1, 0.1], pa.float32())}))
    oracle.write(pa.table({"id": pa.array([1], pa.int64()), "x": pa.array([0.1], pa.float64())}))
    same_rows(oracle.rows(), rows("id x", (1, 0.1), (2, 0.10000000149011612)))


def test_partitions_do_not_meet() -> None:
    oracle = keyed(columns=["id", "zone"], partition_keys=["zone"])
    oracle.apply(rows("id zone", (1, "eu"), (1, "us"), (1, "eu")))
    same_rows(oracle.rows(), rows("id zone", (1, "eu"), (1, "us")))
    oracle.apply(rows("id zone op", (1, "eu", "d")), op_column="op")
    same_rows(oracle.rows(), rows("id zone", (1, "us")))
    oracle.apply(rows("id", (1,)), type="delete")
    same_rows(oracle.rows(), [])


def test_rows_are_the_same_in_any_order_and_compare_by_value() -> None:
    one = rows("x y", (None, [NAN, {"a": 0.0, "b": None}]), (1, [1.5]), (1, [1.5]))
    other = rows("y x", ([1.5], 1), ([1.5], 1), ([NAN, {"b": None, "a": -0.0}], None))
    same_rows(one, other)
    same_rows(pa.table({"x": [1, None]}), rows("x", (None,), (1,)))


@pytest.mark.parametrize(
    ("found", "expected", "message"),
    [
        (rows("x", (1,), (1,)), rows("x", (1,)), r"2 rows instead of 1\nmissing: 0\nnot expected: 1\n  1 x {'x': 1}"),
        (rows("x", (1,)), rows("x", (2,)), r"missing: 1\n  1 x {'x': 2}\nnot expected: 1\n  1 x {'x': 1}"),
        (rows("x", (1,)), rows("x", (1.0,)), r"{'x': 1.0}"),
        (rows("x", (1,)), rows("x", (True,)), r"{'x': True}"),
        (rows("x", ("",)), rows("x", (None,)), r"{'x': None}"),
        (rows("x", (1,)), rows("x y", (1, None)), r"{'x': 1, 'y': None}"),
        (rows("x", *[(number,) for number in range(99)]), [], r"not expected: 99(\n  1 x .*){20}\n  \.\.\.$"),
    ],
)
def test_rows_that_differ_are_shown(found: list[Row], expected: list[Row], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        same_rows(found, expected)


def test_the_oracle_of_a_table_folds_its_deltas(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.orders",
        schema={"id": "int64", "zone": "string"},
        primary_keys=["zone", "id"],
        partition_keys=["zone"],
        sort_keys=["id"],
    )
    table.write(pa.table({"id": [1, 1, 2], "zone": ["eu", "us", "eu"]}))
    table.write(pa.table({"id": [1], "zone": ["eu"], "op": ["d"], "more": [5]}), op_column="op")
    table.write(pa.table({"id": [2]}), type="delete", delete_columns=["id"])
    same_rows(oracle_of(table).rows(), rows("id zone more", (1, "us", None)))
    assert oracle_of(table).tombstones() == rows("zone id", ("eu", 1))
    same_rows(oracle_of(table, upto=2).rows(), rows("id zone more", (1, "us", None), (2, "eu", None)))
    same_rows(oracle_of(table, upto=1, partition=["us"]).rows(), rows("id zone more", (1, "us", None)))
    same_rows(oracle_of(table, upto=0).rows(), [])
    storage.delete_deltas(table.deltas()[0].locator.partition_locator, last_stream_position=1, root=table.lake.root)
    with pytest.raises(InvalidInputError, match="trimmed"):
        oracle_of(table)


@given(histories())
@settings(max_examples=80)
def test_a_table_keeps_the_order_and_the_values_of_its_writes(history: tuple[TableSettings, list[Write]]) -> None:
    table_settings, writes = history
    lake = siltstone.open(f"memory://{uuid.uuid4().hex}")
    try:
        table, expected = table_settings.create(lake), table_settings.oracle()
        states = [(0, expected.rows())]
        for write in writes:
            write.apply_to(expected)
            states.append((write.write_to(table), expected.rows()))
        found = oracle_of(table)
        assert found.columns == expected.columns == table.schema.names
        same_rows(found.rows(), expected.rows())
        same_rows(found.tombstones(), expected.tombstones())
        position, rows_then = states[len(states) // 2]
        columns_now = dict.fromkeys(found.columns)
        same_rows(oracle_of(table, upto=position).rows(), [{**columns_now, **row} for row in rows_then])
        stream = delta_stream(table.name, root=lake.root)
        partitions = [
            partition.locator.partition_values for partition in storage.list_partitions(stream, root=lake.root)
        ]
        parts = [oracle_of(table, partition=values) for values in partitions]
        same_rows([row for part in parts for row in part.rows()], expected.rows())
        same_rows([row for part in parts for row in part.tombstones()], expected.tombstones())
    finally:
        forget_logs(lake.root)
