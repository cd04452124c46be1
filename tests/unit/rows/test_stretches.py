"""Neighbouring buckets that are merged together: what they share, and that each stays what it is by itself."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.model.buckets import Bucket, CompactedFile, DeletionVector
from siltstone.objects import open_objects
from siltstone.rounds.plan import RoundPlan, plan_partition
from siltstone.rows import files as files_module
from siltstone.rows import parts as parts_module
from siltstone.rows.columns import hash_keys
from siltstone.rows.job import Settings
from siltstone.rows.parts import gather_here
from siltstone.rows.slices import slices_of
from siltstone.spark import native
from siltstone.storage import object_store as storage
from siltstone.storage.parquet import open_parquet
from siltstone.table.completion import bucket_objects, named_objects
from siltstone.testing.oracle import oracle_of, same_rows
from tests.unit.rounds.compaction import (
    MAJOR,
    MINOR,
    check_rows,
    compact,
    compacted,
    completion_of,
    found_rows,
    make_table,
    objects_below,
    objects_of,
    only_partition,
    overwrite,
    request_for,
    rows,
)

SMALL = replace(MINOR, bucket_rows=5)
SORTED = {"id": "int64", "at": "int64", "v": "string"}


def make_wide(root: str, settings: Settings = SMALL, **more: Any) -> siltstone.Table:
    """Make a table of several buckets that share what two rounds left."""
    table = make_table(root, **more)
    table.write(rows(range(40), "first"))
    compact(table, settings)
    for value, step in (("second", 2), ("third", 3)):
        table.write(rows(range(0, 50, step), value))
        compact(table, settings)
    return table


@pytest.fixture
def table(new_root: Callable[[str], str]) -> siltstone.Table:
    return make_wide(new_root("memory"))


def keys_of(table: siltstone.Table, bucket: Bucket) -> list[int]:
    """Return the ids from 0 to 50 that belong to a bucket."""
    hashes = hash_keys(pa.table({"id": range(50)}), ["id"])
    return [number for number in range(50) if bucket.has(int(hashes[number]))]


def shared_uris(table: siltstone.Table) -> set[str]:
    return {file.uri for file in completion_of(table).files if file.is_shared}


def check_everything(table: siltstone.Table) -> None:
    """Compare every way to read with the oracle's rows."""
    expected = oracle_of(table).rows()
    same_rows(found_rows(table), expected)
    same_rows(table.scan().to_arrow().to_pylist(), expected)
    same_rows(table.scan(fresh=True).to_arrow().to_pylist(), expected)
    assert table.scan().count() == len(expected)
    assert table.scan(where="id < 20").count() == len([row for row in expected if int(str(row["id"])) < 20])
    for row in expected[::7]:
        assert table.lookup({"id": row["id"]}) == [row]
    assert table.lookup({"id": 12345}) == []
    assert table.fsck(deep=True) == []


def test_buckets_that_are_merged_together_share_a_data_file_an_index_and_an_object_of_vectors(
    new_root: Callable[[str], str],
) -> None:
    table = make_table(new_root("memory"), schema=SORTED, sort_keys=["at"])
    table.write(pa.table({"id": range(40), "at": [1] * 40, "v": ["a"] * 40}))
    compact(table, SMALL)
    before = objects_of(completion_of(table))
    table.write(pa.table({"id": range(20), "at": [2] * 20, "v": ["b"] * 20, "op": ["u", "d"] * 10}), op_column="op")
    compact(table, SMALL)
    completion = completion_of(table)
    assert len(completion.buckets) > 4
    assert completion.bucket_actions["minor"] > 4
    new = objects_of(completion) - before
    assert Counter(uri.rpartition(".")[2] for uri in new if not uri.endswith(".page")) == {
        "parquet": 1,
        "pki": 1,
        "bin": 1,
        "tombstones": 1,
    }
    slices = [file for file in completion.files if file.uri in new]
    assert {(file.stored_rows, file.stored_length) for file in slices} == {
        (sum(file.record_count for file in slices), sum(file.content_length for file in slices))
    }
    assert completion.written_bytes == slices[0].stored_length
    sizes = {each.uri: each.size for each in named_objects(completion.buckets)}
    assert all(len(open_objects(table.lake.root).read(uri)) == size for uri, size in sizes.items())
    check_everything(table)


def test_a_bucket_alone_has_its_own_files(new_root: Callable[[str], str]) -> None:
    table = make_wide(new_root("memory"), replace(SMALL, stretch_buckets=1))
    completion = completion_of(table)
    assert not shared_uris(table)
    assert len({file.uri for file in completion.files}) == len(completion.files)
    by_bucket = [
        {file.deletion_vector.uri for file in bucket.files if file.deletion_vector} for bucket in completion.buckets
    ]
    assert sum(map(len, by_bucket)) == len(set().union(*by_bucket)) > 1
    check_everything(table)


def test_stretches_of_any_size_leave_the_same_rows(new_root: Callable[[str], str]) -> None:
    for settings in (
        replace(SMALL, stretch_buckets=3),
        replace(SMALL, stretch_rows=4),
        replace(SMALL, records_per_compacted_file=3),
        replace(SMALL, max_files=2),
        replace(SMALL, max_dead_fraction=0.4),
    ):
        check_everything(make_wide(new_root("memory"), settings))


def test_small_buckets_that_are_rewritten_together_share_a_file(new_root: Callable[[str], str]) -> None:
    table = make_table(new_root("memory"))
    table.write(rows(range(40), "first"))
    compact(table, SMALL)
    table.write(rows(range(0, 40, 2), "second"))
    compact(table, replace(SMALL, max_dead_fraction=0.0))
    completion = completion_of(table)
    assert completion.bucket_actions["major"] > 4
    (uri,) = {file.uri for file in completion.files}
    assert open_parquet(table.lake.root, uri).metadata.num_rows == 40
    assert not any(file.deletion_vector for file in completion.files)
    assert sum(file.carried_rows or 0 for file in completion.files) == 20
    assert (completion.written_rows, completion.written_bytes) == (40, completion.files[0].stored_length)
    check_everything(table)
    table.write(pa.table({"id": range(40)}), "delete")
    compact(table, replace(SMALL, max_dead_fraction=0.0))
    assert completion_of(table).files == []
    check_everything(table)


def test_small_buckets_of_large_rows_have_files_of_their_own(new_root: Callable[[str], str]) -> None:
    table = make_table(new_root("memory"))
    table.write(rows(range(40), "first"))
    settings = replace(SMALL, max_dead_fraction=0.0, max_delta_fraction=0.0, shared_bytes=2000)
    compact(table, settings)
    assert len(shared_uris(table)) == 1
    large = np.random.default_rng(1).bytes(2500).hex()
    for value, is_shared in ((large, False), ("last", False), ("small again", True)):
        table.write(rows(range(40), value))
        compact(table, settings)
        assert completion_of(table).bucket_actions.keys() == {"major"}
        assert bool(shared_uris(table)) is is_shared, "what is there, and what comes"
        check_everything(table)


def test_buckets_with_more_rows_than_may_share_have_files_of_their_own(new_root: Callable[[str], str]) -> None:
    table = make_table(new_root("memory"))
    settings = replace(SMALL, bucket_rows=20, shared_rows=8)
    table.write(rows(range(64), "first"))
    compact(table, settings)
    depth = next(iter(completion_of(table).buckets)).depth
    hashes = hash_keys(pa.table({"id": range(400)}), ["id"]) >> (64 - depth)
    own = [number for number in range(64, 400) if hashes[number] == 0][:12]
    for value in ("second", "third"):
        table.write(rows([*own, *(number for number in range(64) if hashes[number])], value))
        compact(table, replace(settings, max_dead_fraction=0.0))
        sizes = {bucket.bits: bucket.live_count for bucket in completion_of(table).buckets}
        assert min(sizes.values()) > 8
        assert not shared_uris(table)
    table.write(rows([*own, *range(64)], "fourth"))
    compact(table, replace(settings, max_dead_fraction=0.0, shared_rows=max(sizes.values()) - 1))
    shared = {bucket.bits for bucket in completion_of(table).buckets if any(file.is_shared for file in bucket.files)}
    assert shared == {bits for bits, count in sizes.items() if count < max(sizes.values())}
    check_everything(table)


def test_slices_that_are_rewritten_away_one_by_one_leave_the_file_to_the_others(table: siltstone.Table) -> None:
    buckets = list(completion_of(table).buckets)
    shared = shared_uris(table)
    rewrite = replace(SMALL, max_dead_fraction=0.0)
    for number, bucket in enumerate(buckets):
        table.write(rows(keys_of(table, bucket)[:1], f"again {number} "))
        assert compact(table, rewrite).rounds[0].bucket_actions["major"] == 1
        table.vacuum(retention_ms=0, orphan_grace_ms=0)
        left = {uri for bucket in completion_of(table).buckets for uri in bucket_objects([bucket])}
        assert {uri for uri in objects_below(table.lake.root) if uri in shared} == shared & left
        check_everything(table)
    assert not shared_uris(table)


def test_buckets_with_slices_split_and_join(table: siltstone.Table) -> None:
    before = len(completion_of(table).buckets)
    table.write(rows(range(50, 300), "more"))
    compact(table, replace(SMALL, max_delta_fraction=0.5))
    assert len(completion_of(table).buckets) > before
    check_everything(table)
    table.write(rows(range(0, 300, 5), "some"))
    compact(table, SMALL)
    assert shared_uris(table)
    compact(table, replace(MAJOR, bucket_rows=1000))
    assert len(completion_of(table).buckets) == 1
    check_everything(table)


def test_earlier_states_are_read_and_returned_to(table: siltstone.Table) -> None:
    then = {upto: oracle_of(table, upto).rows() for upto in (1, 2, 3)}
    compact(table, MAJOR)
    for upto, expected in then.items():
        same_rows(table.scan(as_of=upto).to_arrow().to_pylist(), expected)
    table.rollback(2)
    same_rows(found_rows(table), then[2])
    assert table.fsck(deep=True) == []
    compact(table, SMALL)
    check_everything(table)


def test_a_rebase_from_slices_and_their_tombstones_has_the_same_rows(new_root: Callable[[str], str]) -> None:
    table = make_table(new_root("memory"), schema=SORTED, sort_keys=["at"])
    for at, op in ((1, "u"), (5, "d"), (2, "u")):
        ids = range(0, 40, at)
        table.write(
            pa.table({"id": ids, "at": [at] * len(ids), "v": [op] * len(ids), "op": [op] * len(ids)}), op_column="op"
        )
        compact(table, SMALL)
    assert shared_uris(table)
    assert any(bucket.tombstones and bucket.tombstones.is_shared for bucket in completion_of(table).buckets)
    expected = found_rows(table)
    compact(table, SMALL, source=compacted(table), rebase_source=only_partition(table), rebase_high_watermark=3)
    same_rows(found_rows(table), expected)
    table.write(pa.table({"id": range(40), "at": [4] * 40, "v": ["late"] * 40}))
    compact(table, SMALL)
    check_everything(table)


def test_what_happened_to_a_key_is_told_from_slices(table: siltstone.Table) -> None:
    root = table.lake.root
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    storage.delete_deltas(only_partition(table), last_stream_position=3, root=root)
    for number in (0, 6, 30, 48):
        (told,) = table.explain_key({"id": number})
        (event,) = told.events
        assert event.file in shared_uris(table)
        in_file = open_parquet(root, event.file).read().slice(event.row, 1).to_pylist()
        assert in_file == [told.compacted_row] == [{"id": number, "v": f"third{number}"}]


def test_a_delete_by_other_columns_reaches_every_slice(table: siltstone.Table) -> None:
    table.write(pa.table({"v": ["third6", "third12", "second2"]}), "delete", ["v"])
    same_rows(table.scan(fresh=True).to_arrow().to_pylist(), oracle_of(table).rows())
    compact(table, SMALL)
    check_everything(table)


def test_rows_without_a_key_share_files_too(new_root: Callable[[str], str]) -> None:
    table = make_table(new_root("memory"), primary_keys=[])
    for value in ("a", "b", "c"):
        table.write(rows(range(40), value), "append")
        compact(table, SMALL)
    table.write(pa.table({"id": [3, 4]}), "delete", ["id"])
    compact(table, SMALL)
    check_rows(table)
    assert table.fsck(deep=True) == []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each data file is opened."""
    counts: Counter[str] = Counter()
    original = open_parquet

    def count(root: str, uri: str, *more: Any, **options: Any) -> Any:
        counts[uri] += 1
        return original(root, uri, *more, **options)

    monkeypatch.setattr(files_module, "open_parquet", count)
    return counts


def test_a_shared_file_is_opened_once_by_scans_fresh_reads_and_checks(
    table: siltstone.Table, opened: Counter[str]
) -> None:
    shared = shared_uris(table)
    table.write(rows([1, 2, 45], "waits"))
    for work in (
        lambda: table.scan().to_arrow(),
        lambda: table.scan(fresh=True).to_arrow(),
        lambda: table.fsck(deep=True),
    ):
        opened.clear()
        work()
        assert {opened[uri] for uri in shared} == {1}


def test_a_damaged_object_of_vectors_stops_who_needs_it_and_is_told_once(table: siltstone.Table) -> None:
    vectors = [file.deletion_vector for file in completion_of(table).files if file.deletion_vector]
    shared = next(vector for vector in vectors if vector.object_length is not None)
    data = open_objects(table.lake.root).read(shared.uri)
    for damaged in (None, data[:-1], data + b"x", bytes(byte ^ 1 for byte in data)):
        overwrite(table.lake.root, shared.uri, damaged)
        with pytest.raises(CorruptionError, match=shared.uri):
            table.scan().to_arrow()
        assert [finding.file for finding in table.fsck()] == [shared.uri]
    overwrite(table.lake.root, shared.uri, data)
    check_everything(table)


def test_a_missing_shared_file_stops_a_round_that_would_carry_it_over(table: siltstone.Table) -> None:
    (uri, *_) = shared_uris(table)
    bucket = next(bucket for bucket in completion_of(table).buckets if any(file.uri == uri for file in bucket.files))
    overwrite(table.lake.root, uri, None)
    table.write(rows([keys_of(table, bucket)[0]], "again"))
    with pytest.raises(CorruptionError, match=uri):
        compact(table, SMALL)
    assert {finding.file for finding in table.fsck()} == {uri}
    table.repair()
    compact(table, SMALL)
    check_everything(table)


def test_spark_leaves_out_rows_of_a_shared_file_that_are_dead_or_in_no_slice(table: siltstone.Table) -> None:
    for uri in shared_uris(table):
        slices = [file for file in completion_of(table).files if file.uri == uri]
        for chosen in (slices, slices[1:]):
            dead = sum((word & 2**64 - 1).bit_count() for word in native.dead_words(table.lake.root, chosen).tolist())
            assert slices[0].stored_rows - dead == sum(file.live_count for file in chosen)


@pytest.mark.parametrize(
    ("settings", "stretch_bytes", "most"),
    [
        (replace(SMALL, stretch_buckets=3), 1 << 20, 3),
        (replace(SMALL, stretch_rows=1), 1 << 20, 1),
        (SMALL, 1, 1),
        (SMALL, 1 << 20, 128),
        (MAJOR, 1 << 20, 1),
    ],
    ids=["buckets", "rows", "bytes", "all", "full"],
)
def test_a_stretch_is_bounded(
    table: siltstone.Table, monkeypatch: pytest.MonkeyPatch, settings: Settings, stretch_bytes: int, most: int
) -> None:
    monkeypatch.setattr(parts_module, "_STRETCH_BYTES", stretch_bytes)
    table.write(rows(range(50), "once more"))
    plan = plan_partition(request_for(table, settings))
    assert isinstance(plan, RoundPlan)
    job = plan.job
    found = list(gather_here(job, every=False))
    assert [number for stretch in found for number in stretch.numbers] == list(range(len(job.buckets)))
    assert max(len(stretch.numbers) for stretch in found) == min(most, len(job.buckets))
    for stretch in found:
        for part in stretch.parts:
            assert part.buckets is not None
            assert set(part.buckets.tolist()) <= set(stretch.numbers)


def file_of(count: int, size: int, name: str = "a") -> CompactedFile:
    return CompactedFile(uri=name, record_count=count, content_length=size)


@pytest.mark.parametrize(
    ("files", "counts"),
    [([10], [10]), ([10], [3, 0, 7]), ([4, 4, 2], [5, 5]), ([4, 4, 2], [10]), ([1, 1, 1], [1, 1, 1]), ([], [0, 0])],
    ids=str,
)
def test_slices_cover_files_without_gaps_and_their_shares_add_up(files: list[int], counts: list[int]) -> None:
    stored = [file_of(count, count * 7 + 3, f"file {number}") for number, count in enumerate(files)]
    slices = slices_of(stored, counts)
    assert [sum(each.record_count for each in own) for own in slices] == counts
    together = [each for own in slices for each in own]
    for file in stored:
        own = [each for each in together if each.uri == file.uri]
        assert sum(each.content_length for each in own) == file.content_length
        ends = [each.first_row + each.record_count for each in own]
        assert [each.first_row for each in own] == [0, *ends[:-1]]
        assert [each.is_shared for each in own] == [len(own) > 1] * len(own)


def test_what_is_not_within_its_file_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not within its 10 rows"):
        CompactedFile(uri="a", record_count=5, content_length=1, first_row=6, file_rows=10, file_length=9)
    with pytest.raises(InvalidInputError, match="not within"):
        CompactedFile.from_serializable({"uri": "a", "record_count": 5, "content_length": 1, "first_row": -1})
    with pytest.raises(InvalidInputError, match="not within its object"):
        DeletionVector(uri="a", record_count=5, content_length=8, checksum=0, start=3, object_length=10)
