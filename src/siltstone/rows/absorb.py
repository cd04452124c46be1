"""Two ways to absorb the changes of a bucket: beside its files (minor), or by rewriting it (major).

Neighbours that are merged together, and absorb their changes beside their files, share one data file with one index, and
one object with their deletion vectors; those that leave tombstones share one file of these.
"""

from array import array
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from siltstone.errors import CorruptionError
from siltstone.log.horizon import new_round_name
from siltstone.model.buckets import MAX_DEPTH, Bucket, CompactedFile
from siltstone.model.rounds import Accounting
from siltstone.objects import close_together, open_objects
from siltstone.rows.columns import Hashes, Integers, align, hash_keys
from siltstone.rows.files import StoredFile, check_present, write_vectors
from siltstone.rows.fold import split_tombstones, write_tombstones
from siltstone.rows.index import write_index
from siltstone.rows.job import Action, BucketResult, RoundJob, Stretch
from siltstone.rows.slices import StretchFiles, slices_of
from siltstone.storage.parquet import ROW_GROUP_ROWS, open_writer

_CLOSED_TOGETHER = 8
# A bucket that has outgrown its size is rewritten for so many times fewer new rows: each half then costs less to rewrite.
_SPLIT_WORTH = 4


class Marks(NamedTuple):
    """When a bucket has something to do even if no delta comes: see `Bucket`."""

    due_at: int | None
    held_at: int | None


@dataclass(frozen=True)
class Change:
    """What the deltas do to a bucket: rows that die, by file; rows that come; tombstones, where there are any.

    Where `marks` are given, they say when the bucket will have something to do; else it keeps its own.
    """

    dead: list[Integers]
    rows: pa.Table
    accounting: Accounting
    tombstones: pa.Table | None = None
    marks: Marks | None = None

    @property
    def dead_count(self) -> int:
        """How many compacted rows die."""
        return sum(map(len, self.dead))


def choose(job: RoundJob, bucket: Bucket, new_rows: int, dead_rows: int) -> tuple[Action, str]:
    """Return how a bucket absorbs its changes, and why.

    Adding costs by the new rows, rewriting by all rows. So a bucket is rewritten where that costs little more, or is due: since
    readers would pass too many dead rows or open too many files, or since it is large enough to split.
    """
    settings = job.settings
    if settings.full:
        return "major", "a full compaction was asked for"
    if not new_rows and not dead_rows:
        return "untouched", "no row changes"
    if not bucket.files:
        return "major", "the bucket is empty"
    stored = bucket.record_count
    dead = stored - bucket.live_count + dead_rows
    if dead > settings.max_dead_fraction * stored:
        return "major", f"{dead} of {stored} rows would be dead, more than {settings.max_dead_fraction:.0%}"
    if new_rows > settings.max_delta_fraction * stored:
        return "major", f"{new_rows} new rows come to {stored}: to rewrite those costs little more than to add to them"
    rows = bucket.live_count - dead_rows + new_rows
    if new_rows * _SPLIT_WORTH > settings.max_delta_fraction * stored and _splits(job, bucket, rows):
        return (
            "major",
            f"with {new_rows} new rows it would have {rows}, more than twice {job.bucket_rows}, so it splits",
        )
    if len(bucket.files) + 1 > settings.max_files:
        return "major", f"it would have {len(bucket.files) + 1} files, more than {settings.max_files}"
    return "minor", f"to add {new_rows} new and mark {dead_rows} dead rows costs less than to rewrite {stored}"


def absorb(job: RoundJob, stretch: Stretch, files: StretchFiles, changes: Sequence[Change]) -> list[BucketResult]:
    """Write what the changes of neighbouring buckets need, and return the new shape of each.

    Raises: CorruptionError where rows do not add up, or files that are carried over are missing.
    """
    chosen = [
        choose(job, bucket, change.rows.num_rows, change.dead_count)
        for bucket, change in zip(stretch.buckets, changes, strict=True)
    ]
    minor = [place for place, (action, _) in enumerate(chosen) if action == "minor"]
    added = dict(zip(minor, _add(job, stretch, files, changes, minor), strict=True))
    outcomes: list[_Outcome] = []
    for place, (action, _) in enumerate(chosen):
        bucket = stretch.buckets[place]
        if action == "major":
            outcomes.append(_rewrite(job, bucket, files.of(place), changes[place]))
        else:
            outcomes.append(added.get(place) or _Outcome([bucket.replaced()], []))
    _finish(job, outcomes, changes)
    return [
        _result(number, bucket, choice, outcome, change.accounting)
        for number, bucket, choice, outcome, change in zip(
            stretch.numbers, stretch.buckets, chosen, outcomes, changes, strict=True
        )
    ]


class _Outcome(NamedTuple):
    """What a bucket became, and which of its files were written for that."""

    buckets: list[Bucket]
    written: list[CompactedFile]


def _result(
    number: int, bucket: Bucket, choice: tuple[Action, str], outcome: _Outcome, accounting: Accounting
) -> BucketResult:
    """Return the result of a bucket. Raises: CorruptionError where rows do not add up."""
    accounting.live_rows = sum(child.live_count for child in outcome.buckets)
    if not accounting.is_balanced:
        raise CorruptionError(
            f"bucket {bucket.name}: rows do not add up, so nothing is committed: {dict(accounting)}; keep the data and "
            "report this"
        )
    return BucketResult(
        number,
        *choice,
        tuple(outcome.buckets),
        accounting,
        written_files=len(outcome.written),
        written_bytes=sum(file.content_length for file in outcome.written),
        written_rows=sum(file.record_count for file in outcome.written),
    )


def _finish(job: RoundJob, outcomes: Sequence[_Outcome], changes: Sequence[Change]) -> None:
    """Give buckets the tombstones and times that their changes say."""
    children: list[Bucket] = []
    tombstones: list[pa.Table] = []
    for (buckets, _), change in zip(outcomes, changes, strict=True):
        if change.tombstones is not None:
            children += buckets
            tombstones += split_tombstones(job, buckets, change.tombstones)
        if change.marks is not None:
            for child in buckets:
                child.due_at, child.held_at = change.marks if child.files else (None, None)
    if children:
        write_tombstones(job, children, tombstones)


def _add(
    job: RoundJob, stretch: Stretch, files: StretchFiles, changes: Sequence[Change], minor: Sequence[int]
) -> list[_Outcome]:
    """Add the new rows of buckets beside their files: all in one data file, and all deletion vectors in one object."""
    if not minor:
        return []
    wanted = frozenset(minor)
    carried = [
        file
        for file, owners in zip(files.whole, files.owners, strict=True)
        if any(place in wanted for place, _ in owners)
    ]
    # What is carried over by reference is not read, so that nobody else would notice what is missing.
    check_present(job.root, carried)
    writer = CompactedWriter(job)
    kept = _with_vectors(job, stretch, files, changes, wanted, writer.close_later)
    for place in minor:
        writer.write(changes[place].rows)
    added = slices_of(writer.close(), [changes[place].rows.num_rows for place in minor])
    return [
        _Outcome([stretch.buckets[place].replaced(files=[*kept[place], *written])], written)
        for place, written in zip(minor, added, strict=True)
    ]


def _with_vectors(
    job: RoundJob,
    stretch: Stretch,
    files: StretchFiles,
    changes: Sequence[Change],
    wanted: Container[int],
    close: Callable[[IO[bytes]], object],
) -> dict[int, list[CompactedFile]]:
    """Return the files of buckets, by their places, with new deletion vectors, and without those whose rows are all dead."""
    all_dead: dict[tuple[int, int], BitMap64] = {}
    for file, owners in zip(files.whole, files.owners, strict=True):
        for each, (place, position) in zip(file.slices, owners, strict=True):
            dead = changes[place].dead[position]
            if len(dead) and place in wanted:
                all_dead[place, position] = file.dead_of(each) | BitMap64(array("Q", dead.tobytes()))
    kept: dict[int, list[CompactedFile]] = {}
    marked = {key: dead for key, dead in all_dead.items() if len(dead) < _file_at(stretch, key).record_count}
    vectors = dict(zip(marked, write_vectors(job.root, job.folder, [*marked.values()], job.began, close), strict=True))
    for place, bucket in enumerate(stretch.buckets):
        if place in wanted:
            kept[place] = [
                file.replaced(deletion_vector=vectors[place, position]) if (place, position) in vectors else file
                for position, file in enumerate(bucket.files)
                if (place, position) not in all_dead or (place, position) in vectors
            ]
    return kept


def _file_at(stretch: Stretch, key: tuple[int, int]) -> CompactedFile:
    return stretch.buckets[key[0]].files[key[1]]


def _rewrite(job: RoundJob, bucket: Bucket, stored: Sequence[StoredFile], change: Change) -> _Outcome:
    rows_after = bucket.live_count - change.dead_count + change.rows.num_rows
    children = _children(job, bucket, rows_after)
    writers = [CompactedWriter(job) for _ in children]

    def write(table: pa.Table) -> None:
        if len(writers) == 1:
            writers[0].write(table)
            return
        depth = children[0].depth
        bits = (hash_keys(table, job.primary_keys) >> np.uint64(64 - depth)).astype(np.int64) - children[0].bits
        for number, writer in enumerate(writers):
            writer.write(table.filter(pa.array(bits == number)))

    schema = _encoded_schema(job, stored)
    for file, dead in zip(stored, change.dead, strict=True):
        live = file.live_flags()
        live[dead] = False
        is_whole = bool(live.all())
        for start, table in file.scan(schema):
            write(table if is_whole else table.filter(pa.array(live[start : start + table.num_rows])))
        if not file.file.is_shared:
            file.release()
    write(align(change.rows, schema))
    for child, writer in zip(children, writers, strict=True):
        child.files = writer.close()
    return _Outcome(children, [file for child in children for file in child.files])


def _encoded_schema(job: RoundJob, stored: Sequence[StoredFile]) -> pa.Schema:
    """Return the columns as they travel from file to file: text that the largest file has a dictionary for keeps it.

    So they need not be decoded, nor their dictionaries built anew.
    """
    largest = max(stored, key=lambda file: file.file.record_count, default=None)
    encoded = largest.encoded_columns() - set(job.primary_keys) if largest is not None else set()
    return pa.schema(
        [
            field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in encoded else field
            for field in job.schema
        ]
    )


def _children(job: RoundJob, bucket: Bucket, rows: int) -> list[Bucket]:
    """Return the bucket, or as many as it takes to bring each one's rows down to the target."""
    splits = _splits(job, bucket, rows)
    depth = bucket.depth + splits
    return [Bucket(depth=depth, bits=(bucket.bits << splits) + number) for number in range(1 << splits)]


def _splits(job: RoundJob, bucket: Bucket, rows: int) -> int:
    """Return how often a bucket is cut in half when so many rows are rewritten."""
    splits = 0
    while job.primary_keys and rows >> splits > 2 * job.bucket_rows and bucket.depth + splits < MAX_DEPTH:
        splits += 1
    return splits


class CompactedWriter:
    """Writes the rows of a bucket to new files of bounded size, each with its index."""

    def __init__(self, job: RoundJob) -> None:
        self._job = job
        self._max_rows = job.settings.records_per_compacted_file
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._rows = 0
        self._hashes: list[Hashes] = []
        self._name = ""
        self._file: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self._files: list[CompactedFile] = []
        self._unclosed: list[IO[bytes]] = []

    def write(self, table: pa.Table) -> None:
        """Add rows; they are written a row group at a time."""
        while table.num_rows:
            room = min(ROW_GROUP_ROWS, self._max_rows - self._rows) - self._waiting_rows
            part = table.slice(0, room)
            table = table.slice(part.num_rows)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            if part.num_rows == room:
                self._flush()

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        job = self._job
        group = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._waiting_rows = [], 0
        if self._writer is None or self._file is None:
            self._name = f"{job.folder}/{new_round_name(job.began)}"
            self._file = open_objects(job.root).open_writer(f"{self._name}.parquet")
            self._writer = open_writer(self._file, group, job.schema)
        for part in _with_short_dictionaries(group, job.row_group_rows):
            self._writer.write_table(part, row_group_size=job.row_group_rows)
        self._rows += group.num_rows
        if job.primary_keys:
            self._hashes.append(hash_keys(group, job.primary_keys))
        if self._file.tell() >= job.settings.target_file_bytes or self._rows >= self._max_rows:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._writer is None or self._file is None:
            return
        self._writer.close()
        size = self._file.tell()
        self.close_later(self._file)
        file = CompactedFile(uri=f"{self._name}.parquet", record_count=self._rows, content_length=size)
        if self._hashes:
            file.index_uri = f"{self._name}.pki"
            file.index_length = write_index(
                self._job.root, file.index_uri, np.concatenate(self._hashes), self.close_later
            )
        self._files.append(file)
        self._writer = self._file = None
        self._rows, self._hashes = 0, []

    def close_later(self, writer: IO[bytes]) -> None:
        """Close a writer together with others: with those of this one's files, when it is closed at the latest."""
        self._unclosed.append(writer)
        if len(self._unclosed) >= _CLOSED_TOGETHER:
            self._close_all()

    def _close_all(self) -> None:
        close_together(self._job.root, self._unclosed)
        self._unclosed = []

    def close(self) -> list[CompactedFile]:
        """Write the remaining rows and return all files."""
        self._flush()
        self._finish_file()
        self._close_all()
        return self._files


def _with_short_dictionaries(table: pa.Table, row_group_rows: int) -> Iterator[pa.Table]:
    """Yield a table as it is, or in parts for one row group each, where a dictionary has values of many row groups.

    Every row group is written with the whole dictionary of its column, however few of its values are in it.
    """
    long = [
        place
        for place, column in enumerate(table.columns)
        if pa.types.is_dictionary(column.type)
        and max((len(chunk.dictionary) for chunk in column.chunks), default=0) * 4 > min(row_group_rows, table.num_rows)
    ]
    if not long or table.num_rows <= row_group_rows:
        yield table
        return
    for start in range(0, table.num_rows, row_group_rows):
        part = table.slice(start, row_group_rows)
        for place in long:
            own = part.column(place).cast(part.field(place).type.value_type).dictionary_encode()
            part = part.set_column(place, part.field(place), own)
        yield part
