"""Erasing a key: from deltas, rounds, tombstones, tags and published versions, whatever dies or happens meanwhile."""

import datetime
import io
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone.catalog import main as catalog
from siltstone.document_table import create_document_table
from siltstone.errors import ConflictError, CorruptionError, InvalidInputError, SiltstoneError, StorageError
from siltstone.objects import open_objects
from siltstone.rows.merge import run_here
from siltstone.testing import Killed, faults
from siltstone.testing.faults import FaultKind
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, MINOR, compact, make_table, meeting

NewRoot = Callable[[str], str]
WHO = "customer-17@example.org"
SECRET = "lives in Lima"
FEW = replace(MINOR, bucket_rows=4)


def people(numbers: range, text: str = "", at: int | None = None) -> pa.Table:
    columns = {
        "who": [f"customer-{number}@example.org" for number in numbers],
        "note": [SECRET if number == 17 else f"{text}{number}" for number in numbers],
    }
    return pa.table(columns if at is None else {**columns, "at": [at] * len(numbers)})


def a_table(root: str) -> siltstone.Table:
    """Return a table in which a key is live, dead, in several rounds, in deltas that wait, and in those that do not."""
    table = make_table(root, schema={"who": "string", "note": "string"}, primary_keys=["who"])
    table.write(people(range(30)))
    compact(table, FEW)
    table.write(people(range(10, 20), "new "))
    compact(table, FEW)
    table.write(people(range(15, 40), "late "))
    return table


def a_small_table(root: str) -> siltstone.Table:
    table = make_table(root, schema={"who": "string", "note": "string"}, primary_keys=["who"])
    table.write(people(range(16, 20)))
    compact(table)
    table.write(people(range(17, 18)))
    return table


def holding(root: str, texts: tuple[str, ...] = (WHO, SECRET)) -> list[str]:
    """Return the objects that have any of some texts anywhere, decoded as Parquet or as they are."""
    objects, found = open_objects(root), []
    for info in objects.list_objects("", recursive=True):
        data = objects.read(info.path)
        if data[:4] == b"PAR1":
            file = pq.ParquetFile(io.BytesIO(data))
            data += repr(file.read().to_pylist()).encode() + repr(file.metadata.to_dict()).encode()
        if any(text.encode() in data for text in texts):
            found.append(info.path)
    return found


def without_key(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [row for row in rows if row["who"] != WHO]


def test_a_key_is_gone_from_everything_and_all_other_rows_are_as_they_were(new_root: NewRoot) -> None:
    table = a_table(new_root("local"))
    expected = without_key(table.to_arrow(include_uncompacted=True).to_pylist())
    table.publish("delta")
    table.publish("iceberg")
    table.changes(consumer="billing").acknowledge()
    assert holding(table.lake.root)
    planned = table.erase({"who": WHO}, dry_run=True)
    assert (planned.found_files > 5, planned.removed_files, planned.obstacles) == (True, 0, [])
    report = table.erase({"who": WHO})
    assert (report.rewritten_deltas, report.forgotten_rounds, report.published_again) == (3, 2, ["delta", "iceberg"])
    assert (report.left_files, report.searched_files > 10, report.found_rows) == ([], True, planned.found_rows)
    assert holding(table.lake.root) == []
    assert table.fsck(deep=True) == []
    same_rows(table.to_arrow(include_uncompacted=True), expected)
    assert {each.format: each.behind_rounds for each in table.published()} == {"delta": 0, "iceberg": 0}
    assert list(table.changes(consumer="billing")) == []  # it goes on where it was
    again = table.erase({"who": WHO})
    assert (again.found_files, again.rounds, again.published_again) == (0, [], [])
    compact(table, FEW)
    same_rows(table.to_arrow(), expected)
    table.write(people(range(17, 18)))  # a key that comes back lives as any other
    compact(table, FEW)
    assert table.lookup({"who": WHO}) == [{"who": WHO, "note": SECRET}]
    assert table.fsck(deep=True) == []


def test_deleted_keys_are_erased_with_their_tombstones(new_root: NewRoot) -> None:
    schema = {"who": "string", "note": "string", "at": "int64"}
    table = make_table(new_root("memory"), schema=schema, primary_keys=["who"], sort_keys=["at"])
    table.write(people(range(30), at=1))
    compact(table, FEW)
    gone = people(range(16, 19), at=5).append_column("op", [["d"] * 3])
    table.write(gone, op_column="op")
    compact(table, FEW)
    assert any(path.endswith(".tombstones") for path in holding(table.lake.root))
    table.erase({"who": WHO})
    assert holding(table.lake.root) == []
    assert table.fsck(deep=True) == []
    assert any(
        info.path.endswith(".tombstones") for info in open_objects(table.lake.root).list_objects("", recursive=True)
    )


def test_what_keeps_a_state_stops_it_unless_it_is_forced(new_root: NewRoot) -> None:
    table = a_table(new_root("memory"))
    table.tag("old", as_of=1)
    table.changes(upto="round:1", consumer="slow").acknowledge()
    before = holding(table.lake.root)
    assert table.erase({"who": WHO}, dry_run=True).obstacles == ["tag old", "consumer slow at round 1"]
    with pytest.raises(ConflictError, match="that hold the key are kept by tag old; consumer slow at round 1; remove"):
        table.erase({"who": WHO})
    assert holding(table.lake.root) == before
    assert table.erase({"who": WHO}, force=True).removed_tags == ["old"]
    assert holding(table.lake.root) == []
    with pytest.raises(SiltstoneError, match="vacuumed"):
        list(table.changes(consumer="slow"))


def test_a_key_of_a_partition_leaves_deltas_that_delete_by_a_part_of_it(new_root: NewRoot) -> None:
    schema = {"day": "date", "who": "string"}
    table = make_table(new_root("memory"), schema=schema, primary_keys=["day", "who"], partition_keys=["day"])
    days = pa.array([datetime.date(2026, 1, day) for day in (1, 1, 2, 2)])
    table.write(pa.table({"day": days, "who": [WHO, "b", WHO, "c"]}))
    table.compact(engine="local")
    table.write(pa.table({"who": ["b"]}), "delete", ["who"])
    key = {"day": datetime.date(2026, 1, 1), "who": "b"}
    report = table.erase(key)
    assert (report.found_rows, len(report.partial_files)) == (2, 1)
    key = {"day": datetime.date(2026, 1, 1), "who": WHO}
    assert table.erase(key).found_rows == 2
    fresh = table.to_arrow(include_uncompacted=True).to_pylist()
    assert [(row["day"].day, row["who"]) for row in fresh] == [(2, WHO), (2, "c")]
    assert table.fsck(deep=True) == []


def test_keys_that_are_numbers_or_null_are_found(new_root: NewRoot) -> None:
    table = make_table(new_root("memory"))
    table.write(pa.table({"id": pa.array([1, 2, None, 300], pa.int64()), "v": ["a", "b", "c", "d"]}))
    compact(table)
    assert table.erase({"id": 300}).left_files == []  # it bounded the statistics
    assert table.erase({"id": None}).found_rows == 2
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
    with pytest.raises(InvalidInputError, match="lacks id"):
        table.erase({})
    with pytest.raises(InvalidInputError, match="no primary key"):
        make_table(new_root("memory"), primary_keys=[]).erase({"id": 1})


def test_documents_are_erased_with_their_history(new_root: NewRoot) -> None:
    lake = siltstone.open(new_root("memory"))
    documents = create_document_table(
        lake, "shop.people", full_consistency_delay=datetime.timedelta(0), keep_history=True
    )
    for number in range(4):
        documents.update(WHO, f'{{.., "n{number}": "{SECRET}"}}')
        documents.update("other", f'{{.., "n{number}": {number}}}')
    documents.compact(engine="local")
    documents.update(WHO, '{.., "last": 1}')
    assert len(holding(lake.root)) > 5
    assert lake.table("shop.people").erase({"key": WHO}).left_files == []
    assert holding(lake.root) == []
    assert documents.get(WHO)["~version"] == 0
    assert documents.get("other")["n3"] == 3
    assert len(documents.history("other")) == 4
    assert documents.fsck(deep=True) == []


def test_a_table_that_keeps_history_loses_all_versions_of_the_key(new_root: NewRoot) -> None:
    schema = {"who": "string", "note": "string", "at": "int64"}
    table = make_table(
        new_root("memory"), schema=schema, primary_keys=["who"], sort_keys=["at"], merge_engine="history"
    )
    for at in range(3):
        table.write(people(range(15, 20), f"{at} ", at))
        compact(table)
    table.erase({"who": WHO})
    assert holding(table.lake.root) == []
    assert table.to_arrow().num_rows == 12
    assert table.fsck(deep=True) == []


@pytest.mark.parametrize("kind", ["kill", "lose"])
def test_an_erasure_that_dies_at_any_call_is_completed_by_the_next(new_root: NewRoot, kind: FaultKind) -> None:
    at_call, calls = 0, 1
    while at_call <= calls:
        at_call += 3 if kind == "kill" else 5
        table = a_small_table(new_root("memory"))
        table.publish("delta")
        expected = without_key(table.to_arrow(include_uncompacted=True).to_pylist())
        with faults(table.lake.root, at_call=at_call, kind=kind) as store:
            try:
                table.erase({"who": WHO})
            except (Killed, StorageError, CorruptionError):
                assert store.calls >= at_call
        calls = max(calls, store.calls)
        assert table.fsck() == []
        table.erase({"who": WHO})
        assert holding(table.lake.root) == []
        same_rows(table.to_arrow(include_uncompacted=True), expected)
        assert [each.behind_rounds for each in table.published()] == [0]


def test_rounds_and_writes_between_any_two_calls_lose_nothing_and_bring_nothing_back(new_root: NewRoot) -> None:
    at_call, calls = 0, 1
    while at_call <= calls:
        at_call += 7
        table = a_small_table(new_root("memory"))

        def go_on(table: siltstone.Table = table) -> None:
            table.write(people(range(50, 52)))
            compact(table, MAJOR)

        expected = without_key(table.to_arrow(include_uncompacted=True).to_pylist()) + people(range(50, 52)).to_pylist()
        with faults(table.lake.root, at_call=at_call, kind="meet", act=go_on) as store:
            table.erase({"who": WHO})
        calls = store.calls
        if calls < at_call:
            break
        assert holding(table.lake.root) == []
        assert table.fsck(deep=True) == []
        same_rows(table.to_arrow(include_uncompacted=True), expected)


@pytest.mark.parametrize("first", [range(30), range(14), None])
def test_a_round_that_has_read_the_key_before_it_was_erased_is_planned_again(
    new_root: NewRoot, first: range | None
) -> None:
    table = make_table(new_root("memory"), schema={"who": "string", "note": "string"}, primary_keys=["who"])
    if first is not None:
        table.write(people(first))
        compact(table)
    table.write(people(range(40)))
    compact(table, engine=meeting(lambda: table.erase({"who": WHO}), engine=run_here))
    assert holding(table.lake.root) == []
    assert table.to_arrow().num_rows == 39
    assert table.fsck(deep=True) == []


def test_logs_that_mention_the_key_are_named(new_root: NewRoot) -> None:
    table = a_table(new_root("memory"))
    table.erase({"who": WHO})
    version_folder = catalog.version_folder(table.name, root=table.lake.root)
    open_objects(table.lake.root).create(f"{version_folder}/ingest/drops/1", WHO.encode())
    assert table.erase({"who": WHO}).mentioning_logs == [f"{version_folder}/ingest/drops/1"]
