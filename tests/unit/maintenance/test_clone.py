"""Clones: the same rows under another name, each table with a life of its own, also where a clone dies on its way."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.document_table import create_document_table
from siltstone.errors import AlreadyExistsError, InvalidInputError, NotFoundError, StorageError
from siltstone.objects import open_objects
from siltstone.testing import Killed, faults
from siltstone.testing.faults import FaultKind
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, compact, make_table, rows

NewRoot = Callable[[str], str]


def a_table(root: str) -> siltstone.Table:
    """Return a table of two rounds with dead rows, and a delta that waits."""
    table = make_table(root)
    for ids, text in (([1, 2, 3], "a"), ([2], "b")):
        table.write(rows(ids, text))
        compact(table)
    table.write(rows([3, 4], "c"))
    return table


def vacuum_all(lake: siltstone.Lake) -> None:
    for table in lake.tables():
        table.vacuum(retention_ms=0, orphan_grace_ms=0)
    lake.vacuum_dropped(retention_ms=0)


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_each_of_the_two_lives_and_dies_by_itself(new_root: NewRoot, kind: str) -> None:
    table = a_table(new_root(kind))
    lake, first, all_rows = table.lake, table.to_arrow(as_of=1), table.to_arrow(as_of=3)
    assert lake.clone_table(table.name, "test.orders", as_of=3, dry_run=True).waiting_deltas == 1
    report = lake.clone_table(table.name, "test.orders", as_of=3)
    assert (report.position, report.rows, report.is_copied) == (3, 3, kind != "local")
    clone = lake.table("test.orders")
    lake.clone_table(table.name, "test.first", as_of=1)
    compact(clone, MAJOR)
    clone.write(rows([9], "z"))
    table.drop()
    vacuum_all(lake)
    same_rows(lake.table("test.first").to_arrow(), first.to_pylist())
    same_rows(clone.to_arrow(), all_rows.to_pylist())
    compact(clone)
    assert clone.lookup({"id": 9}) == [{"id": 9, "v": "z9"}]
    assert [delta.stream_position for delta in clone.deltas()] == [3, 4]
    for each in lake.tables():
        assert each.fsck(deep=True) == []
    clone.publish("delta")
    assert lake.sql("select count(*) from test.orders").to_arrow()[0][0].as_py() == 5


def test_on_local_disk_a_clone_takes_no_room(new_root: NewRoot) -> None:
    table = a_table(new_root("local"))
    compact(table)
    table.lake.clone_table(table.name, "test.orders")
    (clone,) = {
        file.uri for file in table.lake.table("test.orders").current_rounds()[0].files if file.record_count == 3
    }
    assert Path(table.lake.root, clone).stat().st_nlink == 2


def test_partitions_dropped_columns_and_tags_are_as_in_the_source(new_root: NewRoot) -> None:
    lake = siltstone.open(new_root("memory"))
    schema = {"day": "int64", "id": "int64", "old": "string", "v": "string"}
    table = lake.create_table("shop.days", schema=schema, primary_keys=["day", "id"], partition_keys=["day"])
    for number in range(3):
        table.write(pa.table({"day": [1, 2], "id": [number, number], "old": ["x", "x"], "v": ["a", "b"]}))
    table.alter(drop_columns=["old"], rename_columns={"v": "w"})
    table.compact(engine="local")
    table.tag("kept")
    table.alter(add_columns={"old": "string"})
    lake.clone_table("shop.days", "shop.copy", as_of="kept")
    clone = lake.table("shop.copy")
    same_rows(clone.to_arrow(), table.to_arrow().to_pylist())
    assert clone.tags() == []
    clone.write(pa.table({"day": [1], "id": [0], "old": ["new"], "w": ["c"]}))
    clone.compact(engine="local")
    assert clone.lookup({"day": 1, "id": 0}) == [{"day": 1, "id": 0, "w": "c", "old": "new"}]
    assert clone.fsck(deep=True) == []


@pytest.mark.parametrize("kind", ["kill", "lose"])
def test_a_clone_that_dies_at_any_call_is_there_whole_or_not_at_all(new_root: NewRoot, kind: FaultKind) -> None:
    table, at_call, calls = a_table(new_root("memory")), 0, 1
    lake, expected = table.lake, table.to_arrow(as_of=3).to_pylist()
    while at_call <= calls:
        at_call += 1
        with faults(lake.root, at_call=at_call, kind=kind) as store:
            try:
                lake.clone_table(table.name, "test.orders", as_of=3)
            except (Killed, StorageError):
                assert store.calls >= at_call
        calls = max(calls, store.calls)
        if lake.has_table("test.orders"):
            clone = lake.table("test.orders")
            assert clone.fsck() == []
            same_rows(clone.to_arrow(include_uncompacted=True), expected)
            clone.drop()
        vacuum_all(lake)
        folders = open_objects(lake.root).list_folders("tables/test/orders")
        assert folders == []


def test_a_vacuum_between_any_two_calls_leaves_a_clone_that_is_whole(new_root: NewRoot) -> None:
    at_call, calls = 0, 1
    while at_call <= calls:
        at_call += 1
        table = a_table(new_root("memory"))

        def vacuum(table: siltstone.Table = table) -> None:
            compact(table, MAJOR)
            table.vacuum(retention_ms=0, orphan_grace_ms=0)

        with faults(table.lake.root, at_call=at_call, kind="meet", act=vacuum) as store:
            table.lake.clone_table(table.name, "test.orders")
        calls = store.calls
        clone = table.lake.table("test.orders")
        assert clone.fsck(deep=True) == []
        assert clone.to_arrow().num_rows in (3, 4)


def test_names_that_are_taken_and_tables_of_documents_are_refused(new_root: NewRoot) -> None:
    table = a_table(new_root("memory"))
    with pytest.raises(AlreadyExistsError, match="exists already"):
        table.lake.clone_table(table.name, table.name)
    with pytest.raises(NotFoundError, match="did you mean"):
        table.lake.clone_table("shop.order", "shop.copy")
    with pytest.raises(NotFoundError, match="there is no tag"):
        table.lake.clone_table(table.name, "shop.copy", as_of="nowhere")
    create_document_table(table.lake, "shop.notes")
    with pytest.raises(InvalidInputError, match="table of documents"):
        table.lake.clone_table("shop.notes", "shop.copy")
