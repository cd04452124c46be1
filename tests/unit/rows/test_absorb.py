"""How a bucket takes its changes in: beside its files or anew, split where it grew, and never with rows lost."""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from siltstone.errors import CorruptionError
from siltstone.model.buckets import Bucket, Buckets, DeletionVector
from siltstone.model.rounds import Accounting
from siltstone.model.schema import schema_from_json, schema_to_json
from siltstone.objects import canonical_root, open_objects
from siltstone.rounds.plan import RoundPlan, plan_partition
from siltstone.rows import merge
from siltstone.rows.absorb import Change, CompactedWriter, Rows, absorb
from siltstone.rows.columns import hash_keys
from siltstone.rows.files import StoredFile, read_vector, write_vectors
from siltstone.rows.job import BucketResult, RoundJob, Settings, Stretch, bucket_rows
from siltstone.rows.merge import run_here
from siltstone.rows.slices import StretchFiles
from siltstone.table.completion import current_completion
from tests.unit.rounds.compaction import (
    MAJOR,
    MINOR,
    SCHEMA,
    check_rows,
    compact,
    completion_of,
    destination_of,
    found_rows,
    make_table,
    objects_of,
    only_file,
    request_for,
    rows,
)

SORTED = {"id": "int64", "at": "int64", "v": "string"}


def make_job(root: str = "memory://none", settings: Settings | None = None, **more: Any) -> RoundJob:
    defaults: dict[str, Any] = {
        "root": root,
        "folder": "compacted",
        "fields": tuple(each.to_serializable() for each in schema_to_json(schema_from_json(SCHEMA))),
        "primary_keys": ("id",),
        "sort_keys": (),
        "merge_engine": "deduplicate",
        "drop_duplicates": True,
        "buckets": Buckets.even(0),
        "reads": (),
        "settings": settings or Settings(),
        "now_ms": 0,
    }
    return RoundJob(**{**defaults, **more})


def test_a_bucket_that_outgrows_its_target_splits_and_the_cover_stays_complete(local_root: str) -> None:
    table = make_table(local_root)
    settings = replace(MAJOR, bucket_rows=4, full=False, max_delta_fraction=0.0)
    depths = []
    for start in range(0, 120, 6):
        table.write(rows(range(start, start + 6)))
        compact(table, settings)
        completion = completion_of(table)
        check_rows(table)
        for bucket in completion.buckets:
            for file in bucket.files:
                stored = StoredFile(table.lake.root, file).parquet.read().slice(file.first_row, file.record_count)
                if bucket.depth:
                    assert set((hash_keys(stored, ["id"]) >> np.uint64(64 - bucket.depth)).tolist()) == {bucket.bits}
        depths.append(max(bucket.depth for bucket in completion.buckets))
    assert depths == sorted(depths)
    assert depths[-1] >= 4
    assert len({bucket.depth for bucket in completion_of(table).buckets}) > 1, "only what grew was split"


def test_a_full_compaction_joins_buckets_that_are_too_small_for_their_table(local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows(range(64)))
    compact(table, replace(MINOR, bucket_rows=4))
    assert len(completion_of(table).buckets) >= 16
    table.write(rows(range(60, 70), "new"))
    compact(table, replace(MINOR, bucket_rows=40, full=True))
    completion = completion_of(table)
    assert len(completion.buckets) <= 8
    assert all(len(bucket.files) <= 1 for bucket in completion.buckets)
    assert completion.accounting.is_balanced
    check_rows(table)
    compact(table, replace(MINOR, full=True))
    assert [bucket.name for bucket in completion_of(table).buckets] == ["all"]
    check_rows(table)


def test_a_full_compaction_joins_no_buckets_that_are_about_to_be_filled(local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows(range(64)))
    full = replace(MINOR, bucket_rows=4, full=True)
    first = plan_partition(request_for(table, full))
    assert isinstance(first, RoundPlan)
    assert len(first.job.buckets) == 16
    compact(table, full)
    table.write(rows(range(64, 2000)))
    second = plan_partition(request_for(table, full))
    assert isinstance(second, RoundPlan)
    assert len(second.job.buckets) >= 16
    compact(table, full)
    check_rows(table)


@pytest.mark.parametrize(
    ("rows_", "size", "expected"),
    [
        (0, 0, 16),
        (1000, 10_000, 699_050),
        (5_000_000, 134 << 20, 610_847),
        (5_000_000, 5_000_000, 699_050),
        (40_000_000, 40_000_000 * 27, 1_762_637),
        (1_000_000, 1_000_000_000, 45_794),
        (100, 500_000_000, 16),
        (370_000_000_000, 10_000_000_000_000, 9_932_111),
    ],
)
def test_buckets_are_as_large_as_the_table_asks_for(rows_: int, size: int, expected: int) -> None:
    assert bucket_rows(rows_, size) == expected


def test_a_split_takes_tombstones_along(local_root: str) -> None:
    table = make_table(local_root, schema=SORTED, sort_keys=["at"])
    numbers = list(range(40))
    settings = replace(MINOR, bucket_rows=4)
    table.write(pa.table({"id": numbers[:4], "at": [5] * 4, "v": ["a"] * 4}))
    compact(table, settings)
    table.write(pa.table({"id": [0, 1, 2], "at": [9] * 3, "v": ["a"] * 3, "op": ["d"] * 3}), op_column="op")
    compact(table, settings)
    assert len(completion_of(table).buckets) == 1
    table.write(pa.table({"id": numbers[4:], "at": [5] * 36, "v": ["b"] * 36}))
    compact(table, replace(settings, full=True))
    completion = completion_of(table)
    assert len(completion.buckets) > 4
    assert sum(bucket.tombstones.record_count for bucket in completion.buckets if bucket.tombstones) == 3
    table.write(pa.table({"id": numbers, "at": [8] * 40, "v": ["late for some"] * 40}))
    compact(table, settings)
    check_rows(table)
    assert completion_of(table).live_rows == 37


def test_rows_without_a_key_never_split_a_bucket(local_root: str) -> None:
    table = make_table(local_root, primary_keys=[])
    for _ in range(3):
        table.write(rows(range(10)), "append")
        compact(table, replace(MAJOR, bucket_rows=2))
        assert len(completion_of(table).buckets) == 4
    check_rows(table)
    assert all(file.index_uri is None for file in completion_of(table).files)


def test_files_hold_as_many_rows_as_asked_for(local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows(range(10)))
    compact(table, replace(MINOR, records_per_compacted_file=3))
    assert [file.record_count for file in completion_of(table).files] == [3, 3, 3, 1]
    check_rows(table)
    compact(table, replace(MAJOR, target_file_bytes=1))
    assert [file.record_count for file in completion_of(table).files] == [10], "a row group is the least there is"


def test_a_minor_round_marks_dead_rows_and_a_major_one_leaves_no_marks(local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows(range(10)))
    compact(table)
    first = only_file(completion_of(table))
    table.write(rows([3, 4, 10], "again"))
    compact(table)
    old, new = completion_of(table).files
    assert (old.uri, old.live_count, new.live_count) == (first.uri, 8, 3)
    assert old.deletion_vector is not None
    assert list(read_vector(table.lake.root, old.deletion_vector)) == [3, 4]
    assert completion_of(table).copied_by_reference_ratio == 0.5
    assert completion_of(table).bucket_actions == {"minor": 1}
    table.write(rows([3, 5], "third"))
    compact(table)
    check_rows(table)
    assert [file.live_count for file in completion_of(table).files] == [7, 2, 2]
    compact(table, MAJOR)
    check_rows(table)
    only = only_file(completion_of(table))
    assert (only.record_count, only.deletion_vector) == (11, None)
    assert completion_of(table).carried_files == 0


def test_a_file_whose_rows_are_all_dead_is_dropped(local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows(range(4)))
    compact(table)
    first = only_file(completion_of(table))
    table.write(rows(range(4), "again"))
    compact(table)
    assert only_file(completion_of(table)).uri != first.uri
    table.write(rows(range(4)).select(["id"]), "delete")
    compact(table)
    check_rows(table)
    assert completion_of(table).files == []


def test_untouched_buckets_are_carried_over_as_they_are(local_root: str) -> None:
    table = make_table(local_root)
    settings = replace(MINOR, bucket_rows=4)
    table.write(rows(range(64)))
    compact(table, settings)
    before = objects_of(completion_of(table))
    table.write(rows([7], "again"))
    compact(table, settings)
    completion = completion_of(table)
    (replaced,) = before - objects_of(completion)
    assert replaced.endswith(".page")
    assert len(objects_of(completion) - before) == 4, "a page, a data file, its index, a deletion vector"
    table.write(pa.table({"v": ["63"]}), "delete", ["v"])
    result = compact(table, settings)
    check_rows(table)
    assert result.rounds[-1].bucket_actions == {"untouched": len(completion.buckets) - 1, "minor": 1}


def test_deletion_vectors_are_read_back_and_damaged_ones_are_named(local_root: str) -> None:
    root = canonical_root(local_root)
    (vector,) = write_vectors(root, "compacted", [BitMap64([1, 5, 2**40])], 0)
    assert vector.record_count == 3
    assert list(read_vector(root, vector)) == [1, 5, 2**40]
    with pytest.raises(CorruptionError, match=rf"{vector.uri}.*3 rows instead of 2"):
        read_vector(root, DeletionVector(**{**vector, "record_count": 2}))
    data = open_objects(root).read(vector.uri)
    flipped = (bytes(each ^ (place == at) for place, each in enumerate(data)) for at in range(len(data)))
    for damaged in (b"", b"no bitmap", data[:-1], data + b"x", *flipped):
        open_objects(root).replace(vector.uri, damaged)
        with pytest.raises(CorruptionError, match=rf"{vector.uri}.*damaged.*rebase"):
            read_vector(root, vector)
    foreign = DeletionVector(**{**vector, "checksum": zlib.crc32(b"no bitmap")})
    open_objects(root).replace(vector.uri, b"no bitmap")
    with pytest.raises(CorruptionError, match=rf"{vector.uri}.*damaged"):
        read_vector(root, foreign)
    open_objects(root).delete([vector.uri])
    with pytest.raises(CorruptionError, match=rf"{vector.uri}.*missing"):
        read_vector(root, vector)


def test_rows_of_a_file_are_read_by_number(local_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.rows.absorb.ROW_GROUP_ROWS", 4)
    root = canonical_root(local_root)
    schema = schema_from_json({"id": "int64", "v": "string", "later": "int32"})
    settings = Settings(target_file_bytes=1 << 30, records_per_compacted_file=100)
    fields = tuple(each.to_serializable() for each in schema_to_json(schema))
    writer = CompactedWriter(make_job(root, settings, fields=fields, began=0))
    writer.write(rows(range(7)))
    writer.write(rows(range(7, 11)))
    (file,) = writer.close()
    stored = StoredFile(root, file)
    assert stored.parquet.num_row_groups == 3
    found = stored.read_rows(np.array([0, 3, 4, 10]), schema)
    assert found.column("id").to_pylist() == [0, 3, 4, 10]
    assert found.column("later").to_pylist() == [None] * 4
    assert [start for start, _ in stored.scan(schema, groups_with=np.array([9]))] == [8]
    assert stored.index.hashes_by_row().tolist() == hash_keys(rows(range(11)), ["id"]).tolist()


def test_row_groups_of_wide_rows_have_fewer_of_them(local_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.rows.absorb._GROUP_BYTES", 1000)
    root = canonical_root(local_root)
    writer = CompactedWriter(make_job(root, began=0))
    wide = pa.table({"id": range(20), "v": ["x" * 300] * 19 + ["x" * 5000]})
    for start in range(0, 20, 5):
        writer.write(wide.slice(start, 5))
    (file,) = writer.close()
    stored = StoredFile(root, file).parquet
    sizes = [stored.metadata.row_group(group).num_rows for group in range(stored.num_row_groups)]
    assert (sum(sizes), max(sizes)) == (20, 3)
    assert stored.read().equals(wide)


def test_a_writer_without_rows_makes_no_file(local_root: str) -> None:
    root = canonical_root(local_root)
    settings = Settings(target_file_bytes=1, records_per_compacted_file=1)
    writer = CompactedWriter(make_job(root, settings, began=0))
    writer.write(rows([]))
    assert writer.close() == []
    assert open_objects(root).list_objects("", recursive=True) == []


class TestTombstones:
    """How long deleted rows keep older ones out."""

    RETENTION_MS = 1500

    @pytest.fixture
    def now_ms(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        clock = [1_000_000]
        monkeypatch.setattr("siltstone.clock.now_ms", lambda: clock[0])
        return clock

    def test_a_tombstone_stands_until_it_expires(self, local_root: str, now_ms: list[int]) -> None:
        table = make_table(
            local_root,
            schema=SORTED,
            sort_keys=["at"],
            properties={"tombstone_retention_seconds": str(self.RETENTION_MS / 1000)},
        )

        def write(number: int, at: int, op: str = "u") -> None:
            table.write(pa.table({"id": [number], "at": [at], "v": ["x"], "op": [op]}), op_column="op")
            compact(table)

        def ids() -> list[int]:
            return sorted(row["id"] for row in found_rows(table))

        write(1, 5)
        write(1, 9, "d")
        write(2, 1)
        assert ids() == [2]
        now_ms[0] += self.RETENTION_MS
        write(1, 8)
        assert ids() == [2], "it is exactly as old as allowed"
        assert completion_of(table).buckets[0].tombstones is not None
        now_ms[0] += 1
        write(2, 2)  # the round in which it is found to have expired
        assert completion_of(table).buckets[0].tombstones is None
        write(1, 8)
        assert ids() == [1, 2]

    def test_a_newer_removal_starts_the_time_anew(self, local_root: str, now_ms: list[int]) -> None:
        table = make_table(
            local_root,
            schema=SORTED,
            sort_keys=["at"],
            properties={"tombstone_retention_seconds": str(self.RETENTION_MS / 1000)},
        )
        for _ in range(3):
            now_ms[0] += self.RETENTION_MS - 1
            table.write(pa.table({"id": [1], "at": [now_ms[0]], "v": ["x"], "op": ["d"]}), op_column="op")
            compact(table)
        now_ms[0] += self.RETENTION_MS
        table.write(pa.table({"id": [1], "at": [1], "v": ["late"]}))
        compact(table)
        assert found_rows(table) == []

    @pytest.mark.parametrize(("retention", "expected"), [("0", [1]), ("forever", []), ("1e300", []), (None, [])])
    def test_the_retention_is_a_property_of_the_table(
        self, retention: str | None, expected: list[int], local_root: str, now_ms: list[int]
    ) -> None:
        table = make_table(local_root, schema=SORTED, sort_keys=["at"])
        table.alter(properties={"tombstone_retention_seconds": retention})
        for at, op in ((5, "u"), (9, "d"), (6, "u"), (8, "u")):
            table.write(pa.table({"id": [1], "at": [at], "v": ["x"], "op": [op]}), op_column="op")
            compact(table)
            now_ms[0] += 1
        assert [row["id"] for row in found_rows(table)] == expected

    def test_no_sort_keys_leave_no_tombstones(self, local_root: str) -> None:
        table = make_table(local_root)
        table.write(pa.table({"id": [1], "v": ["x"], "op": ["d"]}), op_column="op")
        compact(table)
        assert completion_of(table).buckets[0].tombstones is None


def test_accounting_tells_where_every_row_went(local_root: str) -> None:
    table = make_table(local_root)
    table.write(rows([1, 2, 3, 4, 5]))
    compact(table)
    table.write(pa.table({"id": [1, 2, 2, 6, 7], "v": [""] * 5, "op": ["u", "u", "u", "c", "d"]}), op_column="op")
    table.write(pa.table({"id": [3, 6, 99]}), "delete")
    compact(table)
    accounting = completion_of(table).accounting
    assert accounting.is_balanced
    assert dict(accounting) == {
        "base_rows": 5,
        "delta_rows": 4,
        "added_rows": 0,
        "removal_rows": 1,
        "live_rows": 4,
        "superseded_rows": 2,
        "deleted_rows": 2,
        "duplicate_rows": 1,
        "lost_rows": 0,
    }


def test_rows_that_do_not_add_up_are_refused(local_root: str) -> None:
    root = canonical_root(local_root)
    change = Change(dead=[], rows=Rows.all_of(rows([1, 2])), accounting=Accounting(delta_rows=3))
    buckets = (Bucket(depth=0, bits=0),)
    with pytest.raises(CorruptionError, match="bucket all: rows do not add up, so nothing is committed"):
        absorb(make_job(root), Stretch((0,), buckets), StretchFiles(root, buckets), [change])


def test_an_engine_that_loses_rows_commits_nothing(local_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(local_root)
    table.write(rows([1, 2, 3]))
    original = merge._new_rows
    monkeypatch.setattr(merge, "_new_rows", lambda *given: original(*given).slice(1))
    with pytest.raises(CorruptionError, match="rows do not add up"):
        compact(table)
    assert current_completion(destination_of(table)) is None


def test_a_bucket_whose_result_is_lost_is_not_committed_with_its_deltas(local_root: str) -> None:
    """The driver must notice when a task that had rows to merge sends no result."""
    table = make_table(local_root)
    table.write(rows(range(40)))
    compact(table, replace(MINOR, bucket_rows=4))
    table.write(rows(range(40), "again"))

    def loses_one(job: RoundJob) -> Iterator[BucketResult]:
        yield from list(run_here(job))[1:]

    with pytest.raises(CorruptionError):
        compact(table, engine=loses_one)
    check_rows(table, 1)
