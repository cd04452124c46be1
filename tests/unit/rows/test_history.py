"""Tables that keep history: which versions there are, when each is valid, and what cannot be written."""

import datetime
import math
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.model.rounds import Accounting
from siltstone.rows.columns import value_ids
from siltstone.rows.job import Settings
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, MINOR, check_rows, compact, completion_of, found_rows, make_table

SCHEMA = {"id": "int64", "at": "int64", "v": "string", "note": "string"}


def prices(root: str, *, track: str | None = None, **settings: Any) -> siltstone.Table:
    """Create a table that keeps history."""
    properties = None if track is None else {"history.track": track}
    defaults: dict[str, Any] = {"schema": SCHEMA, "sort_keys": ["at"], "merge_engine": "history"}
    return make_table(root, **{**defaults, "properties": properties, **settings})


def events(*given: tuple[object, ...]) -> pa.Table:
    """Return events: id, time, value, note, and the operation, by default u."""
    rows = [(*each, "u") if len(each) == 4 else each for each in given]
    columns = zip(*rows, strict=True)
    kinds = (pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string())
    names = (*SCHEMA, "op")
    return pa.table({name: pa.array(values, kind) for name, values, kind in zip(names, columns, kinds, strict=True)})


def write(table: siltstone.Table, *given: tuple[object, ...]) -> None:
    table.write(events(*given), op_column="op")


def versions(table: siltstone.Table, **read: Any) -> list[tuple[object, ...]]:
    """Return what is told of each version: id, time, value, note, from, to, whether it is a delete."""
    rows = table.scan(**read).to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def test_a_late_event_lands_between_versions_and_only_its_neighbour_is_written_again(local_root: str) -> None:
    table = prices(local_root)
    write(table, (1, 10, "a", ""), (1, 30, "c", ""), (2, 10, "x", ""))
    compact(table, MINOR)
    write(table, (1, 20, "b", ""))
    compact(table, MINOR)
    assert versions(table) == [
        (1, 10, "a", "", 10, 20, False),
        (1, 20, "b", "", 20, 30, False),
        (1, 30, "c", "", 30, None, False),
        (2, 10, "x", "", 10, None, False),
    ]
    completion = completion_of(table)
    assert sum(file.record_count for file in completion.files) == 5
    told = completion.accounting
    assert (told.base_rows, told.delta_rows, told.live_rows, told.superseded_rows) == (3, 1, 4, 0)


def test_a_version_ends_where_its_key_is_deleted_and_begins_anew_after(local_root: str) -> None:
    table = prices(local_root)
    write(table, (1, 30, "a", ""), (1, 20, None, None, "d"), (1, 10, "a", ""), (2, 5, None, None, "d"))
    compact(table)
    assert versions(table) == [
        (1, 10, "a", "", 10, 20, False),
        (1, 20, None, None, 20, 20, True),
        (1, 30, "a", "", 30, None, False),
        (2, 5, None, None, 5, 5, True),
    ]
    assert versions(table, current_only=True) == [(1, 30, "a", "", 30, None, False)]
    told = completion_of(table).accounting
    assert (told.delta_rows, told.removal_rows, told.added_rows, told.live_rows) == (2, 2, 2, 4)


def test_the_newest_of_equal_neighbours_stands_for_all_of_them(local_root: str) -> None:
    table = prices(local_root, track="v")
    write(table, (1, 10, "a", "first"), (1, 30, "a", "third"))
    compact(table)
    write(table, (1, 20, "a", "second"), (1, 40, "b", ""))
    compact(table)
    assert versions(table) == [
        (1, 10, "a", "first", 10, 10, False),
        (1, 20, "a", "second", 20, 20, False),
        (1, 30, "a", "third", 10, 40, False),
        (1, 40, "b", "", 40, None, False),
    ]
    assert versions(table, valid_at=25) == [(1, 30, "a", "third", 10, 40, False)]
    write(table, (1, 15, "z", ""))
    compact(table)
    assert versions(table, valid_at=12) == [(1, 10, "a", "first", 10, 15, False)]
    assert versions(table, valid_at=25) == [(1, 30, "a", "third", 20, 40, False)]
    check_rows(table)


def test_of_two_events_at_one_time_the_later_in_the_stream_counts(local_root: str) -> None:
    table = prices(local_root)
    write(table, (1, 10, "a", ""), (1, 10, "b", ""))
    compact(table)
    write(table, (1, 10, None, None, "d"), (1, 10, "c", ""))
    compact(table, MAJOR)
    assert versions(table) == [(1, 10, "c", "", 10, None, False)]
    told = completion_of(table).accounting
    assert (told.superseded_rows, told.duplicate_rows, told.added_rows) == (1, 0, 0)


def test_events_without_a_time_are_before_all_others(local_root: str) -> None:
    table = prices(local_root, track="v")
    write(table, (1, None, "a", "old"), (1, 10, "a", "new"), (2, None, "x", ""), (3, None, None, None, "d"))
    compact(table)
    assert versions(table) == [
        (1, 10, "a", "new", None, None, False),
        (1, None, "a", "old", 10, 10, False),
        (2, None, "x", "", None, None, False),
    ]
    assert len(versions(table, valid_at=-5)) == len(versions(table, current_only=True)) == 2
    write(table, (2, None, None, None, "d"))
    compact(table)
    assert completion_of(table).accounting.deleted_rows == 1
    check_rows(table)


def test_times_may_be_of_any_type_and_equal_zeros_are_one_time(local_root: str) -> None:
    table = make_table(
        local_root, schema={"id": "int64", "at": "double", "v": "string"}, sort_keys=["at"], merge_engine="history"
    )
    table.write(pa.table({"id": [1, 1, 1], "at": [-0.0, math.nan, 1.0], "v": ["a", "c", "b"]}))
    compact(table)
    table.write(pa.table({"id": [1], "at": [0.0], "v": ["A"]}))
    compact(table)
    rows = table.scan(["v", "_valid_to"]).to_arrow().sort_by("v").to_pylist()
    same_rows(rows, [{"v": "A", "_valid_to": 1.0}, {"v": "b", "_valid_to": math.nan}, {"v": "c", "_valid_to": None}])
    check_rows(table)


def test_a_wider_time_widens_what_is_derived_from_it(local_root: str) -> None:
    table = make_table(
        local_root, schema={"id": "int64", "at": "int32", "v": "string"}, sort_keys=["at"], merge_engine="history"
    )
    table.write(pa.table({"id": [1], "at": pa.array([1], pa.int32()), "v": ["a"]}))
    compact(table)
    table.write(pa.table({"id": [1], "at": pa.array([1 << 40]), "v": ["b"]}))
    assert [table.schema.field(name).type for name in ("at", "_valid_from", "_valid_to")] == [pa.int64()] * 3
    compact(table)
    check_rows(table)


def test_versions_are_read_at_a_time_written_as_text_and_of_a_day(local_root: str) -> None:
    table = make_table(
        local_root, schema={"id": "int64", "day": "date", "v": "string"}, sort_keys=["day"], merge_engine="history"
    )
    days = [datetime.date(2024, 5, 1), datetime.date(2024, 6, 1)]
    table.write(pa.table({"id": [1, 1], "day": days, "v": ["may", "june"]}))
    assert table.scan(["v"], valid_at="2024-05-31", fresh=True).to_arrow().to_pylist() == [{"v": "may"}]
    assert table.scan(["v"], valid_at=days[1], fresh=True).to_arrow().to_pylist() == [{"v": "june"}]
    assert table.scan(["v"], "v = 'may'", current_only=True, fresh=True).count() == 0
    assert table.to_arrow(["v"], include_uncompacted=True, current_only=True).to_pylist() == [{"v": "june"}]


def test_a_look_up_finds_the_current_version(local_root: str) -> None:
    table = prices(local_root)
    write(table, (1, 10, "a", ""), (1, 20, "b", ""), (2, 10, "x", ""), (2, 20, None, None, "d"))
    compact(table)
    assert [row["v"] for row in table.lookup({"id": 1})] == ["b"]
    assert table.lookup({"id": 2}) == []


def test_a_rebase_from_compacted_versions_keeps_deletes(local_root: str) -> None:
    table = prices(local_root)
    write(table, (1, 10, "a", ""), (1, 20, None, None, "d"), (1, 30, "a", ""))
    compact(table)
    before = versions(table)
    source = table._sources()[0]
    compact(table, rebase_source=source, source=completion_of(table).destination_partition_locator)
    assert versions(table) == before
    assert table.fsck(deep=True) == []


def test_rollback_and_earlier_positions_show_the_versions_of_then(local_root: str) -> None:
    table = prices(local_root)
    write(table, (1, 10, "a", ""))
    compact(table)
    write(table, (1, 20, "b", ""))
    compact(table)
    assert versions(table, as_of=1) == [(1, 10, "a", "", 10, None, False)]
    table.rollback(1)
    assert versions(table) == [(1, 10, "a", "", 10, None, False)]
    assert len(versions(table, fresh=True)) == 2


def test_an_overwrite_begins_a_new_history(local_root: str) -> None:
    table = prices(local_root)
    write(table, (1, 10, "a", ""), (2, 10, "a", ""))
    compact(table)
    table.write(events((1, 5, "z", "")).drop_columns("op"), mode="overwrite")
    compact(table)
    assert versions(table) == [(1, 5, "z", "", 5, None, False)]


def test_repeated_events_of_one_delta_are_left_out_before_they_travel(local_root: str) -> None:
    table = prices(local_root)
    write(table, *[(1, number % 3, f"{number}", "") for number in range(30)])
    compact(table, Settings(bucket_rows=4))
    assert [row[2] for row in versions(table)] == ["27", "28", "29"]
    told: Accounting = completion_of(table).accounting
    assert (told.delta_rows, told.duplicate_rows, told.live_rows) == (30, 27, 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sort_keys": []}, "exactly one sort key"),
        ({"sort_keys": ["at", "v"]}, "exactly one sort key"),
        ({"primary_keys": [], "sort_keys": ["at"]}, "needs primary keys"),
        ({"schema": {**SCHEMA, "_Valid_To": "int64"}}, "_Valid_To"),
        ({"schema": pa.schema([("id", "int64"), ("at", "int64"), pa.field("v", "string", False)])}, "make it nullable"),
        ({"drop_duplicates": False}, "drop_duplicates"),
        ({"track": "nope"}, "'nope' is not a column"),
        ({"track": "v, at"}, "'at' says"),
        ({"track": " , "}, "names of columns"),
        ({"track": "v", "merge_engine": "deduplicate"}, "goes with merge engine history"),
    ],
)
def test_a_table_that_cannot_keep_history_is_refused(local_root: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(siltstone.InvalidInputError, match=words):
        prices(local_root, **settings)


def test_what_has_no_place_in_a_history_is_refused(local_root: str) -> None:
    table = prices(local_root, track="v")
    write(table, (1, 10, "a", ""))
    refused: list[tuple[Any, str]] = [
        (lambda: table.write(pa.table({"id": [1]}), "delete"), "operation column that says d"),
        (lambda: table.write(pa.table({"v": ["a"]}), "delete", ["v"]), "no place in time"),
        (lambda: table.write(pa.table({"id": [1], "at": [1], "_valid_to": [2]})), "leave it out"),
        (lambda: table.alter(add_columns={"_is_deleted": "bool"}), "leave it out"),
        (lambda: table.alter(rename_columns={"_valid_from": "since"}), "stays as it is"),
        (lambda: table.alter(drop_columns=["_valid_to"]), "stays as it is"),
        (lambda: table.alter(drop_columns=["v"]), "is tracked"),
        (lambda: table.alter(properties={"history.track": "note"}), "when a table is created"),
        (lambda: table.scan(valid_at="soon"), "'soon' is not"),
        (lambda: table.scan(valid_at=1, current_only=True), "give one"),
        (lambda: make_table(local_root, "shop.plain").scan(current_only=True), "has no versions"),
    ]
    for call, words in refused:
        with pytest.raises(siltstone.InvalidInputError, match=words):
            call()
    table.alter(rename_columns={"v": "value"}, drop_columns=["note"])
    assert table.properties["history.track"] == "value"
    compact(table)
    assert [row["value"] for row in table.to_arrow().to_pylist()] == ["a"]


def test_a_delete_names_its_partition(local_root: str) -> None:
    table = make_table(
        local_root,
        schema={"id": "int64", "at": "int64", "region": "string"},
        sort_keys=["at"],
        partition_keys=["region"],
        unique_within_partition=True,
        merge_engine="history",
    )
    data = {"id": [1], "at": [1], "op": ["d"]}
    with pytest.raises(siltstone.InvalidInputError, match="partition"):
        table.write(pa.table({**data, "region": pa.nulls(1, pa.string())}), op_column="op")
    with pytest.raises(siltstone.InvalidInputError, match="partition"):
        table.write(pa.table(data), op_column="op")
    table.write(pa.table({**data, "region": ["eu"]}), op_column="op")
    compact(table)
    assert [row["region"] for row in found_rows(table)] == ["eu"]


def test_what_became_of_each_event_of_a_key_is_told(local_root: str) -> None:
    table = prices(local_root, track="v")
    write(table, (1, 10, "a", ""), (1, 20, "a", ""), (1, None, None, None, "d"))
    compact(table)
    write(table, (1, 30, None, None, "d"), (1, 40, "x", ""), (1, 40, "b", ""))
    (told,) = table.explain_key({"id": 1})
    assert [(event.stream_position, event.effect) for event in told.events] == [
        (1, "is one version with position 1, which changes no tracked column"),
        (1, "is valid from 10 until 30"),
        (1, "has no at, and so ends no version"),
        (2, "deletes the key from 30 on"),
        (2, "gave way to position 2, which has the same at"),
        (2, "is valid from 40 on"),
    ]
    assert told.why == "The version of position 2 is valid from 40 on: no event of the key is later."
    assert told.row is not None
    assert told.compacted_row is not None
    assert (told.row["v"], told.compacted_row["v"], told.compacted_row["_valid_to"]) == ("b", "a", None)


def test_nested_values_are_equal_where_all_in_them_is() -> None:
    nan = math.nan
    assert value_ids(pa.array([[nan, -0.0], [nan, 0.0], [], None, [0.0, nan]])).tolist() == [0, 0, 1, 2, 3]
    maps = pa.array([[("k", 1), ("l", None)], [], None, [("k", 1), ("l", None)]], pa.map_(pa.string(), pa.int64()))
    assert value_ids(maps).tolist() == [0, 1, 2, 0]
    kind = pa.struct([pa.field("a", pa.list_(pa.string())), pa.field("b", pa.int64())])
    structs = pa.array([{"a": ["x", None], "b": 1}, None, {"a": None, "b": None}, {"a": ["x", None], "b": 1}], kind)
    assert value_ids(pa.chunked_array([structs, structs.slice(1)])).tolist() == [0, 1, 2, 0, 1, 2, 0]
