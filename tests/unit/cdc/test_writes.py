"""Change events into tables: one commit, the order of the source, rejects, several tables, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.cdc import SOURCE_POSITION
from siltstone.errors import InputWarning, InvalidInputError
from siltstone.lake import Lake, Table
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.cdc.messages import UNAVAILABLE, change, lines, told, with_schema

SCHEMA = {"id": "int64", "name": "string", "big": "string", SOURCE_POSITION: "binary"}
FIELDS = [told("id", "int64"), told("name", "string"), told("big", "string")]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return siltstone.open(tmp_path / "lake")


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.create_table(
        "shop.orders",
        schema=SCHEMA,
        primary_keys=["id"],
        sort_keys=[SOURCE_POSITION],
        merge_engine="partial_update",
    )


def row(key: int, name: str = "a", big: str | None = "B") -> dict[str, Any]:
    return {"id": key, "name": name, "big": big}


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    found = table.to_arrow(["id", "name", "big"], include_uncompacted=True).to_pylist()
    return sorted(tuple(each.values()) for each in found)


def test_rows_that_give_different_columns_are_one_commit(table: Table) -> None:
    table.write_changes(lines([change("c", 1, row(1)), change("c", 2, row(2))]), "debezium")
    events = [change("u", 3, row(1, "x", UNAVAILABLE)), change("u", 4, row(2, "y", "new")), change("c", 5, row(3))]
    before = len(table.deltas())
    written = table.write_changes(lines(events), "debezium", idempotency=("job", 1))
    assert (written.stream_position, written.rows, len(table.deltas()) - before) == (3, 3, 2)
    assert rows_of(table) == [(1, "x", "B"), (2, "y", "new"), (3, "a", "B")]
    again = table.write_changes(lines(events), "debezium", idempotency=("job", 1))
    assert again.repeated
    assert again.stream_position == 3
    assert len(table.deltas()) - before == 2
    table.compact(engine="local")
    assert rows_of(table) == [(1, "x", "B"), (2, "y", "new"), (3, "a", "B")]
    assert not table.fsck(deep=True)


def test_a_moved_value_is_found_in_the_table_also_when_events_come_again(table: Table) -> None:
    table.write_changes(lines([change("c", 1, row(1, "a", "BIG"))]), "debezium")
    moved = lines([change("d", 5, row(1, "", None)), change("c", 5, row(2, "a", UNAVAILABLE))])
    for _ in range(2):
        table.write_changes(moved, "debezium")
        assert rows_of(table) == [(2, "a", "BIG")]
    table.compact(engine="local")
    table.write_changes(lines([change("d", 6, row(2, "", None)), change("c", 7, row(1, "later", "other"))]), "debezium")
    table.write_changes(moved, "debezium")
    assert rows_of(table) == [(1, "later", "other")]
    with pytest.raises(InvalidInputError, match="REPLICA IDENTITY FULL"):
        table.write_changes(
            lines([change("d", 8, row(70, "", None)), change("c", 8, row(71, "a", UNAVAILABLE))]), "debezium"
        )


def test_an_event_that_does_not_fit_stops_the_write_or_is_put_aside(table: Table, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines([change("c", 1, row(1)), change("c", 2, {**row(2), "name": 7})]))
    with pytest.raises(InvalidInputError, match=r"events\.jsonl, line 2: column 'name': 7 does not fit string"):
        table.write_change_files([str(file)], "debezium")
    assert not table.deltas()
    from siltstone.change_writes import ChangeOptions

    written = table.write_change_files([str(file)], "debezium", ChangeOptions(rejects=str(tmp_path / "bad")))
    assert (written.rows, written.rejected) == (1, 1)
    assert rows_of(table) == [(1, "a", "B")]
    assert written.rejects_file is not None
    (reject,) = [json.loads(line) for line in Path(written.rejects_file).read_text().splitlines()]
    assert reject["place"] == f"{file}, line 2"
    assert json.loads(reject["event"])["after"]["name"] == 7


def test_a_table_that_replaces_rows_refuses_events_that_leave_columns_out(lake: Lake) -> None:
    table = lake.create_table("shop.orders", schema=SCHEMA, primary_keys=["id"], sort_keys=[SOURCE_POSITION])
    with pytest.raises(InvalidInputError, match=r"leave out big.*deduplicate.*REPLICA IDENTITY FULL"):
        table.write_changes(lines([change("u", 1, row(1, "a", UNAVAILABLE))]), "debezium")
    assert not table.deltas()


def test_a_table_without_source_positions_takes_events_as_they_come_and_says_so(lake: Lake) -> None:
    columns = {name: kind for name, kind in SCHEMA.items() if name != SOURCE_POSITION}
    table = lake.create_table("shop.plain", schema=columns, primary_keys=["id"])
    with pytest.warns(InputWarning, match="in the order they come"):
        table.write_changes(lines([change("c", 2, row(1, "late")), change("c", 1, row(1, "early"))]), "debezium")
    assert rows_of(table) == [(1, "early", "B")]
    sorted_by_name = lake.create_table("shop.other", schema=columns, primary_keys=["id"], sort_keys=["name"])
    with pytest.raises(InvalidInputError, match="its sort key is name"), pytest.warns(InputWarning):
        sorted_by_name.write_changes(lines([change("d", 1, row(1))]), "debezium")


def test_events_without_a_source_position_are_refused_where_the_table_goes_by_it(table: Table) -> None:
    with pytest.raises(InvalidInputError, match=r"add\.fields"):
        table.write_changes(lines([row(1)]), "debezium")


def test_a_truncate_holds_for_all_rows_before_it_however_late_they_come(table: Table) -> None:
    table.write_changes(lines([change("c", 1, row(1)), change("c", 2, row(2)), change("c", 9, row(3))]), "debezium")
    table.compact(engine="local")
    written = table.write_changes(lines([change("c", 6, row(4)), change("t", 5), change("u", 4, row(5))]), "debezium")
    assert (written.truncates, written.stream_position) == (1, 3)
    expected = [(3, "a", "B"), (4, "a", "B")]
    assert rows_of(table) == expected
    for _ in range(2):
        table.compact(engine="local")
        table.write_changes(lines([change("u", 4, row(6)), change("d", 3, row(3))]), "debezium")
        assert rows_of(table) == expected
    (told,) = table.explain_key({"id": 1})
    assert [event.kind for event in told.events] == ["upsert", "truncate"]
    (told,) = table.explain_key({"id": 6})
    assert "truncated" in told.events[0].effect
    table.compact(full=True, rebase_from=table, engine="local")
    assert rows_of(table) == expected
    table.write_changes(lines([change("t", 20)]), "debezium")
    table.compact(engine="local")
    assert rows_of(table) == []
    assert not table.fsck(deep=True)


def test_a_truncate_in_order_of_arrival_is_of_all_rows_before_it(lake: Lake) -> None:
    columns = {name: kind for name, kind in SCHEMA.items() if name != SOURCE_POSITION}
    for engine in ("deduplicate", "partial_update", "first_row"):
        table = lake.create_table(f"shop.{engine}", schema=columns, primary_keys=["id"], merge_engine=engine)
        with pytest.warns(InputWarning):
            table.write_changes(lines([change("c", 1, row(1))]), "debezium")
        table.compact(engine="local")
        with pytest.warns(InputWarning):
            table.write_changes(lines([change("c", 2, row(2)), change("t", 3), change("c", 4, row(3))]), "debezium")
        assert rows_of(table) == [(3, "a", "B")]
        table.compact(engine="local")
        with pytest.warns(InputWarning):
            table.write_changes(lines([change("c", 1, row(1))]), "debezium")
        assert rows_of(table) == [(1, "a", "B"), (3, "a", "B")]


@pytest.fixture
def parts(lake: Lake) -> Table:
    return lake.create_table(
        "shop.parts",
        schema=SCHEMA,
        primary_keys=["id", "name"],
        sort_keys=[SOURCE_POSITION],
        partition_keys=["name"],
        merge_engine="partial_update",
    )


def test_a_truncate_reaches_every_partition(parts: Table) -> None:
    table = parts
    table.write_changes(lines([change("c", 1, row(1, "x")), change("c", 2, row(2, "y"))]), "debezium")
    table.write_changes(lines([change("t", 5), change("c", 6, row(3, "x"))]), "debezium")
    assert rows_of(table) == [(3, "x", "B")]
    table.compact(engine="local")
    assert rows_of(table) == [(3, "x", "B")]


def test_a_truncate_holds_in_partitions_that_begin_after_it(parts: Table) -> None:
    # The first finds no partition at all, the second comes with rows of new ones, before it and after it.
    parts.write_changes(lines([change("t", 5)]), "debezium")
    parts.write_changes(lines([change("c", 3, row(1, "x")), change("c", 6, row(2, "x"))]), "debezium")
    parts.write_changes(lines([change("c", 7, row(3, "y")), change("t", 8), change("c", 9, row(4, "z"))]), "debezium")
    parts.write_changes(lines([change("c", 7, row(5, "z")), change("u", 4, row(6, "w"))]), "debezium")
    expected = [(4, "z", "B")]
    assert rows_of(parts) == expected
    first = {delta.partition_values[0]: delta for delta in parts.deltas() if not delta.previous_stream_position}
    assert {name: delta.inherited_floor is not None for name, delta in first.items()} == dict.fromkeys("xyzw", True)
    (told,) = parts.explain_key({"id": 6, "name": "w"})
    assert "truncated" in told.events[0].effect
    same_rows(parts.to_arrow(include_uncompacted=True), oracle_of(parts).rows())
    parts.compact(engine="local")
    assert rows_of(parts) == expected
    parts.write_changes(lines([change("u", 4, row(7, "w")), change("u", 10, row(8, "w"))]), "debezium")
    for _ in range(2):
        parts.compact(engine="local")
        assert rows_of(parts) == [*expected, (8, "w", "B")]
        parts.rollback(1, partition_values=["w"])
        assert rows_of(parts) == [*expected, (8, "w", "B")]
    parts.compact(rebase_from=parts, engine="local")
    parts.write_changes(lines([change("u", 4, row(9, "w"))]), "debezium")
    assert rows_of(parts) == [*expected, (8, "w", "B")]
    assert not parts.fsck(deep=True)


def test_an_overwrite_ends_what_a_truncate_keeps_out(parts: Table) -> None:
    def late(key: int, name: str) -> pa.Table:
        values = {**row(key, name), SOURCE_POSITION: b"\0"}
        return pa.Table.from_pylist([values], schema=parts.schema)

    parts.write_changes(lines([change("c", 1, row(1, "x")), change("t", 5)]), "debezium")
    parts.write(late(2, "y"), mode="overwrite", partitions="present")
    parts.write(late(3, "y"))
    parts.write(late(4, "z"))
    assert rows_of(parts) == [(2, "y", "B"), (3, "y", "B")]
    parts.write(late(5, "x"), mode="overwrite")
    parts.write(late(6, "w"))
    assert rows_of(parts) == [(5, "x", "B"), (6, "w", "B")]
    same_rows(parts.to_arrow(include_uncompacted=True), oracle_of(parts).rows())
    parts.compact(engine="local")
    assert rows_of(parts) == [(5, "x", "B"), (6, "w", "B")]


def test_several_tables_are_created_and_written(lake: Lake, tmp_path: Path) -> None:
    messages = [
        {"key": {"id": 1}, "value": with_schema(change("c", 1, row(1)), FIELDS)},
        {"key": {"id": 1}, "value": with_schema(change("c", 2, row(1), table="items"), FIELDS)},
        {"key": {"id": 2}, "value": with_schema(change("c", 3, row(2)), FIELDS)},
    ]
    file = tmp_path / "events.jsonl"
    file.write_bytes(lines(messages))
    with pytest.raises(InvalidInputError, match="use --create"):
        lake.write_change_files([str(file)], "debezium", into="shop.{table}")
    written = lake.write_change_files([str(file)], "debezium", into="shop.{table}", create=True)
    assert [(each.table, each.rows) for each in written] == [("shop.orders", 2), ("shop.items", 1)]
    assert lake.table("shop.orders").version.sort_keys == [SOURCE_POSITION]
    assert rows_of(lake.table("shop.items")) == [(1, "a", "B")]


def test_new_fields_become_columns_unless_the_write_is_strict(table: Table) -> None:
    messages = [with_schema(change("c", 1, {**row(1), "more": 5}), [*FIELDS, told("more", "int32")])]
    with pytest.raises(InvalidInputError, match="'more'"):
        table.write_changes(lines(messages), "debezium", evolve=False)
    assert table.write_changes(lines(messages), "debezium").new_columns == ["more"]
    assert table.schema.field("more").type == pa.int32()


def test_a_dry_run_and_events_that_change_nothing_write_nothing(table: Table, tmp_path: Path) -> None:
    written = table.write_changes(lines([change("c", 1, row(1))]), "debezium", dry_run=True)
    assert (written.rows, written.stream_position) == (1, None)
    assert table.write_changes(b'null\n{"ts_ms": 1}\n', "debezium").skipped == {"tombstone": 1, "heartbeat": 1}
    assert not table.deltas()


def test_deletes_of_tables_with_partitions_find_the_row_wherever_it_is(lake: Lake) -> None:
    table = lake.create_table(
        "shop.parts",
        schema=SCHEMA,
        primary_keys=["id"],
        sort_keys=[SOURCE_POSITION],
        partition_keys=["name"],
        unique_within_partition=True,
        merge_engine="partial_update",
    )
    events = [
        change("c", 1, row(1, "x")),
        change("c", 2, row(2, "y")),
        change("u", 3, row(2, "y", UNAVAILABLE)),
        change("d", 4, row(1, "")),
    ]
    table.write_changes(lines(events[:2]), "debezium")
    table.write_changes(lines(events[2:]), "debezium")
    assert rows_of(table) == [(2, "y", "B")]
