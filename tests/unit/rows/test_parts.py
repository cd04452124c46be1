"""Parts of deltas: split by task, bounded in size, gathered, and put together again by bucket."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.model.buckets import Bucket, Buckets
from siltstone.rows import parts as parts_module
from siltstone.rows.columns import hash_keys
from siltstone.rows.job import Part, ReadTask, RoundJob, Settings
from siltstone.rows.parts import (
    GatheredParts,
    Tasks,
    bucket_numbers,
    gather_here,
    read_parts,
    stretches,
)
from tests.unit.rows.test_absorb import make_job


@pytest.mark.parametrize("memory_bytes", [1, 40, 1 << 20])
def test_each_task_gets_its_parts_once_and_in_order(memory_bytes: int) -> None:
    parts = [(number % 3, bytes([number]) * number) for number in range(20)]
    waiting = GatheredParts(parts[:10], memory_bytes=memory_bytes)
    assert waiting.take(2) == [part for task, part in parts[:10] if task == 2]
    for task, part in parts[10:]:
        waiting.add(task, part)
    assert waiting.take(2) == [part for task, part in parts[10:] if task == 2]
    assert waiting.take(0) == [part for task, part in parts if task == 0]
    assert waiting.take(1) == [part for task, part in parts if task == 1]
    assert waiting.take(1) == waiting.take(9) == []


@pytest.mark.parametrize("numbers", [range(0), range(1), range(5, 17), (2, 3, 7, 8, 9, 40)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_every_bucket_has_one_task_and_neighbours_are_together(numbers: Sequence[int], count: int) -> None:
    tasks = Tasks(numbers, count)
    shared = [list(tasks.numbers_of(task)) for task in range(count)]
    assert [number for own in shared for number in own] == list(numbers)
    for task, own in enumerate(shared):
        assert tasks.of(np.array(own, np.int64)).tolist() == [task] * len(own)
    others = sorted(set(range(50)) - set(numbers))
    assert set(tasks.of(np.array(others)).tolist()) == {-1}
    assert max(map(len, shared)) - min(map(len, shared)) <= 1


@pytest.mark.parametrize("depths", [[0], [1, 1], [3] * 8, [2, 2, 1], [1, 2, 3, 3], [*[9] * 256, 2, *range(3, 33), 32]])
def test_hashes_belong_to_the_buckets_that_have_them(depths: list[int]) -> None:
    start, buckets = 0, []
    for depth in depths:
        buckets.append(Bucket(depth=depth, bits=start >> (64 - depth)))
        start += 1 << (64 - depth)
    whole = Buckets.of(buckets)
    edges = [hash_ for bucket in buckets for hash_ in (bucket.first_hash, bucket.last_hash)]
    hashes = np.concatenate([np.array(edges, np.uint64), np.random.default_rng(1).integers(0, 2**64, 1000, np.uint64)])
    assert bucket_numbers(whole)(hashes).tolist() == [whole.number_of(hash_) for hash_ in hashes.tolist()]
    assert bucket_numbers(whole)(hashes[:0]).tolist() == []


def job_of(path: Path, table: pa.Table, depth: int, *, rows: int = 1 << 20, **read: object) -> RoundJob:
    """Return a job that reads one file."""
    pq.write_table(table, path / "delta.parquet", row_group_size=rows)
    details = {"is_delete": False, "columns": tuple(table.column_names), **read}
    task = ReadTask("delta.parquet", 0, 0, table.num_rows, 1, **details)  # type: ignore[arg-type]
    return make_job(str(path), Settings(stretch_buckets=1), buckets=Buckets.even(depth), reads=(task,))


def parts_by_bucket(job: RoundJob, numbers: Sequence[int], data: Sequence[bytes]) -> dict[int, Sequence[Part]]:
    return {stretch.numbers[0]: stretch.parts for stretch in stretches(job, numbers, data)}


def gathered(job: RoundJob, numbers: Sequence[int] | None = None) -> dict[int, Sequence[Part]]:
    """Return the parts of each bucket, by its number."""
    return {stretch.numbers[0]: stretch.parts for stretch in gather_here(job, numbers)}


def only_part(job: RoundJob) -> Part:
    ((part,),) = gathered(job).values()
    return part


def combined(part: Part) -> tuple[int, int]:
    """Return how many upserts and removals were left out."""
    return int(part.combined.upserts.sum()), int(part.combined.removals.sum())


def rows_of(parts: Sequence[Part]) -> list[tuple[object, object]]:
    return [(row["id"], row["v"]) for part in parts for row in part.table.to_pylist()]


@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("part_bytes", [100, 1 << 20])
def test_rows_reach_their_bucket_in_stream_order_whatever_the_tasks_and_the_size_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, count: int, part_bytes: int
) -> None:
    monkeypatch.setattr(parts_module, "_PART_BYTES", part_bytes)
    table = pa.table({"id": list(range(200)), "v": [f"value {number}" for number in range(200)]})
    job = job_of(tmp_path, table, depth, rows=70)
    tasks = Tasks(range(1 << depth), min(count, 1 << depth))
    by_task: dict[int, list[bytes]] = {}
    for task, part in read_parts(job, job.reads, tasks):
        by_task.setdefault(task, []).append(part)
    owners = bucket_numbers(job.buckets)(hash_keys(table, ["id"]))
    found: dict[int, Sequence[Part]] = {}
    for task, data in by_task.items():
        found |= parts_by_bucket(job, tasks.numbers_of(task), data[::-1])
        assert part_bytes > 1000 or depth == 5 or len(data) > 1
    for bucket in range(1 << depth):
        expected = [(number, f"value {number}") for number in range(200) if owners[number] == bucket]
        assert rows_of(found.get(bucket, [])) == expected
    assert {number: rows_of(parts) for number, parts in gathered(job).items()} == {
        number: rows_of(found.get(number, [])) for number in range(1 << depth)
    }


def test_a_large_row_group_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "_READ_BYTES", 2000)
    table = pa.table({"id": list(range(300)), "v": ["x" * 50 + str(number) for number in range(300)]})
    job = job_of(tmp_path, table, 0)
    assert len([*read_parts(job, job.reads, Tasks(range(1), 1))]) > 3
    (parts,) = gathered(job).values()
    assert rows_of(parts) == [(row["id"], row["v"]) for row in table.to_pylist()]


def test_a_delete_by_other_columns_is_sent_once_to_a_task_and_reaches_each_of_its_buckets(tmp_path: Path) -> None:
    job = job_of(tmp_path, pa.table({"v": ["a", "b"]}), 4, is_delete=True, delete_columns=("v",))
    tasks = Tasks(range(16), 2)
    sent = list(read_parts(job, job.reads, tasks))
    assert [task for task, _ in sent] == [0, 1]
    by_bucket = parts_by_bucket(job, tasks.numbers_of(1), [sent[1][1]])
    assert sorted(by_bucket) == list(range(8, 16))
    assert all(parts[0].table.to_pylist() == [{"v": "a"}, {"v": "b"}] for parts in by_bucket.values())


def test_buckets_that_nobody_wants_get_nothing(tmp_path: Path) -> None:
    job = job_of(tmp_path, pa.table({"id": list(range(100)), "v": ["a"] * 100}), 3)
    everything = gathered(job)
    assert {number: rows_of(parts) for number, parts in gathered(job, [2, 5]).items()} == {
        number: rows_of(everything[number]) for number in (2, 5)
    }
    assert list(gather_here(job, [])) == []


HOT = pa.table({"id": [7, 1, 7, None, 7, None], "v": ["a", "b", "c", "d", "e", "f"]})


def test_of_a_key_that_changes_often_only_the_newest_row_of_a_delta_is_sent(tmp_path: Path) -> None:
    job = job_of(tmp_path, HOT, 0)
    part = only_part(job)
    assert rows_of([part]) == [(1, "b"), (7, "e"), (None, "f")]
    assert combined(part) == (3, 0)


def test_the_newest_row_is_the_one_with_the_greatest_sort_key_and_of_these_the_last(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path, HOT, 0), sort_keys=("v",))
    late = pa.table({"id": [1, 1, 1, 2], "v": ["z", None, "z", None]})
    pq.write_table(late, tmp_path / "delta.parquet")
    job = replace(job, reads=(replace(job.reads[0], record_count=4),))
    part = only_part(job)
    assert rows_of([part]) == [(1, "z"), (2, None)]
    assert part.first_row == 0
    assert combined(part) == (2, 0)


def test_row_level_deletes_that_are_left_out_are_counted_apart(tmp_path: Path) -> None:
    table = HOT.append_column("op", pa.array(["c", "c", "d", "c", "d", "c"]))
    job = job_of(tmp_path, table, 0, op_column="op", columns=("id", "v"))
    part = only_part(job)
    assert rows_of([part]) == [(1, "b"), (7, "e"), (None, "f")]
    assert part.table.column("_siltstone_removal").to_pylist() == [False, True, False]
    assert combined(part) == (2, 1)


def test_where_the_first_row_of_a_key_counts_the_later_ones_are_left_out_unless_some_are_deletes(
    tmp_path: Path,
) -> None:
    job = replace(job_of(tmp_path, HOT, 0), merge_engine="first_row")
    part = only_part(job)
    assert rows_of([part]) == [(7, "a"), (1, "b"), (None, "d")]
    assert combined(part) == (3, 0)
    assert rows_of([only_part(replace(job, sort_keys=("v",)))]) == rows_of([part]), "however they sort"
    table = HOT.append_column("op", pa.array(["c", "c", "d", "c", "c", "c"]))
    job = replace(job_of(tmp_path, table, 0, op_column="op", columns=("id", "v")), merge_engine="first_row")
    assert rows_of([only_part(job)]) == [(row["id"], row["v"]) for row in HOT.to_pylist()]


@pytest.mark.parametrize(
    "more",
    [
        {"merge_engine": "partial_update"},
        {"drop_duplicates": False},
        {"primary_keys": ()},
        {"kind": "documents"},
    ],
    ids=str,
)
def test_where_more_than_the_newest_row_counts_all_are_sent(tmp_path: Path, more: dict[str, object]) -> None:
    job = replace(job_of(tmp_path, HOT, 0), **more)  # type: ignore[arg-type]
    part = only_part(job)
    assert rows_of([part]) == [(row["id"], row["v"]) for row in HOT.to_pylist()]


def test_few_duplicates_are_sent_along_since_finding_them_costs_more(tmp_path: Path) -> None:
    table = pa.table({"id": [*range(100), 5], "v": ["a"] * 101})
    part = only_part(job_of(tmp_path, table, 0))
    assert part.table.num_rows == 101


def several_deltas(path: Path, deltas: Sequence[tuple[pa.Table, dict[str, object]]], depth: int) -> RoundJob:
    """Return a job that reads one delta after another."""
    reads = []
    for run, (table, about) in enumerate(deltas):
        pq.write_table(table, path / f"{run}.parquet")
        details = {"is_delete": False, "columns": tuple(table.column_names), **about}
        reads.append(ReadTask(f"{run}.parquet", run, 10 * run, table.num_rows, 1, **details))  # type: ignore[arg-type]
    return make_job(str(path), Settings(), buckets=Buckets.even(depth), reads=tuple(reads))


@pytest.mark.parametrize("depth", [1, 3])
def test_small_deltas_that_follow_each_other_become_one_part_and_what_was_left_out_adds_up(
    tmp_path: Path, depth: int
) -> None:
    deltas = [pa.table({"id": [1, 2, 1, 3], "v": [f"{run}{place}" for place in "abcd"]}) for run in range(5)]
    job = several_deltas(tmp_path, [(delta, {}) for delta in deltas], depth)
    (stretch,) = gather_here(job)
    (part,) = stretch.parts
    by_key = {key: [value for own, value in rows_of([part]) if own == key] for key in (1, 2, 3)}
    # The first row of key 1 is left out of each delta.
    assert by_key == {key: [f"{run}{place}" for run in range(5)] for key, place in ((1, "c"), (2, "b"), (3, "d"))}
    assert part.buckets is not None
    assert part.buckets.tolist() == sorted(part.buckets.tolist())
    assert part.combined.upserts.tolist() == [5]
    assert part.combined.buckets.tolist() == [bucket_numbers(job.buckets)(hash_keys(deltas[0], ["id"]))[0]]


def test_deltas_of_another_kind_are_not_joined_with_those_before_and_after_them(tmp_path: Path) -> None:
    rows, other = pa.table({"id": [1, 2], "v": ["a", "b"]}), pa.table({"id": [1, 2]})
    key = {"is_delete": True, "delete_columns": ("id",)}
    value = pa.table({"v": ["a"]})
    by_value: dict[str, object] = {"is_delete": True, "delete_columns": ("v",)}
    deltas = [
        (rows, {}),
        (rows, {}),
        (other, {}),
        (other, key),
        (other, key),
        (rows, {}),
        (value, by_value),
        (rows, {}),
    ]
    (stretch,) = gather_here(several_deltas(tmp_path, deltas, 2))
    assert [(part.run, part.is_delete, part.columns, part.table.num_rows) for part in stretch.parts] == [
        (0, False, ("id", "v"), 4),
        (2, False, ("id",), 2),
        (3, True, ("id",), 4),
        (5, False, ("id", "v"), 2),
        (6, True, ("v",), 1),
        (7, False, ("id", "v"), 2),
    ]


def test_parts_are_joined_up_to_the_size_that_a_part_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delta = pa.table({"id": list(range(10)), "v": ["a" * 50] * 10})
    (stretch,) = gather_here(several_deltas(tmp_path, [(delta, {})] * 6, 0))
    assert len(stretch.parts) == 6, "a single bucket takes all of each part"
    job = several_deltas(tmp_path, [(delta, {})] * 6, 1)
    (stretch,) = gather_here(job)
    monkeypatch.setattr(parts_module, "_PART_BYTES", stretch.parts[0].table.nbytes // 2)
    (stretch,) = gather_here(job)
    assert [part.table.num_rows for part in stretch.parts] == [30, 30]
