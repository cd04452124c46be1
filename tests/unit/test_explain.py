"""Why a key has the row it has."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import given, settings

import siltstone
from siltstone.testing.oracle import comparable, oracle_of
from siltstone.testing.strategies import TableSettings, Write, histories


def test_every_delta_that_touched_a_key_is_told_with_its_effect(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.orders", schema={"id": "int64", "at": "int64", "status": "string"}, primary_keys="id", sort_keys="at"
    )
    table.write(pa.table({"id": [1, 7], "at": [10, 10], "status": ["x", "new"]}))
    table.write(pa.table({"id": [7, 7], "at": [30, 20], "status": ["paid", "late"]}))
    table.write(pa.table({"id": [7], "at": [40], "status": ["gone"], "op": ["d"]}), op_column="op")
    table.write(pa.table({"id": [7], "at": [35], "status": ["too late"]}))
    table.write(pa.table({"id": [7], "at": [50], "status": ["back"]}))
    table.write(pa.table({"status": ["back"]}), type="delete", delete_columns=["status"])
    table.write(pa.table({"id": [7], "at": [5], "status": ["anew"]}))
    (told,) = table.explain_key({"id": 7})
    assert [(event.stream_position, event.row, event.kind, event.effect) for event in told.events] == [
        (1, 1, "upsert", "brings the row"),
        (2, 0, "upsert", "replaces the row of position 1"),
        (2, 1, "upsert", "stays out: its sort key is older than that of position 2"),
        (3, 0, "row-level delete", "deletes the row"),
        (4, 0, "upsert", "stays out: its sort key is older than that of position 3"),
        (5, 0, "upsert", "brings the row"),
        (6, 0, "delete on status", "deletes the row"),
        (7, 0, "upsert", "brings the row"),
    ]
    assert [event.stream_position for event in told.events if event.is_winner] == [7]
    assert told.row == {"id": 7, "at": 5, "status": "anew"}


def test_a_wrong_key_is_refused(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.orders", schema={"id": "int64", "b": "int8"}, primary_keys="id"
    )
    table.write(pa.table({"id": [1]}))
    with pytest.raises(siltstone.InvalidInputError, match="primary key"):
        table.explain_key({"b": 1})
    with pytest.raises(siltstone.InvalidInputError, match="does not fit"):
        table.explain_key({"id": "seven"})
    assert table.explain_key({"id": 2}) == []


@settings(max_examples=60)
@given(histories(with_partitions=False))
def test_the_row_that_is_explained_is_the_row_of_the_oracle(history: tuple[TableSettings, list[Write]]) -> None:
    made, writes = history
    if not made.primary_keys or not made.drop_duplicates:
        return
    table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
    for write in writes:
        write.write_to(table)
    for row in oracle_of(table).rows():
        (told,) = table.explain_key({name: row[name] for name in made.primary_keys})
        assert told.row is not None
        assert comparable([told.row[name] for name in row]) == comparable(list(row.values()))
