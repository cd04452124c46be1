"""How a bucket absorbs its changes: what is chosen, and that small files are merged often enough and not too often."""

from dataclasses import replace

import pytest

from siltstone.model.buckets import Bucket, CompactedFile, DeletionVector
from siltstone.rows.choice import choose, small_files
from siltstone.rows.job import Settings
from tests.unit.rows.test_absorb import make_job


def file_of(number: int, count: int, dead: int) -> CompactedFile:
    vector = DeletionVector(uri=f"{number}.dv", record_count=dead, content_length=1, checksum=0) if dead else None
    return CompactedFile(
        uri=f"{number}.parquet",
        record_count=count,
        content_length=count,
        index_uri=f"{number}.pki",
        deletion_vector=vector,
    )


def bucket_of(*files: tuple[int, int]) -> Bucket:
    """Return a bucket of files with so many rows, of which so many are dead."""
    return Bucket(depth=0, bits=0, files=[file_of(number, *file) for number, file in enumerate(files)])


def in_first(bucket: Bucket, dead: int) -> list[int]:
    """Let rows die in the first file."""
    return [dead, *[0] * len(bucket.files)][: len(bucket.files)]


SEVEN_SMALL = [(10, 0)] * 7


@pytest.mark.parametrize(
    ("bucket", "new", "dead", "expected", "reason"),
    [
        (bucket_of((100, 0)), 0, 0, "untouched", "no row changes"),
        (bucket_of(), 1, 0, "major", "the bucket is empty"),
        (bucket_of((100, 0)), 25, 25, "minor", "to add 25 new and mark 25 dead rows costs less than to rewrite 100"),
        (bucket_of((100, 0)), 0, 26, "major", "26 of 100 rows would be dead, more than 25%"),
        (bucket_of((100, 20)), 0, 5, "minor", "costs less"),
        (bucket_of((100, 20)), 0, 6, "major", "26 of 100 rows would be dead"),
        (bucket_of((100, 0)), 200, 0, "minor", "costs less"),
        (bucket_of((100, 0)), 201, 0, "major", "201 new rows come to 100: to rewrite those costs little more"),
        (bucket_of(*[(100, 0)] * 7), 1, 1, "minor", "costs less"),
        (bucket_of(*[(100, 0)] * 8), 0, 1, "minor", "costs less"),
        (bucket_of((1, 0), *[(100, 0)] * 7), 1, 1, "minor", "costs less"),
        (bucket_of(*[(100, 0)] * 8), 100, 1, "major", "it would have 9 files, more than 8, and 799 of its 899 rows"),
        (
            bucket_of((1000, 0), *SEVEN_SMALL),
            10,
            1,
            "tiered",
            "it would have 9 files, more than 8: the 70 rows of 7 small ones are merged with the 10 new ones",
        ),
    ],
)
def test_a_bucket_is_rewritten_once_too_much_is_dead_or_new_and_small_files_are_merged_once_there_are_too_many(
    bucket: Bucket, new: int, dead: int, expected: str, reason: str
) -> None:
    choice = choose(make_job(), bucket, new, in_first(bucket, dead))
    assert choice.action == expected
    assert reason in choice.reason
    assert bool(choice.merged) == (expected == "tiered")


@pytest.mark.parametrize(
    ("stored", "new", "dead", "expected"),
    [(1000, 500, 0, "minor"), (600, 401, 1, "minor"), (600, 401, 0, "major"), (1000, 501, 0, "major")],
)
def test_a_bucket_that_would_outgrow_its_size_is_rewritten_for_fewer_new_rows(
    stored: int, new: int, dead: int, expected: str
) -> None:
    choice = choose(make_job(bucket_rows=500), bucket_of((stored, 0)), new, [dead])
    assert choice.action == expected
    assert (f"would have {stored + new}, more than twice 500" in choice.reason) == (expected == "major")


def test_a_bucket_with_too_many_files_that_can_split_is_rewritten() -> None:
    bucket = bucket_of((1000, 0), *SEVEN_SMALL)
    action, why, _ = choose(make_job(bucket_rows=539), bucket, 10, [0] * 8)
    assert (action, why) == (
        "major",
        "it would have 9 files, more than 8, and 1080 rows, more than twice 539, so it splits",
    )
    assert choose(make_job(bucket_rows=540), bucket, 10, [0] * 8).action == "tiered"
    assert choose(make_job(bucket_rows=1, primary_keys=()), bucket, 10, [0] * 8).action == "tiered"


def test_a_full_compaction_rewrites_whatever_changes() -> None:
    assert choose(make_job(settings=Settings(full=True)), bucket_of((100, 0)), 0, [0]).action == "major"


def test_full_files_do_not_count_for_no_rewrite_makes_fewer_of_them() -> None:
    by_bytes, by_rows = Settings(target_file_bytes=500), Settings(records_per_compacted_file=500)
    for settings in (by_bytes, by_rows):
        job = make_job(settings=settings)
        assert choose(job, bucket_of(*[(500, 0)] * 20), 10, [0] * 20).action == "minor"
        full = [(500, 0)] * 20
        assert choose(job, bucket_of(*full, *SEVEN_SMALL), 10, [0] * 27).action == "minor"
        choice = choose(job, bucket_of(*full, *SEVEN_SMALL, (9, 0)), 10, [0] * 28)
        assert (choice.action, choice.merged) == ("tiered", tuple(range(20, 28)))
    emptied = bucket_of(*[(500, 0)] * 20, (500, 251), *SEVEN_SMALL)
    choice = choose(make_job(settings=by_rows), emptied, 10, [0] * 28)
    assert (choice.action, choice.merged) == ("tiered", tuple(range(21, 28)))


def test_a_file_of_which_little_is_left_is_merged_first() -> None:
    bucket = bucket_of((1000, 0), (300, 0), (200, 195), *[(100, 0)] * 5)
    dead = [0, 0, 3, *[0] * 5]
    assert choose(make_job(), bucket, 1, dead).merged == (2,)
    dead[3] = 99
    assert choose(make_job(), bucket, 1, dead).merged == (2, 3)
    dead[2:4] = [5, 100]
    assert choose(make_job(), bucket, 1, dead).action == "minor", "those files go"


@pytest.mark.parametrize(
    ("live", "new", "most", "expected"),
    [
        ([1000, 15, 10], 10, 3, [1, 2]),
        ([1000, 31, 10], 10, 3, [2]),
        ([1000, 30, 10], 10, 3, [1, 2]),
        ([10, 1000, 10], 10, 3, [0, 2]),
        ([1000, 1000, 1000], 1, 3, [0, 1, 2]),
        ([9000, 3000, 1000], 1, 2, [1, 2]),
        ([1000, 100, 10], 0, 2, [1, 2]),
        ([1], 5, 8, [0]),
        ([], 5, 8, []),
    ],
)
def test_as_many_small_files_are_merged_as_must_be_and_those_that_are_not_much_larger(
    live: list[int], new: int, most: int, expected: list[int]
) -> None:
    assert small_files(dict(enumerate(live)), new, most) == tuple(expected)


@pytest.mark.parametrize(("base", "rounds", "most_written"), [(1_000_000, 3000, 9), (10_000, 300, 6), (1000, 50, 4)])
def test_a_row_is_written_about_as_often_as_there_are_sizes(base: int, rounds: int, most_written: float) -> None:
    """Ten rows come in each of many rounds, and none dies: a rewrite for every seventh would write the base as often."""
    settings = Settings(max_files=8)
    sizes, written = [base], 0
    for _ in range(rounds):
        bucket = bucket_of(*[(size, 0) for size in sizes])
        job = replace(make_job(settings=settings), bucket_rows=base)
        choice = choose(job, bucket, 10, [0] * len(sizes))
        assert choice.action in ("minor", "tiered")
        new = 10 + sum(sizes[place] for place in choice.merged)
        sizes = [size for place, size in enumerate(sizes) if place not in choice.merged] + [new]
        written += new
        assert len(sizes) <= 8
        assert sizes[0] == base
    assert sum(sizes) == base + 10 * rounds
    assert written < most_written * 10 * rounds
