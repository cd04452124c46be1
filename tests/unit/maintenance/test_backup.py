"""Backups and restores: between kinds of stores, again and again, beside writers and vacuums, and killed at any call."""

from collections.abc import Callable

import pyarrow as pa
import pytest

import siltstone
from siltstone.document_table import create_document_table
from siltstone.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError, StorageError
from siltstone.objects import open_objects
from siltstone.testing import Killed, faults
from siltstone.testing.faults import FaultKind
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, compact, make_table, rows

NewRoot = Callable[[str], str]


def a_lake(root: str) -> siltstone.Lake:
    """Return a lake with a table of two rounds, a tag and a delta that waits, and one of documents."""
    table = make_table(root)
    for text in ("a", "b"):
        table.write(rows([1, 2, 3], text), idempotency=("job", ord(text)))
        compact(table)
    table.tag("start", as_of=1)
    table.write(rows([3, 4], "c"))
    documents = create_document_table(table.lake, "shop.notes")
    documents.update("one", '{"n": 1}')
    return table.lake


def same_lake(restored: siltstone.Lake, original: siltstone.Lake) -> None:
    assert [table.name for table in restored.tables()] == [table.name for table in original.tables()]
    one, other = restored.table("shop.orders"), original.table("shop.orders")
    for as_of in (1, 2, 3, "start"):
        same_rows(one.to_arrow(as_of=as_of), other.to_arrow(as_of=as_of).to_pylist())
    assert [round_.round_id for round_ in one.rounds()] == [round_.round_id for round_ in other.rounds()]
    assert restored.document_table("shop.notes").get("one") == original.document_table("shop.notes").get("one")
    for table in restored.tables():
        assert table.fsck(deep=True) == []


def files_of(root: str) -> dict[str, int]:
    return {info.path: info.size for info in open_objects(root).list_objects("", recursive=True)}


@pytest.mark.parametrize(("of", "to"), [("local", "s3"), ("s3", "local"), ("local", "local")])
def test_a_lake_comes_back_as_it_was_and_lives_on(new_root: NewRoot, of: str, to: str) -> None:
    lake, target = a_lake(new_root(of)), new_root(to)
    assert lake.backup(target, dry_run=True).number is None
    assert files_of(target) == {}
    report = lake.backup(target, check=True)
    assert (report.number, report.tables, report.copied_files) == (1, ["shop.notes", "shop.orders"], report.files)
    assert report.checked_files == report.files
    again = lake.backup(target)
    assert (again.number, again.copied_files, again.files) == (1, 0, report.files)
    restored = siltstone.open(new_root(of))
    assert restored.restore(target, dry_run=True).copied_files == report.files
    assert restored.tables() == []
    assert restored.restore(target, check=True).files == report.files
    same_lake(restored, lake)
    table = restored.table("shop.orders")
    assert table.write(rows([9]), idempotency=("job", ord("a"))) == 1  # it remembers what was written
    table.write(rows([9]))
    compact(table)
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 9]
    with pytest.raises(AlreadyExistsError, match="holds a lake already"):
        restored.restore(target)


def test_a_backup_copies_what_is_new_and_earlier_ones_stay(new_root: NewRoot) -> None:
    lake, target = a_lake(new_root("memory")), new_root("memory")
    first = lake.backup(target)
    table = lake.table("shop.orders")
    before = table.to_arrow(as_of=3).to_pylist()
    compact(table, MAJOR)
    table.untag("start")
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    second = lake.backup(target, check=True)
    assert (second.number, second.copied_files < first.files) == (2, True)
    new, old = siltstone.open(new_root("memory")), siltstone.open(new_root("memory"))
    new.restore(target)
    same_rows(new.table("shop.orders").to_arrow(), before)
    assert [round_.round_id for round_ in new.table("shop.orders").rounds()] == [3]
    old.restore(target, number=1, tables=["shop.orders"])
    assert [each.name for each in old.tables()] == ["shop.orders"]
    assert [round_.round_id for round_ in old.table("shop.orders").rounds()] == [1, 2]
    with pytest.raises(NotFoundError, match="no backup 7; there are 1, 2"):
        old.restore(target, number=7)
    with pytest.raises(NotFoundError, match=r"has no table shop.order; did you mean shop.orders"):
        siltstone.open(new_root("memory")).restore(target, tables=["shop.order"])


def test_some_tables_can_be_backed_up(new_root: NewRoot) -> None:
    lake, target = a_lake(new_root("memory")), new_root("memory")
    with pytest.raises(NotFoundError, match=r"there is no table shop\.other"):
        lake.backup(target, tables=["shop.other"])
    assert lake.backup(target, tables=["shop.notes"]).tables == ["shop.notes"]
    restored = siltstone.open(new_root("memory"))
    restored.restore(target)
    assert restored.namespaces() == ["shop"]
    assert restored.document_table("shop.notes").get("one")["n"] == 1
    with pytest.raises(InvalidInputError, match="a backup cannot be in the lake"):
        lake.backup(f"{lake.root}/backup")


def test_what_is_damaged_in_a_backup_is_named(new_root: NewRoot) -> None:
    lake, target = a_lake(new_root("memory")), new_root("memory")
    lake.backup(target)
    objects = open_objects(target)
    path = next(path for path in files_of(target) if path.endswith(".parquet"))
    data = objects.read(path)
    objects.replace(path, bytes(len(data)))
    with pytest.raises(CorruptionError, match="instead of"):
        lake.backup(target, check=True)
    with pytest.raises(CorruptionError, match="instead of"):
        siltstone.open(new_root("memory")).restore(target)
    objects.delete([path])
    with pytest.raises(CorruptionError, match="is missing"):
        siltstone.open(new_root("memory")).restore(target)
    lake.backup(target, check=True)  # copies it again
    objects.replace("backups/1.json", b"00000000\n{}")
    with pytest.raises(CorruptionError, match="the manifest is damaged"):
        siltstone.open(new_root("memory")).restore(target)


@pytest.mark.parametrize("kind", ["kill", "lose"])
@pytest.mark.parametrize("faulty", ["source", "target"])
def test_a_backup_that_dies_at_any_call_goes_on_when_it_is_run_again(
    new_root: NewRoot, faulty: str, kind: FaultKind
) -> None:
    lake, at_call, calls = a_lake(new_root("memory")), 0, 1
    while at_call <= calls:
        at_call += 1
        target = new_root("memory")
        with faults(lake.root if faulty == "source" else target, at_call=at_call, kind=kind) as store:
            try:
                lake.backup(target)
            except (Killed, StorageError):
                assert store.calls >= at_call
        calls = max(calls, store.calls)
        if "backups/1.json" not in files_of(target):
            with pytest.raises(NotFoundError, match="no backup; there is none"):
                siltstone.open(new_root("memory")).restore(target)
        assert lake.backup(target, check=True).number == 1
        if at_call % 5 == 0:
            restored = siltstone.open(new_root("memory"))
            restored.restore(target)
            same_lake(restored, lake)
    assert at_call > 20


@pytest.mark.parametrize("kind", ["kill", "lose"])
def test_a_restore_that_dies_at_any_call_shows_no_table_before_all_is_there(new_root: NewRoot, kind: FaultKind) -> None:
    lake, target, at_call, calls = a_lake(new_root("memory")), new_root("memory"), 0, 1
    lake.backup(target)
    while at_call <= calls:
        at_call += 1
        restored = siltstone.open(new_root("memory"))
        with faults(restored.root, at_call=at_call, kind=kind) as store:
            try:
                restored.restore(target)
            except (Killed, StorageError):
                assert store.calls >= at_call
        calls = max(calls, store.calls)
        if not restored.tables():
            restored.restore(target)
        same_lake(restored, lake)
    assert at_call > 20


def test_a_restore_refuses_a_root_with_other_files(new_root: NewRoot) -> None:
    lake, target, root = a_lake(new_root("memory")), new_root("memory"), new_root("memory")
    lake.backup(target)
    open_objects(root).create("notes.txt", b"mine")
    with pytest.raises(AlreadyExistsError, match=r"holds files already, e.g. notes.txt"):
        siltstone.open(root).restore(target)


def test_a_backup_is_one_cut_whatever_happens_between_any_two_calls(new_root: NewRoot) -> None:
    at_call, calls = 0, 1
    while at_call <= calls:
        at_call += 2
        lake, target = a_lake(new_root("memory")), new_root("memory")
        table = lake.table("shop.orders")
        table.untag("start")

        def go_on(table: siltstone.Table = table) -> None:
            table.write(rows([1, 5], "d"))
            compact(table, MAJOR)
            table.vacuum(retention_ms=0, orphan_grace_ms=0)

        with faults(lake.root, at_call=at_call, kind="meet", act=go_on) as store:
            lake.backup(target)
        calls = store.calls
        restored = siltstone.open(new_root("memory"))
        restored.restore(target)
        found = restored.table("shop.orders")
        assert found.fsck(deep=True) == []
        newest = max(delta.stream_position for delta in found.deltas())
        assert newest in (3, 4)
        expected = {1: "b1", 2: "b2", 3: "c3", 4: "c4"} | ({} if newest == 3 else {1: "d1", 5: "d5"})
        fresh = found.to_arrow(include_uncompacted=True).to_pylist()
        assert {row["id"]: row["v"] for row in fresh} == expected


def test_an_empty_lake_and_empty_tables_come_back(new_root: NewRoot) -> None:
    lake, target = siltstone.open(new_root("memory")), new_root("memory")
    assert lake.backup(target).files == 0
    lake.create_table("shop.empty", schema=pa.schema([("id", pa.int64())]), primary_keys=["id"])
    assert lake.backup(target).number == 2
    restored = siltstone.open(new_root("memory"))
    restored.restore(target)
    assert restored.table("shop.empty").to_arrow().num_rows == 0
