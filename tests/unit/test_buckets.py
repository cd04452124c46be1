"""Buckets as one sequence, in memory and in pages."""

import pickle
from dataclasses import dataclass, field

import pytest

from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.model.buckets import (
    Bucket,
    BucketLine,
    Buckets,
    CompactedFile,
    DeletionVector,
    Page,
    StoredPage,
    Totals,
)


def even(depth: int) -> list[Bucket]:
    return list(Buckets.even(depth))


def filled(depth: int, bits: int, name: str = "a", due_at: int | None = None) -> Bucket:
    vector = DeletionVector(uri=f"{name}.dv", record_count=3, content_length=9, checksum=1)
    file = CompactedFile(uri=f"{name}-{depth}-{bits}", record_count=10, content_length=100, deletion_vector=vector)
    return Bucket(depth=depth, bits=bits, files=[file], due_at=due_at)


@dataclass
class Store:
    """Pages by their paths, and which were read."""

    pages: dict[str, bytes] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)

    def write(self, lines: bytes) -> StoredPage:
        path = f"page-{len(self.pages)}"
        self.pages[path] = lines
        return StoredPage(path, len(lines), 0)

    def reader(self, page: Page) -> bytes:
        self.read.append(page.uri)
        return self.pages[page.uri]

    def store(self, buckets: Buckets, page_buckets: int = 4) -> Buckets:
        return buckets.stored(page_buckets, self.write).read_by(self.reader)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.mark.parametrize("buckets", [even(0), even(3), [*even(1)[:1], *even(2)[2:]]])
def test_buckets_that_share_all_hashes_are_a_cover_in_any_order(buckets: list[Bucket]) -> None:
    assert list(Buckets.of(buckets)) == list(Buckets.of(buckets[::-1])) == buckets


@pytest.mark.parametrize(
    "buckets",
    [
        [],
        even(2)[1:],
        even(2)[:-1],
        [*even(1), *even(1)[1:]],
        [*even(1)[:1], *even(2)[3:]],
        [*even(2)[:3], even(2)[2]],
        [Bucket(depth=40, bits=0)],
    ],
)
def test_buckets_that_leave_out_or_double_hashes_are_refused(buckets: list[Bucket]) -> None:
    with pytest.raises(InvalidInputError, match="do not cover the hash space"):
        Buckets.of(buckets)


def test_few_buckets_stay_in_memory_and_many_go_into_pages(store: Store) -> None:
    assert not store.store(Buckets.even(2)).pages
    assert len(store.store(Buckets.even(4)).pages) == 4
    assert len(store.pages) == 4


@pytest.mark.parametrize("is_stored", [True, False])
def test_buckets_are_the_same_in_pages_and_in_memory_and_as_json(store: Store, is_stored: bool) -> None:
    mixed = [*(filled(4, bits, due_at=bits) for bits in range(8)), *(filled(5, bits) for bits in range(16, 32))]
    plain = Buckets.of(mixed)
    buckets = store.store(plain) if is_stored else plain
    again = Buckets.from_serializable(buckets.to_serializable()).read_by(store.reader)
    for same in (buckets, again, pickle.loads(pickle.dumps(again)) if not is_stored else again):
        assert list(same) == mixed
        assert same[-1] == mixed[-1]
        assert same[3:5] == mixed[3:5]
        assert len(same) == 24
        assert same.totals == Totals.of(mixed) == Totals(24, 240, 168, 2400, 0, None)
        assert next(same.runs()) == (0, 4, 4 if is_stored else 8)
    for key_hash in (0, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        assert mixed[buckets.number_of(key_hash)].has(key_hash)
    with pytest.raises(IndexError):
        buckets[24]


def test_a_change_reads_and_writes_only_the_pages_that_it_touches(store: Store) -> None:
    before = store.store(Buckets.of(filled(4, bits) for bits in range(16)))
    after = store.store(
        before.replaced(
            {5: [BucketLine.of(filled(4, 5, "b"))]},
        )
    )
    assert store.read == ["page-1"]
    assert [page.uri for page in after.pages] == ["page-0", "page-4", "page-2", "page-3"]
    assert after[5].files[0].uri == "b-4-5"
    assert list(before)[5].files[0].uri == "a-4-5"
    assert after.totals == Totals.of(after) == before.totals


def test_a_bucket_that_splits_makes_its_page_longer_until_it_is_cut(store: Store) -> None:
    before = store.store(Buckets.of(filled(4, bits, due_at=9 - bits % 4) for bits in range(16)))
    split = before.replaced({5: [BucketLine.of(filled(6, bits)) for bits in range(20, 24)]})
    stored = store.store(split)
    assert [sum(count for _, count in page.depths) for page in stored.pages] == [4, 4, 3, 4, 4]
    assert list(stored) == list(split)
    assert stored.totals == Totals.of(stored)


def test_buckets_that_do_not_have_the_hashes_of_those_they_replace_are_refused(store: Store) -> None:
    before = store.store(Buckets.even(4))
    with pytest.raises(InvalidInputError, match="do not cover the hash space"):
        before.replaced({5: [BucketLine.of(Bucket(depth=5, bits=10))]})
    with pytest.raises(InvalidInputError, match="do not cover the hash space"):
        before.replaced({5: [BucketLine.of(Bucket(depth=4, bits=6))]})


def test_only_pages_with_buckets_that_are_due_are_found(store: Store) -> None:
    buckets = store.store(Buckets.of(filled(4, bits, due_at=100 if bits == 6 else None) for bits in range(16)))
    assert buckets.due_numbers(99, None) == []
    assert buckets.due_numbers(100, None) == [range(4, 8)]
    assert store.read == []
    held = Bucket(depth=0, bits=0, files=filled(0, 0).files, held_at=50)
    assert Buckets.of([held]).due_numbers(0, 50) == []
    assert Buckets.of([held]).due_numbers(0, 51) == Buckets.of([held]).due_numbers(0, None) == [range(1)]


def test_a_bucket_without_files_is_never_due() -> None:
    assert Buckets.of([Bucket(depth=0, bits=0, due_at=1)]).totals.due_at is None


def test_empty_buckets_of_any_number_take_no_room() -> None:
    buckets = Buckets.even(20)
    assert len(buckets) == 1 << 20
    assert len(pickle.dumps(buckets)) < 1000
    assert buckets.number_of((1 << 64) - 1) == (1 << 20) - 1


def test_a_page_with_other_buckets_than_it_should_have_is_damage(store: Store) -> None:
    buckets = store.store(Buckets.even(4))
    store.pages["page-1"] = store.pages["page-1"].rpartition(b"\n")[0]
    assert buckets[0] == Bucket(depth=4, bits=0)
    with pytest.raises(CorruptionError, match="page-1: has 3 buckets instead of 4"):
        buckets[4]


def test_pages_that_nobody_can_read_say_so(store: Store) -> None:
    buckets = Buckets.from_serializable(store.store(Buckets.even(4)).to_serializable())
    with pytest.raises(InvalidInputError, match="page-0: holds buckets"):
        buckets[0]


@pytest.mark.parametrize("data", [None, 3, {}, {"pages": 3}, {"pages": [{"uri": "../x"}]}])
def test_json_that_is_no_buckets_is_refused(data: object) -> None:
    with pytest.raises(InvalidInputError):
        Buckets.from_serializable(data)


def test_what_is_stored_with_a_page_says_which_buckets_it_has(store: Store) -> None:
    tombstones = CompactedFile(uri="t", record_count=1, content_length=1)
    first = Bucket(depth=3, bits=0, tombstones=tombstones)
    (page, _) = store.store(Buckets.of([first, *even(3)[1:]])).pages
    assert page.depths == [[3, 4]]
    assert store.store(Buckets.of([first, *even(3)[1:]]))[0].tombstone_count == 1


def test_halves_of_a_bucket_that_is_small_enough_are_joined_and_others_are_not(store: Store) -> None:
    buckets = store.store(Buckets.of(filled(3, bits) for bits in range(8)))
    assert [bucket.name for bucket in buckets.joined(13)] == [bucket.name for bucket in buckets]
    joined = buckets.joined(14)
    assert [bucket.name for bucket in joined] == ["00", "01", "10", "11"]
    assert [file.uri for file in joined[0].files] == ["a-3-0", "a-3-1"]
    assert joined.totals == buckets.totals
    assert [bucket.name for bucket in buckets.joined(55)] == ["0", "1"]
    assert [bucket.name for bucket in buckets.joined(56)] == ["all"]


def test_buckets_that_both_have_tombstones_are_not_joined() -> None:
    tombstones = CompactedFile(uri="t", record_count=1, content_length=1)
    one = Bucket(depth=1, bits=0, tombstones=tombstones, held_at=7)
    assert len(Buckets.of([one, Bucket(depth=1, bits=1, tombstones=tombstones)]).joined(10)) == 2
    (whole,) = Buckets.of([one, filled(1, 1, due_at=5)]).joined(10)
    assert (whole.tombstones, whole.due_at) == (tombstones, 5)


def test_the_largest_pages_are_read_and_no_others(store: Store) -> None:
    def sized(bits: int) -> Bucket:
        file = CompactedFile(uri=f"f{bits}", record_count=1, content_length=1000 if bits in (5, 14) else 1)
        return Bucket(depth=4, bits=bits, files=[file])

    buckets = store.store(Buckets.of(map(sized, range(16))))
    assert [bucket.bits for bucket in buckets.of_largest_pages(5)] == [4, 5, 6, 7, 12, 13, 14, 15]
    assert store.read == ["page-1", "page-3"]
    assert len(buckets.of_largest_pages(100)) == 16
    assert Buckets.even(2).of_largest_pages(1) == list(Buckets.even(2))
