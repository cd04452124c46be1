"""Buckets whose small files are merged with the new rows: large files stay, and every row is told by where it came from."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import CorruptionError
from siltstone.model.buckets import CompactedFile
from siltstone.model.rounds import RoundCompletion
from siltstone.objects import open_objects
from siltstone.rows.files import StoredFile
from siltstone.rows.job import Settings
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import (
    MINOR,
    check_rows,
    compact,
    completion_of,
    found_rows,
    make_table,
    objects_below,
    objects_of,
    rows,
)
from tests.unit.rows.test_stretches import check_everything

FEW = replace(MINOR, bucket_rows=250, max_files=3)


@pytest.fixture
def table(new_root: Callable[[str], str]) -> siltstone.Table:
    """Return a table of four buckets of about 250 rows."""
    table = make_table(new_root("memory"))
    table.write(rows(range(1000), "first "))
    compact(table, FEW)
    assert len(completion_of(table).buckets) == 4
    return table


def change(table: siltstone.Table, number: int, settings: Settings = FEW) -> RoundCompletion:
    """Change a few keys of each bucket, and return the round that takes them in."""
    table.write(rows(range(number % 7, 1000, 50), f"round {number} "))
    compact(table, settings)
    return completion_of(table)


def stored_rows(root: str, file: CompactedFile) -> list[tuple[object, object]]:
    """Return all rows of a file or slice, dead ones included, in order."""
    schema = pa.schema({"id": pa.int64(), "v": pa.string()})
    tables = [table for _, table in StoredFile(root, file).scan(schema)]
    return [(row["id"], row["v"]) for table in tables for row in table.to_pylist()]


def check_carried(table: siltstone.Table, before: RoundCompletion, after: RoundCompletion, number: int) -> None:
    """Check that the rows of new files that are said to be carried are those of files that went, and others came with the round."""
    for old, new in zip(before.buckets, after.buckets, strict=True):
        kept = {(file.uri, file.first_row) for file in new.files}
        went = [file for file in old.files if (file.uri, file.first_row) not in kept]
        gone = {row for file in went for row in stored_rows(table.lake.root, file)}
        known = {file.uri for file in old.files}
        for file in new.files:
            if file.uri not in known:
                assert file.carried_rows is not None
                own = stored_rows(table.lake.root, file)
                assert set(own[: file.carried_rows]) <= gone
                assert all(str(value).startswith(f"round {number} ") for _, value in own[file.carried_rows :])


def test_large_files_stay_while_small_ones_are_merged_with_what_is_new(table: siltstone.Table) -> None:
    large = {file.uri for file in completion_of(table).files}
    actions: Counter[str] = Counter()
    before = completion_of(table)
    for number in range(12):
        after = change(table, number)
        actions += Counter(after.bucket_actions)
        assert large <= {file.uri for file in after.files}
        assert max(len(bucket.files) for bucket in after.buckets) <= FEW.max_files
        assert after.accounting.is_balanced
        assert after.written_rows == sum(
            file.record_count for file in after.files if file.uri not in {each.uri for each in before.files}
        )
        check_carried(table, before, after, number)
        before = after
    assert actions["tiered"] > 20
    assert actions["major"] == 0
    check_everything(table)
    for upto in range(1, 14, 4):
        same_rows(table.scan(as_of=upto).to_arrow().to_pylist(), oracle_of(table, upto).rows())
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    compacted = {uri for uri in objects_below(table.lake.root) if uri.endswith((".parquet", ".pki", ".dv"))}
    named = objects_of(completion_of(table))
    assert {uri for uri in compacted if "/deltas/" not in uri} <= named
    check_everything(table)


def test_a_plan_says_which_small_files_would_be_merged_and_why(table: siltstone.Table) -> None:
    for number in range(7):
        change(table, number, replace(FEW, max_files=100))
    table.write(rows(range(7, 1000, 50), "more "))
    (preview,) = table.plan().rounds
    assert [bucket.action for bucket in preview.buckets] == ["tiered"] * 4
    for bucket in preview.buckets:
        reason = r"it would have 9 files, more than 8: the \d+ rows of 7 small ones are merged with the \d new ones"
        assert re.fullmatch(reason, bucket.reason)
    compact(table, Settings())
    assert completion_of(table).bucket_actions == {"tiered": 4}
    assert [len(bucket.files) for bucket in completion_of(table).buckets] == [2] * 4


def test_a_merge_of_small_files_takes_their_dead_rows_away_and_deletes_alone_add_no_file(
    table: siltstone.Table,
) -> None:
    for number in range(2):
        change(table, number)
    table.write(rows(range(1, 1000, 100)).select(["id"]), "delete")
    compact(table, FEW)
    after = completion_of(table)
    assert "tiered" not in after.bucket_actions
    assert [sum(file.live_count for file in bucket.files[1:]) for bucket in after.buckets].count(0) == 0
    for number in range(3):
        after = change(table, 3 + number)
    check_everything(table)
    small = [file for bucket in after.buckets for file in bucket.files[1:]]
    assert sum(file.record_count for file in small) == 90
    table.write(pa.table({"v": [f"round 5 {number}" for number in range(5, 1000, 50)]}), "delete", ["v"])
    compact(table, FEW)
    check_rows(table)


def test_rows_without_a_key_keep_their_full_files(new_root: Callable[[str], str]) -> None:
    table = make_table(new_root("memory"), primary_keys=[])
    settings = replace(FEW, records_per_compacted_file=20, max_files=2)
    table.write(rows(range(200)), "append")
    compact(table, settings)
    for number in range(8):
        table.write(rows(range(4), f"round {number} "), "append")
        before = {file.uri for file in completion_of(table).files if file.record_count == 20}
        compact(table, settings)
        after = completion_of(table)
        assert before <= {file.uri for file in after.files}
        check_rows(table)
    assert "major" not in after.bucket_actions


def test_a_missing_small_file_stops_the_round_that_would_merge_it(table: siltstone.Table) -> None:
    for number in range(2):
        change(table, number)
    shared = next(file for file in completion_of(table).files if file.is_shared)
    data = open_objects(table.lake.root).read(shared.uri)
    open_objects(table.lake.root).delete([shared.uri])
    table.write(rows(range(2, 1000, 50), "third "))
    with pytest.raises(CorruptionError, match=shared.uri):
        compact(table, FEW)
    open_objects(table.lake.root).create(shared.uri, data)
    compact(table, FEW)
    assert completion_of(table).bucket_actions == {"tiered": 4}
    check_rows(table)


def test_a_state_before_a_merge_is_returned_to_and_the_merge_done_again(table: siltstone.Table) -> None:
    for number in range(3):
        change(table, number)
    after = found_rows(table)
    assert completion_of(table).bucket_actions == {"tiered": 4}
    table.rollback(3)
    same_rows(found_rows(table), oracle_of(table, 3).rows())
    compact(table, FEW)
    same_rows(found_rows(table), after)
    check_everything(table)


def test_files_of_earlier_programs_do_not_say_what_was_carried() -> None:
    stored = {"uri": "a", "record_count": 5, "content_length": 1}
    assert CompactedFile.from_serializable(stored).carried_rows is None
