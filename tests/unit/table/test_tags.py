"""Tags: names for states of a table, which stay readable whatever is compacted, trimmed, renamed and vacuumed."""

import contextlib
import datetime
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.document_table import create_document_table
from siltstone.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError, StorageError
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.testing import Killed, faults
from siltstone.testing.faults import FAULT_KINDS, FaultKind
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, compact, make_table, rows


@pytest.fixture
def table(new_root: Callable[[str], str]) -> siltstone.Table:
    """A table of two rounds, and a delta that waits."""
    made = make_table(new_root("memory"))
    for text in ("a", "b"):
        made.write(rows([1, 2, 3], text))
        compact(made)
    made.write(rows([3, 4], "c"))
    return made


def vacuum_all(table: siltstone.Table) -> list[str]:
    return table.vacuum(retention_ms=0, orphan_grace_ms=0).removed_files


def files(table: siltstone.Table) -> set[str]:
    return {each.path for each in open_objects(table.lake.root).list_objects("", recursive=True)}


def test_a_tag_is_read_by_its_name_after_all_else_of_its_state_is_vacuumed(table: siltstone.Table) -> None:
    first, second, third = (table.to_arrow(as_of=position) for position in (1, 2, 3))
    assert (
        table.tag("start", as_of=1).position,
        table.tag("now").rows,
        table.tag("all", as_of="3").waiting_deltas,
    ) == (1, 3, 1)
    assert table.tag("again", round_id=1).rounds == {"_": 1}
    for text in "def":
        table.write(rows([1, 2, 5], text))
        compact(table, MAJOR)
    source = table._sources()[0]
    storage.trim_partitions({source: 6}, root=table.lake.root)
    assert vacuum_all(table)
    assert [each.round_id for each in table.rounds()] == [1, 2, 5]
    for name, expected in (("start", first), ("again", first), ("now", second), ("all", third)):
        same_rows(table.to_arrow(as_of=name), expected.to_pylist())
    same_rows(table.scan(["id"], "id > 2", as_of="all").to_arrow(), [{"id": 3}, {"id": 4}])
    assert table.lake.sql(f"select count(*) from {table.name} AT (VERSION => 'all')").to_arrow()[0][0].as_py() == 4
    assert table.changes("start", "now").upto == {"_": 2}
    with pytest.raises(InvalidInputError, match="changes go from round to round"):
        table.changes("all")
    assert table.fsck(deep=True) == []
    renamed = table.rename(table.name + "2")
    same_rows(renamed.to_arrow(as_of="all"), third.to_pylist())
    assert [tag.name for tag in renamed.tags()] == ["again", "all", "now", "start"]
    for tag in renamed.tags():
        assert renamed.untag(tag.name) == tag
    vacuum_all(renamed)
    assert [each.round_id for each in renamed.rounds()] == [5]
    assert not any("/tags/" in path for path in files(renamed))


def test_names_are_checked_and_belong_to_one_state_until_they_are_replaced(table: siltstone.Table) -> None:
    for wrong in ("", "1", "2024-05-01", "../x", "a/b", "a..b", "a\n", 'a"', "é", "a" * 129, "-x"):
        with pytest.raises(InvalidInputError):
            table.tag(wrong)
    table.tag("good", as_of=1)
    before = files(table)
    with pytest.raises(AlreadyExistsError, match="there is a tag 'good' already, of position 1"):
        table.tag("good")
    assert files(table) == before
    assert table.tag("good", overwrite=True).position == 2
    with pytest.raises(NotFoundError, match="there is no tag 'goood'; did you mean good"):
        table.scan(as_of="goood")
    with pytest.raises(NotFoundError, match="no tag"):
        table.untag("other")
    with pytest.raises(InvalidInputError, match="give one of them"):
        table.tag("both", as_of=1, round_id=1)
    with pytest.raises(NotFoundError, match="there is no round 9"):
        table.tag("nine", round_id=9)


def test_a_tag_is_one_cut_of_all_partitions(tmp_path: Path) -> None:
    lake = siltstone.open(tmp_path)
    schema = {"day": "date", "id": "int64"}
    table = lake.create_table("shop.days", schema=schema, primary_keys=["day", "id"], partition_keys=["day"])
    assert table.tag("empty").rows == 0
    days = pa.array([datetime.date(2026, 1, day) for day in (1, 2)])
    for number in range(3):
        table.write(pa.table({"day": days, "id": [number, number]}))
    table.compact(engine="local")
    table.tag("whole")
    with pytest.raises(InvalidInputError, match="has 2 partitions"):
        table.tag("round", round_id=1)
    table.write(pa.table({"day": days, "id": [7, 7]}))
    table.tag("fresh", as_of=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1))
    table.compact(engine="local")
    vacuum_all(table)
    assert table.to_arrow(as_of="whole").num_rows == 6
    assert table.to_arrow(as_of="fresh").num_rows == 8
    assert table.to_arrow(as_of="empty").num_rows == 0
    assert table.scan(where="day = 2026-01-02", as_of="fresh").to_arrow().num_rows == 4


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_tag_that_dies_at_any_call_is_there_whole_or_not_at_all(table: siltstone.Table, kind: FaultKind) -> None:
    expected, at_call = table.to_arrow(as_of=3).to_pylist(), 0
    while True:
        at_call += 1
        name = f"t{at_call}"
        with faults(table.lake.root, at_call=at_call, kind=kind) as store:
            try:
                table.tag(name, as_of=3)
                is_certain = True
            except (Killed, StorageError):
                is_certain = False
        names = {tag.name for tag in table.tags()}
        assert name in names or not is_certain
        vacuum_all(table)
        for known in names:
            same_rows(table.to_arrow(as_of=known), expected)
            table.untag(known)
        if store.calls < at_call:
            break
    assert at_call > 5
    assert table.fsck() == []


def two_rounds(root: str) -> siltstone.Table:
    table = make_table(root)
    for text in ("a", "b"):
        table.write(rows([1, 2, 3], text))
        compact(table, MAJOR)
    return table


def test_a_vacuum_between_any_two_calls_of_a_tag_leaves_it_readable(new_root: Callable[[str], str]) -> None:
    at_call, calls, made = 0, 1, []
    while at_call <= calls:
        at_call += 1
        table = two_rounds(new_root("memory"))
        expected = table.to_arrow(as_of=1).to_pylist()
        vacuum = partial(vacuum_all, table)
        with (
            faults(table.lake.root, at_call=at_call, kind="meet", act=vacuum) as store,
            contextlib.suppress(NotFoundError),  # where it is forgotten already
        ):
            table.tag("kept", round_id=1)
        calls = store.calls
        made.append(len(table.tags()))
        if table.tags():
            same_rows(table.to_arrow(as_of="kept"), expected)
        assert table.fsck() == []
    assert {*made} == {0, 1}


def test_a_tag_between_any_two_calls_of_a_vacuum_is_readable(new_root: Callable[[str], str]) -> None:
    at_call, calls, made = 0, 1, []
    while at_call <= calls:
        at_call += 1
        table = two_rounds(new_root("memory"))
        expected = table.to_arrow(as_of=1).to_pylist()

        def tag(table: siltstone.Table = table) -> None:
            with contextlib.suppress(NotFoundError):
                table.tag("kept", round_id=1)

        with faults(table.lake.root, at_call=at_call, kind="meet", act=tag) as store:
            vacuum_all(table)
        calls = store.calls
        made.append(len(table.tags()))
        if table.tags():
            same_rows(table.to_arrow(as_of="kept"), expected)
        assert table.fsck() == []
    assert {*made} == {0, 1}


def test_fsck_names_what_a_tag_misses(table: siltstone.Table) -> None:
    tag = table.tag("kept", as_of=1)
    compact(table, MAJOR)
    vacuum_all(table)
    (data_file,) = {file.uri for file in table.snapshot(as_of="kept").partitions[0].completion.files}  # type: ignore[union-attr]
    objects = open_objects(table.lake.root)
    objects.delete([data_file])
    assert [(finding.code, finding.file) for finding in table.fsck()] == [("tag", data_file)]
    objects.replace(tag.uri, b"{}")
    assert [(finding.code, finding.file) for finding in table.fsck()] == [("tag", tag.uri)]
    with pytest.raises(CorruptionError, match="wrong checksum"):
        table.vacuum()
    table.untag("kept")
    assert table.fsck() == []


def test_documents_have_holds_instead(tmp_path: Path) -> None:
    documents = create_document_table(siltstone.open(tmp_path), "shop.notes")
    with pytest.raises(InvalidInputError, match="documents hold"):
        documents.lake.table("shop.notes").tag("x")
