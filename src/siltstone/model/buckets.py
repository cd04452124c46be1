"""The buckets of a compacted partition as one sequence, kept in pages, so that a change of a few writes a few pages."""

import bisect
import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, overload

import orjson

from siltstone.errors import CorruptionError, InvalidInputError
from siltstone.model.dict_model import Model, field
from siltstone.model.entities import ManifestEntry
from siltstone.model.locators import check_path

MAX_DEPTH = 32
HASH_BITS = 64
ALL_HASHES = range(1 << HASH_BITS)


class DeletionVector(Model):
    """The dead rows of one data file, or of a slice of one; the checksum is the CRC-32 of the stored bytes.

    Where several are stored in one object, this one begins at `start`, and the object has `object_length` bytes.
    """

    uri: str = field(check=check_path)
    record_count: int
    content_length: int
    checksum: int
    start: int = 0
    object_length: int | None = None

    def validate(self) -> None:
        """Refuse a vector that is not within its object."""
        if self["object_length"] is None and not self["start"]:
            return
        if self["start"] < 0 or self["start"] + self["content_length"] > self.stored_length:
            raise InvalidInputError(f"{self.uri}: a deletion vector at {self.start} is not within its object")

    @property
    def stored_length(self) -> int:
        """Bytes of the object that it is stored in."""
        # By key, here and below: a round asks millions of files.
        length = self["object_length"]
        return int(self["content_length"] if length is None else length)

    @property
    def is_framed(self) -> bool:
        """Whether its bytes are framed as in Delta Lake; those of earlier rounds are a plain bitmap, in objects named `.dv`."""
        return not self.uri.endswith(".dv")


class CompactedFile(ManifestEntry):
    """A data file of compacted rows, or the slice of one that has a bucket's rows; dead ones are in the deletion vector.

    A data file that several buckets share has `file_rows` rows and `file_length` bytes, of which `record_count` rows from
    `first_row` on are this slice, and `content_length` bytes its share; rows of the deletion vector are counted from
    `first_row`. All slices have the same key index, which is of the whole file.
    `index_length` has the bytes of the key index; where it is None, they follow from the number of rows.
    Of its rows, the first `carried_rows` were in other files of the bucket before, and only the others came with the deltas of
    the round that wrote it; None where that is not known.
    """

    deletion_vector: DeletionVector | None = None
    index_uri: str | None = field(default=None, check=check_path)
    index_length: int | None = None
    first_row: int = 0
    file_rows: int | None = None
    file_length: int | None = None
    carried_rows: int | None = None

    def validate(self) -> None:
        """Refuse a slice that is not within its file."""
        if self["file_rows"] is None and not self["first_row"]:
            return
        if self["first_row"] < 0 or self["first_row"] + self["record_count"] > self.stored_rows:
            raise InvalidInputError(
                f"{self.uri}: rows from {self.first_row} on are not within its {self.stored_rows} rows"
            )

    @property
    def is_shared(self) -> bool:
        """Whether other buckets may have rows in the same data file."""
        return self["file_rows"] is not None

    @property
    def stored_rows(self) -> int:
        """Rows of the whole data file."""
        rows = self["file_rows"]
        return int(self["record_count"] if rows is None else rows)

    @property
    def stored_length(self) -> int:
        """Bytes of the whole data file."""
        length = self["file_length"]
        return int(self["content_length"] if length is None else length)

    @property
    def live_count(self) -> int:
        """Rows that are not dead."""
        vector = self["deletion_vector"]
        return int(self["record_count"] - (vector["record_count"] if vector else 0))


class Bucket(Model):
    """All rows whose key hash begins with the `depth` bits `bits`.

    From the time `due_at` on there is something to do even if no delta comes; also, where a hold up to `held_at` kept
    rows from being deleted, as soon as that hold is over.
    """

    depth: int
    bits: int
    files: list[CompactedFile] = field(default_factory=list)
    tombstones: CompactedFile | None = None
    due_at: int | None = None
    held_at: int | None = None

    @property
    def name(self) -> str:
        """The bits as text; `all` where there are none."""
        return format(self.bits, f"0{self.depth}b") if self.depth else "all"

    def has(self, key_hash: int) -> bool:
        """Return whether a key with this hash belongs here."""
        return not self.depth or key_hash >> (HASH_BITS - self.depth) == self.bits

    @property
    def first_hash(self) -> int:
        """The smallest hash of the bucket."""
        return int(self["bits"] << (HASH_BITS - self["depth"]))

    @property
    def last_hash(self) -> int:
        """The greatest hash of the bucket."""
        return (self.bits + 1 << (HASH_BITS - self.depth)) - 1

    @property
    def live_count(self) -> int:
        """Rows that are not dead."""
        return sum(file.live_count for file in self["files"])

    @property
    def record_count(self) -> int:
        """Rows in all files, dead ones included."""
        return sum(file["record_count"] for file in self["files"])

    @property
    def dead_count(self) -> int:
        """Rows in files that are dead."""
        return self.record_count - self.live_count

    @property
    def tombstone_count(self) -> int:
        """Deleted keys that are remembered."""
        return self.tombstones.record_count if self.tombstones else 0

    @property
    def content_length(self) -> int:
        """Bytes of all data files."""
        return sum(file.content_length for file in self.files)


class Totals(NamedTuple):
    """Some buckets in numbers: their files, and the earliest times at which one has something to do."""

    file_count: int = 0
    record_count: int = 0
    live_count: int = 0
    content_length: int = 0
    due_at: int | None = None
    held_at: int | None = None

    @classmethod
    def of(cls, buckets: Iterable[Mapping[str, Any]]) -> "Totals":
        """Return buckets, or what is stored of them, in numbers; one without files has nothing to do."""
        files = rows = dead = size = 0
        due: list[int] = []
        held: list[int] = []
        for bucket in buckets:
            # In one pass: a round asks for this of each bucket.
            for file in bucket["files"]:
                files += 1
                rows += file["record_count"]
                size += file["content_length"]
                vector = file["deletion_vector"]
                dead += vector["record_count"] if vector else 0
            if bucket["files"]:
                due += [] if bucket["due_at"] is None else [bucket["due_at"]]
                held += [] if bucket["held_at"] is None else [bucket["held_at"]]
        return cls(files, rows, rows - dead, size, min(due, default=None), min(held, default=None))

    @classmethod
    def sum(cls, totals: "Iterable[Totals]") -> "Totals":
        """Return the sum, with the earliest times."""
        several = list(totals)
        return cls(
            sum(each.file_count for each in several),
            sum(each.record_count for each in several),
            sum(each.live_count for each in several),
            sum(each.content_length for each in several),
            min((each.due_at for each in several if each.due_at is not None), default=None),
            min((each.held_at for each in several if each.held_at is not None), default=None),
        )


class BucketLine(NamedTuple):
    """A bucket as it is stored, as JSON, with which one it is and what it has in numbers.

    Rounds hold one for each bucket that they change, which takes a small part of the memory of a model.
    """

    data: bytes
    depth: int
    bits: int
    totals: Totals

    @classmethod
    def of(cls, bucket: Bucket) -> "BucketLine":
        """Return a bucket in this form."""
        return cls(_encoded(bucket), bucket["depth"], bucket["bits"], Totals.of((bucket,)))

    @property
    def bucket(self) -> Bucket:
        """The bucket itself."""
        return _decoded(self.data)


def is_due(of: Bucket | Totals, now_ms: int, floor_ms: int | None) -> bool:
    """Return whether a bucket, or any of several, has something to do though no delta is for it.

    Nothing of a time up to `floor_ms` may be deleted.
    """
    if of.due_at is not None and of.due_at <= now_ms:
        return True
    return of.held_at is not None and (floor_ms is None or floor_ms > of.held_at)


class Page(Model):
    """Neighbouring buckets that are stored in one object, a line each, and their totals.

    `depths` has the depths of the buckets in runs, (depth, how many): with where the page begins, they say which buckets
    these are. The checksum is the CRC-32 of the stored bytes.
    """

    uri: str = field(check=check_path)
    content_length: int
    checksum: int
    depths: list[list[int]]
    totals: list[int | None]


class StoredPage(NamedTuple):
    """Where a page is stored, and how its bytes are checked."""

    uri: str
    content_length: int
    checksum: int


ReadPage = Callable[[Page], bytes]
"""Returns the lines of a stored page. Raises: CorruptionError."""
WritePage = Callable[[bytes], StoredPage]
"""Stores the lines of a page."""

Line = bytes | Bucket
"""A bucket, or its JSON as it is stored."""


class _Pages(NamedTuple):
    """Where pages begin: the number of the first bucket, and the first hash, of each and of what would come after all."""

    numbers: list[int]
    hashes: list[int]


class _Page:
    """Neighbouring buckets: stored, and read when they are asked for; or in memory; or else they are empty."""

    def __init__(
        self, depths: list[list[int]], totals: Totals, stored: Page | None, lines: Sequence[Line] | None
    ) -> None:
        self.depths = depths
        self.totals = totals
        self.stored = stored
        self.lines = lines

    @classmethod
    def of(cls, lines: Sequence[Line], depths: Iterable[int], totals: Totals) -> "_Page":
        runs = [[depth, len(list(same))] for depth, same in itertools.groupby(depths)]
        return cls(runs, totals, None, lines)

    @property
    def count(self) -> int:
        return sum(count for _, count in self.depths)

    @property
    def each_depth(self) -> list[int]:
        return [depth for depth, count in self.depths for _ in range(count)]


class Buckets(Sequence[Bucket]):
    """The buckets of a compacted partition in order of their hashes, all of the hash space.

    `totals` has all of them in numbers. A plain value that can be pickled: what is in stored pages is read when it is
    asked for, by `reader`, and one page is kept in memory at a time. As JSON it is a list of buckets, or an object with
    the list of its stored pages.
    """

    def __init__(self, pages: Sequence[_Page], reader: ReadPage | None = None) -> None:
        self._pages = tuple(pages)
        self.reader = reader
        self.totals = Totals.sum(page.totals for page in self._pages)
        self._loaded: tuple[int, Sequence[Line]] = -1, ()
        self._starts = self._checked_starts()

    @classmethod
    def of(cls, buckets: Iterable[Bucket]) -> "Buckets":
        """Return buckets, in any order, in memory. Raises: InvalidInputError where they leave out or double any hash."""
        ordered = sorted(buckets, key=lambda bucket: bucket.first_hash)
        whole = cls([_Page.of(ordered, (bucket.depth for bucket in ordered), Totals.of(ordered))])
        hashes = (start + (at << (HASH_BITS - depth)) for start, depth, count in whole.runs() for at in range(count))
        for bucket, expected in zip(ordered, hashes, strict=True):
            if bucket.first_hash != expected:
                raise InvalidInputError(f"buckets do not cover the hash space at {expected:016x}")
        return whole

    @classmethod
    def even(cls, depth: int) -> "Buckets":
        """Return empty buckets that share the hash space evenly."""
        return cls([_Page([[depth, 1 << depth]], Totals(), None, None)])

    @classmethod
    def from_serializable(cls, data: object) -> Self:
        """Read a list of buckets, or an object with pages. Raises: InvalidInputError."""
        if isinstance(data, list | tuple):
            buckets = [each if isinstance(each, Bucket) else Bucket.from_serializable(each) for each in data]
            return cls(cls.of(buckets)._pages)
        if not isinstance(data, dict) or not isinstance(data.get("pages"), list):
            raise InvalidInputError(f"buckets: expected a list, or an object with pages, found {type(data).__name__}")
        pages = [page if isinstance(page, Page) else Page.from_serializable(page) for page in data["pages"]]
        return cls([_Page(page.depths, Totals(*page.totals), page, None) for page in pages])  # type: ignore[arg-type]

    def to_serializable(self) -> object:
        """Return what `from_serializable` reads: pages where all are stored."""
        stored = [page.stored for page in self._pages]
        if all(page is not None for page in stored):
            return {"pages": [page.to_serializable() for page in stored if page is not None]}
        return [bucket.to_serializable() for bucket in self]

    def read_by(self, reader: ReadPage) -> "Buckets":
        """Return the same buckets, whose stored pages are read in the way given."""
        return Buckets(self._pages, reader)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loaded": (-1, ())}

    def __repr__(self) -> str:
        return f"<Buckets: {len(self)} in {len(self._pages)} pages>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Buckets) and (self is other or self.to_serializable() == other.to_serializable())

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self._starts.numbers[-1]

    @overload
    def __getitem__(self, number: int) -> Bucket: ...

    @overload
    def __getitem__(self, number: slice) -> list[Bucket]: ...

    def __getitem__(self, number: int | slice) -> Bucket | list[Bucket]:
        """Return the bucket of a number. Raises: CorruptionError."""
        if isinstance(number, slice):
            return [self[position] for position in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        page = self._page_of(number)
        if self._pages[page].lines is None and self._pages[page].stored is None:
            return self._empty_bucket(page, number - self._starts.numbers[page])
        return _decoded(self._lines(page)[number - self._starts.numbers[page]])

    def _empty_bucket(self, page: int, place: int) -> Bucket:
        """Return one bucket of a page of empty ones, of which a first round has a single one, however many they are."""
        start = self._starts.hashes[page]
        for depth, count in self._pages[page].depths:
            if place < count:
                return Bucket(depth=depth, bits=(start >> (HASH_BITS - depth)) + place)
            place, start = place - count, start + (count << (HASH_BITS - depth))
        raise AssertionError(f"bucket {place} is beyond its page")

    def _page_of(self, number: int) -> int:
        return bisect.bisect_right(self._starts.numbers, number) - 1

    def __iter__(self) -> Iterator[Bucket]:
        for page in range(len(self._pages)):
            yield from map(_decoded, self._lines(page))

    @property
    def pages(self) -> list[Page]:
        """The pages that are stored."""
        return [page.stored for page in self._pages if page.stored is not None]

    def in_page(self, page: Page) -> list[Bucket]:
        """Return the buckets of a stored page. Raises: CorruptionError."""
        numbers = [number for number, own in enumerate(self._pages) if own.stored is page]
        return [_decoded(line) for number in numbers for line in self._lines(number)]

    def outside(self, pages: Container[str], hashes: range = ALL_HASHES) -> Iterator[Bucket]:
        """Yield the buckets in order that begin in a range of hashes, but for those of stored pages with these paths.

        No page is read of which none is wanted. Raises: CorruptionError.
        """
        starts = self._starts.hashes
        for number, page in enumerate(self._pages):
            is_apart = starts[number] >= hashes.stop or starts[number + 1] <= hashes.start
            if is_apart or (page.stored is not None and page.stored.uri in pages):
                continue
            yield from (bucket for bucket in map(_decoded, self._lines(number)) if bucket.first_hash in hashes)

    @property
    def least_depth(self) -> int:
        """The depth of the largest bucket: no bucket lies in two of the ranges that so many bits of hashes make."""
        return min(depth for _, depth, _ in self.runs())

    def of_largest_pages(self, least: int) -> list[Bucket]:
        """Return at least so many buckets, or all there are, from the pages with the most bytes, in their order.

        Raises: CorruptionError.
        """
        places: list[int] = []
        found = 0
        for place in sorted(range(len(self._pages)), key=lambda place: -self._pages[place].totals.content_length):
            if found >= least:
                break
            places.append(place)
            found += self._pages[place].count
        return [_decoded(line) for place in sorted(places) for line in self._lines(place)]

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield neighbours of the same depth: the smallest hash, the depth, and how many they are."""
        start = 0
        for depth, count in (run for page in self._pages for run in page.depths):
            yield start, depth, count
            start += count << (HASH_BITS - depth)

    def number_of(self, key_hash: int) -> int:
        """Return the number of the bucket that a hash belongs to."""
        page = bisect.bisect_right(self._starts.hashes, key_hash) - 1
        number, start = self._starts.numbers[page], self._starts.hashes[page]
        for depth, count in self._pages[page].depths:
            size = 1 << (HASH_BITS - depth)
            if key_hash < start + count * size:
                return number + (key_hash - start) // size
            number, start = number + count, start + count * size
        raise AssertionError(f"hash {key_hash} is beyond its page")

    def difference(self, other: "Buckets") -> tuple[list[Bucket], list[Bucket]]:
        """Return the buckets that only this has, and those that only the other has, exactly as they are.

        Pages that both have are not read, and of the others only lines that differ become buckets. Raises: CorruptionError.
        """
        both = {page.uri for page in self.pages} & {page.uri for page in other.pages}
        own, others = self._lines_outside(both), other._lines_outside(both)
        same = own.keys() & others.keys()
        only_own, only_others = (
            [_decoded(line) for encoded, line in lines.items() if encoded not in same] for lines in (own, others)
        )
        return only_own, only_others

    def _lines_outside(self, pages: Container[str]) -> dict[bytes, Line]:
        numbers = [n for n, page in enumerate(self._pages) if page.stored is None or page.stored.uri not in pages]
        return {_encoded(line): line for number in numbers for line in self._lines(number)}

    def due_numbers(self, now_ms: int, floor_ms: int | None) -> list[range]:
        """Return the numbers of buckets, by page, among which some have something to do though no delta is for them."""
        starts = self._starts.numbers
        return [
            range(starts[number], starts[number + 1])
            for number, page in enumerate(self._pages)
            if is_due(page.totals, now_ms, floor_ms)
        ]

    def replaced(self, changes: Mapping[int, Sequence[BucketLine]]) -> "Buckets":
        """Return the buckets with others in place of some, by their numbers; pages of which none changes stay as they are.

        Raises: CorruptionError, InvalidInputError where the others do not have the same hashes.
        """
        by_page: dict[int, dict[int, Sequence[BucketLine]]] = {}
        for number, lines in changes.items():
            by_page.setdefault(self._page_of(number), {})[number] = lines
        pages = [
            self._changed(place, by_page[place]) if place in by_page else page for place, page in enumerate(self._pages)
        ]
        return Buckets(pages, self.reader)

    def _changed(self, place: int, changes: Mapping[int, Sequence[BucketLine]]) -> _Page:
        page, first, start = self._pages[place], self._starts.numbers[place], self._starts.hashes[place]
        # Where all go, they need not be read.
        before = self._lines(place) if len(changes) < page.count else ()
        lines: list[Line] = []
        depths: list[int] = []
        gone: list[Line] = []
        after: list[Totals] = []
        for number, depth in enumerate(page.each_depth):
            others = changes.get(first + number)
            if others is None:
                lines.append(before[number])
                depths.append(depth)
            else:
                if not others or others[0].bits << (HASH_BITS - others[0].depth) != start:
                    raise InvalidInputError(f"buckets do not cover the hash space at {start:016x}")
                gone += before[number : number + 1]
                for other in others:
                    lines.append(other.data)
                    depths.append(other.depth)
                    after.append(other.totals)
            start += 1 << (HASH_BITS - depth)
        if len(changes) == page.count:
            totals = Totals.sum(after)
        elif page.totals.due_at is None and page.totals.held_at is None:
            # Models of what goes would be made, and checked, for nothing.
            numbers = Totals.of(line if isinstance(line, Bucket) else orjson.loads(line) for line in gone)
            totals = _difference(page.totals, numbers, Totals.sum(after))
        else:
            totals = Totals.of(map(_decoded, lines))
        return _Page.of(lines, depths, totals)

    def joined(self, most_rows: int) -> "Buckets":
        """Return the buckets with halves joined, in memory, that have no more rows together; each has the files of both.

        More buckets than there is room for in memory stay as they are. Raises: CorruptionError.
        """
        if len(self) > _MOST_JOINED:
            return self
        joined: list[Bucket] = []
        for bucket in self:
            while joined and _are_joinable(joined[-1], bucket, most_rows):
                bucket = _joined(joined.pop(), bucket)
            joined.append(bucket)
        return Buckets.of(joined) if len(joined) < len(self) else self

    def stored(self, page_buckets: int, write: WritePage) -> "Buckets":
        """Return the same buckets, all in stored pages if they are more than one page holds, else all in memory."""
        if len(self) <= page_buckets:
            lines = self._pages[0].lines if len(self._pages) == 1 else None
            are_models = lines is not None and all(isinstance(line, Bucket) for line in lines)
            return self if are_models else Buckets.of(self)
        pages: list[_Page] = []
        for number, page in enumerate(self._pages):
            if page.stored is not None:
                pages.append(page)
                continue
            lines, depths = self._lines(number), page.each_depth
            cuts = -(-len(lines) // page_buckets)
            size = -(-len(lines) // cuts)
            for first in range(0, len(lines), size):
                part = lines[first : first + size]
                totals = page.totals if cuts == 1 else Totals.of(map(_decoded, part))
                pages.append(_stored(_Page.of(part, depths[first : first + size], totals), write))
        return Buckets(pages, self.reader)

    def _lines(self, number: int) -> Sequence[Line]:
        page = self._pages[number]
        if page.lines is not None:
            return page.lines
        loaded, lines = self._loaded
        if loaded != number:
            lines = self._read(page) if page.stored is not None else self._empty(number)
            self._loaded = number, lines
        return lines

    def _read(self, page: _Page) -> Sequence[Line]:
        assert page.stored is not None
        if self.reader is None:
            raise InvalidInputError(f"{page.stored.uri}: holds buckets, but nothing says how to read it")
        lines = self.reader(page.stored).split(b"\n")
        if len(lines) != page.count:
            raise CorruptionError(
                f"{page.stored.uri}: has {len(lines)} buckets instead of {page.count}; restore it, or rebase the partition"
            )
        return lines

    def _empty(self, number: int) -> Sequence[Line]:
        start = self._starts.hashes[number]
        buckets = []
        for depth in self._pages[number].each_depth:
            buckets.append(Bucket(depth=depth, bits=start >> (HASH_BITS - depth)))
            start += 1 << (HASH_BITS - depth)
        return buckets

    def _checked_starts(self) -> _Pages:
        """Return where pages begin. Raises: InvalidInputError where they leave out or double a part of the hash space."""
        starts = _Pages([0], [0])
        number = start = 0
        for page in self._pages:
            for depth, count in page.depths:
                size = 1 << (HASH_BITS - depth) if 0 <= depth <= MAX_DEPTH else 0
                if not size or count < 1 or start % size:
                    raise InvalidInputError(f"buckets do not cover the hash space at {start:016x}")
                number, start = number + count, start + count * size
            starts.numbers.append(number)
            starts.hashes.append(start)
        if start != 1 << HASH_BITS:
            raise InvalidInputError(f"buckets do not cover the hash space from {start:016x}")
        return starts


_MOST_JOINED = 4096


def _are_joinable(one: Bucket, other: Bucket, most_rows: int) -> bool:
    """Return whether neighbours are the halves of a bucket of so many rows; tombstones of both would be two files."""
    return (
        one.depth == other.depth
        and one.bits ^ 1 == other.bits
        and one.bits < other.bits
        and one.live_count + other.live_count <= most_rows
        and (one.tombstones is None or other.tombstones is None)
    )


def _joined(one: Bucket, other: Bucket) -> Bucket:
    times = Totals.of([one, other])
    return Bucket(
        depth=one.depth - 1,
        bits=one.bits >> 1,
        files=[*one.files, *other.files],
        tombstones=one.tombstones or other.tombstones,
        due_at=times.due_at,
        held_at=times.held_at,
    )


def _decoded(line: Line) -> Bucket:
    return line if isinstance(line, Bucket) else Bucket.from_serializable(orjson.loads(line))


def _encoded(line: Line) -> bytes:
    # A bucket is a dictionary of values that were checked when they were set.
    return orjson.dumps(line) if isinstance(line, Bucket) else line


def _stored(page: _Page, write: WritePage) -> _Page:
    place = write(b"\n".join(map(_encoded, page.lines or ())))
    stored = Page(**place._asdict(), depths=page.depths, totals=list(page.totals))
    return _Page(page.depths, page.totals, stored, None)


def _difference(whole: Totals, before: Totals, after: Totals) -> Totals:
    """Return totals in which some buckets have replaced others, where none of those that stay has a time."""
    return Totals(
        whole.file_count - before.file_count + after.file_count,
        whole.record_count - before.record_count + after.record_count,
        whole.live_count - before.live_count + after.live_count,
        whole.content_length - before.content_length + after.content_length,
        after.due_at,
        after.held_at,
    )
