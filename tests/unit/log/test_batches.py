"""Names and arithmetic of batches."""

import itertools

import pytest

from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.log.batches import (
    BatchFile,
    BatchListing,
    batch_id_from_name,
    batch_name,
    batches_needed,
    derive_interval,
    interval_of,
    is_compaction_batch,
    missing_ranges,
    oldest_to_keep,
    verify_batch_ids,
)


@pytest.mark.parametrize(
    ("name", "batch_id"), [("0", 0), ("1234", 1234), ("1234.compact", 1234), (str(2**63 - 1), 2**63 - 1)]
)
def test_a_batch_file_is_named_by_its_id(name: str, batch_id: int) -> None:
    assert batch_id_from_name(name) == batch_id


@pytest.mark.parametrize(
    "name",
    ["1234a", ".compact", "5.compact.compact", "", " 1", "1_0", "-1", "+5", "007", "\u0663", str(2**63), ".3.uuid.tmp", ".3.crc", "3\n"],
)  # fmt: skip
def test_other_names_are_no_batches(name: str) -> None:
    assert batch_id_from_name(name) is None


def test_every_kth_batch_is_a_compaction_batch() -> None:
    assert [is_compaction_batch(each, 3) for each in range(6)] == [False, False, True, False, False, True]
    assert all(is_compaction_batch(each, 1) for each in range(5))


@pytest.mark.parametrize(("batch_id", "interval", "following"), [(0, 3, 2), (1, 3, 2), (2, 3, 5), (4, 3, 5), (5, 3, 8), (8, 10, 9), (9, 10, 19)])  # fmt: skip
def test_the_next_compaction_is_strictly_later(batch_id: int, interval: int, following: int) -> None:
    later = itertools.count(batch_id + 1)
    assert next(batch for batch in later if is_compaction_batch(batch, interval)) == following


@pytest.mark.parametrize(
    ("batch_id", "interval", "expected"),
    [(0, 3, [0]), (1, 3, [0, 1]), (2, 3, [2]), (4, 3, [2, 3, 4]), (7, 3, [5, 6, 7]), (8, 3, [8]), (501, 10, [499, 500, 501])],
)  # fmt: skip
def test_a_state_needs_the_last_compact_batch_and_what_follows(
    batch_id: int, interval: int, expected: list[int]
) -> None:
    assert list(batches_needed(batch_id, interval)) == expected


def test_there_is_no_state_before_the_first_batch() -> None:
    with pytest.raises(InvalidInputError):
        batches_needed(-1, 3)


@pytest.mark.parametrize(
    ("default", "latest", "interval"),
    [
        (5, 4, 5), (4, 9, 5), (5, 11, 6), (10, 7, 8), (10, 2, 3), (3, 10, 11), (2, 9, 2), (7, 99, 10),
        (5, 9, 10), (10, 19, 20), (3, 5, 6),
        (10, 9, 10), (10, 29, 10), (10, 12, 13), (6, 11, 12), (14, 29, 15), (15, 29, 30), (100, 9, 10), (1, 5, 1),
    ],
)  # fmt: skip
def test_one_compact_batch_determines_the_interval(default: int, latest: int, interval: int) -> None:
    assert derive_interval(default, latest) == interval


@pytest.mark.parametrize(
    ("compact_ids", "default", "interval"), [([], 7, 7), ([2, 5], 10, 3), ([9, 14], 2, 5), ([1], 5, 2), ([2, 5, 8], 10, 3)]
)  # fmt: skip
def test_compact_batches_outweigh_the_default_interval(compact_ids: list[int], default: int, interval: int) -> None:
    assert interval_of(default, compact_ids) == interval


@pytest.mark.parametrize("default", [0, -3])
def test_the_default_interval_must_be_positive(default: int) -> None:
    with pytest.raises(InvalidInputError, match=rf"Please set \S.* \(was {default}\) to a positive value"):
        interval_of(default, [])


def test_names_follow_from_the_interval() -> None:
    assert [batch_name(each, 3) for each in range(6)] == ["0", "1", "2.compact", "3", "4", "5.compact"]


@pytest.mark.parametrize(
    ("current", "interval", "min_batches", "keep"),
    [(108, 10, 100, None), (109, 10, 100, 9), (118, 10, 100, 9), (119, 10, 100, 19), (3, 3, 1, 2), (6, 3, 1, 5), (3, 3, 2, None)],
)  # fmt: skip
def test_what_may_expire_lies_below_a_compact_batch(
    current: int, interval: int, min_batches: int, keep: int | None
) -> None:
    assert oldest_to_keep(current, interval, min_batches) == keep


@pytest.mark.parametrize(("ids", "start", "end"), [([1, 2, 3], 1, 3), ([1], 1, 1), ([1, 2, 3], None, 3), ([1, 2, 3], 1, None), ([1, 2, 3], None, None), ([], None, None)])  # fmt: skip
def test_ids_without_a_gap_pass(ids: list[int], start: int | None, end: int | None) -> None:
    verify_batch_ids(ids, start, end)


@pytest.mark.parametrize(
    ("ids", "start", "end", "missing"),
    [
        ([], 1, None, "batch 1 doesn't exist"),
        ([], None, 4, "batch 4 doesn't exist"),
        ([], 2, 1, "batch 2 doesn't exist"),
        ([2, 3, 4], 1, None, r"batches \(1\) don't exist \(startId: Some\(1\), endId: None\)"),
        ([2, 3, 4], None, 5, r"batches \(5\) don't exist \(startId: None, endId: Some\(5\)\)"),
        ([1, 2, 4, 5], 1, 5, r"batches \(3\) don't exist"),
        ([0, 10**18], None, None, r"batches \(1, ..., 999999999999999999\) don't exist"),
    ],
)
def test_a_gap_is_reported_with_what_is_missing(
    ids: list[int], start: int | None, end: int | None, missing: str
) -> None:
    with pytest.raises(CorruptionError, match=missing):
        verify_batch_ids(ids, start, end)


@pytest.mark.parametrize(("ids", "start", "end"), [([2], 2, 1), ([0], 2, 1), ([0, 1], 1, None), ([3, 4], None, 3)])
def test_ids_outside_of_the_range_asked_for_are_a_wrong_call(
    ids: list[int], start: int | None, end: int | None
) -> None:
    with pytest.raises(InvalidInputError):
        verify_batch_ids(ids, start, end)


def test_missing_ids_are_found_wherever_they_are() -> None:
    assert missing_ranges([2, 3, 6], 0, 8) == [range(2), range(4, 6), range(7, 9)]
    assert missing_ranges([], 0, 1) == [range(2)]
    assert missing_ranges([0, 1], 0, 1) == []


def test_a_state_is_the_newest_compact_file_and_the_plain_ones_after_it() -> None:
    listing = BatchListing(BatchFile(each, compact, 1, 1) for each, compact in [(4, False), (2, True), (1, False), (3, False), (2, False)])  # fmt: skip
    assert [file.name for file in listing.chain()[0]] == ["2.compact", "3", "4"]
    assert [file.name for file in listing.chain(3)[0]] == ["2.compact", "3"]
    assert ([file.name for file in listing.chain(1)[0]], listing.chain(1)[1]) == (["1"], [range(1)])
    assert (listing.ids, listing.latest, listing.compact_ids) == ([1, 2, 3, 4], 4, [2])


def test_an_empty_listing_is_an_empty_state() -> None:
    assert BatchListing([]).chain() == ([], [])
    assert BatchListing([]).latest is None
