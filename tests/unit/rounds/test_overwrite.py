"""An overwrite is one commit of the stream: what was there before is gone, and what it brings is all there is."""

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import InvalidInputError
from siltstone.lake import Partitions
from siltstone.storage import object_store as storage
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import (
    MINOR,
    compact,
    found_rows,
    make_table,
    objects_below,
    only_partition,
    overwrite,
    rows,
)

Row = dict[str, Any]


@pytest.fixture
def days(local_root: str) -> siltstone.Table:
    """A table of two days, compacted, and a third that waits."""
    table = siltstone.open(local_root).create_table(
        "shop.visits",
        schema={"day": "date", "id": "int64", "page": "string"},
        primary_keys=["day", "id"],
        partition_keys=["day"],
    )
    table.write(pa.table({"day": days_of(1, 1, 2), "id": [1, 2, 1], "page": ["a", "b", "c"]}))
    table.compact(engine="local")
    table.write(pa.table({"day": days_of(3), "id": [1], "page": ["d"]}))
    return table


def days_of(*days: int) -> "pa.Array[Any]":
    return pa.array([datetime.date(2026, 11, day) for day in days])


def visits(table: siltstone.Table, **how: Any) -> list[tuple[int, int, str]]:
    found: list[Row] = table.scan(**how).to_arrow().to_pylist()
    return sorted((row["day"].day, row["id"], row["page"]) for row in found)


@pytest.mark.parametrize("compacts_first", [False, True])
@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (None, [(2, 9, "new")]),
        ("present", [(1, 1, "a"), (1, 2, "b"), (2, 9, "new"), (3, 1, "d")]),
        ([{"day": "2026-11-02"}, {"day": datetime.date(2026, 11, 3)}], [(1, 1, "a"), (1, 2, "b"), (2, 9, "new")]),
    ],
)
def test_what_is_overwritten_has_the_new_rows_and_no_others(
    days: siltstone.Table, partitions: Partitions, expected: Sequence[Any], compacts_first: bool
) -> None:
    if compacts_first:
        days.compact(engine="local")
    data = pa.table({"day": days_of(2), "id": [9], "page": ["new"]})
    position = days.write(data, mode="overwrite", partitions=partitions)
    assert (position, visits(days, fresh=True)) == (3, expected)
    assert visits(days, as_of=2) == [(1, 1, "a"), (1, 2, "b"), (2, 1, "c"), (3, 1, "d")]
    days.compact(engine="local")
    assert visits(days) == expected
    same_rows(days.scan().to_arrow(), oracle_of(days).rows())
    assert visits(days, as_of=1) == [(1, 1, "a"), (1, 2, "b"), (2, 1, "c")]


def test_an_overwrite_without_rows_empties_what_it_names(days: siltstone.Table) -> None:
    days.write([], mode="overwrite", partitions="present")
    assert len(visits(days, fresh=True)) == 4
    days.write([], mode="overwrite", partitions=[{"day": "2026-11-01"}, {"day": "2031-01-01"}])
    assert visits(days, fresh=True) == [(2, 1, "c"), (3, 1, "d")]
    days.write([], mode="overwrite")
    days.compact(engine="local")
    assert visits(days) == []


def test_rows_add_up_where_a_round_takes_in_an_overwrite(days: siltstone.Table) -> None:
    days.write(pa.table({"day": days_of(1, 1), "id": [1, 7], "page": ["x", "y"]}))
    days.write(pa.table({"day": days_of(1), "id": [9], "page": ["z"]}), mode="overwrite", partitions="present")
    days.write(pa.table({"day": days_of(1), "id": [9], "page": ["last"]}))
    (report,) = [each for each in days.compact(engine="local").rounds if each.partition == ["2026-11-01"]]
    # The delta that was overwritten before it was compacted is not read, but counts as taken in.
    assert (report.deltas, report.delta_rows, report.base_rows, report.deleted_rows) == (3, 2, 2, 2)
    assert (report.live_rows, report.duplicate_rows) == (1, 1)


def test_a_dry_run_says_how_many_partitions_would_be_replaced_and_changes_nothing(days: siltstone.Table) -> None:
    before = objects_below(days.lake.root)
    data = pa.table({"day": days_of(4), "id": [1], "page": ["x"]})
    assert days.write(data, mode="overwrite", dry_run=True).replaced_partitions == 4
    assert days.write(data, mode="overwrite", partitions="present", dry_run=True).replaced_partitions == 1
    assert days.write(data, dry_run=True).replaced_partitions == 0
    assert objects_below(days.lake.root) == before


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"partitions": "present"}, "partitions go with mode overwrite"),
        ({"mode": "replace"}, "unknown mode 'replace'"),
        ({"mode": "overwrite", "type": "delete"}, "not deletes"),
        ({"mode": "overwrite", "op_column": "page"}, "not deletes"),
        ({"mode": "overwrite", "partitions": {"day": "2026-11-01"}}, "are a list"),
        ({"mode": "overwrite", "partitions": [{"dy": "2026-11-01"}]}, "day"),
        ({"mode": "overwrite", "partitions": [{"day": "monday"}]}, "'monday' is not a value"),
        ({"mode": "overwrite", "partitions": [{"day": "2026-11-03"}]}, "2026-11-01.*not among those"),
    ],
)
def test_what_cannot_be_an_overwrite_is_refused_and_leaves_nothing(days: siltstone.Table, how: Any, words: str) -> None:
    before = objects_below(days.lake.root)
    with pytest.raises(InvalidInputError, match=words):
        days.write(pa.table({"day": days_of(1), "id": [1], "page": ["x"]}), **how)
    assert objects_below(days.lake.root) == before


def test_an_overwrite_is_committed_once_under_its_idempotency_id(days: siltstone.Table) -> None:
    data = pa.table({"day": days_of(1), "id": [1], "page": ["x"]})
    first = days.write(data, mode="overwrite", idempotency=("backfill", 1))
    days.write(pa.table({"day": days_of(2), "id": [1], "page": ["later"]}))
    assert days.write(data, mode="overwrite", idempotency=("backfill", 1)) == first
    assert visits(days, fresh=True) == [(1, 1, "x"), (2, 1, "later")]


def test_an_overwrite_ends_what_deletes_before_it_kept_out(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.stock", schema={"id": "int64", "at": "int64"}, primary_keys=["id"], sort_keys=["at"]
    )
    table.write(pa.table({"id": [1], "at": [9], "op": ["d"]}), op_column="op")
    table.compact(engine="local")
    table.write(pa.table({"id": [1], "at": [5]}), mode="overwrite")
    assert table.scan(fresh=True).to_arrow().to_pylist() == [{"id": 1, "at": 5}]
    (explained,) = table.explain_key({"id": 1})
    assert [event.kind for event in explained.events] == ["row-level delete", "overwrite", "upsert"]
    assert explained.row == {"id": 1, "at": 5}
    table.compact(engine="local")
    assert table.scan().to_arrow().to_pylist() == [{"id": 1, "at": 5}]


def test_a_key_that_an_overwrite_removed_is_explained_by_it(days: siltstone.Table) -> None:
    days.write([], mode="overwrite")
    (explained,) = days.explain_key({"day": datetime.date(2026, 11, 2), "id": 1})
    assert (explained.row, explained.events[-1].kind, explained.events[-1].stream_position) == (None, "overwrite", 3)
    assert "position 3" in explained.why


def test_columns_that_come_with_an_overwrite_are_there_for_all_partitions(days: siltstone.Table) -> None:
    days.write(pa.table({"day": days_of(1), "id": [1], "extra": [7]}), mode="overwrite", partitions="present")
    days.compact(engine="local")
    found = {row["day"].day: row for row in days.scan().to_arrow().to_pylist()}
    assert (found[1]["extra"], found[1]["page"], found[2]["extra"], found[2]["page"]) == (7, None, None, "c")


def test_a_damaged_table_is_repaired_from_the_overwrite_on_though_older_deltas_are_trimmed(local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows(range(40), "first"))
    compact(table, MINOR)
    table.write(rows(range(5), "second"), mode="overwrite")
    table.write(rows(range(3), "third"))
    compact(table, MINOR)
    expected = found_rows(table)
    storage.delete_deltas(only_partition(table), last_stream_position=1, root=local_root)
    destroyed = [file.uri for round_ in table.rounds() for file in round_.files]
    for path in destroyed:
        overwrite(local_root, path, None)
    (repaired,) = table.repair()
    assert [each.cure for each in repaired.buckets] == ["deltas"]
    same_rows(found_rows(table), expected)
