"""Two ways to absorb the changes of a bucket: beside its files (minor), or by rewriting it (major)."""

from array import array
from collections.abc import Iterator, Sequence
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
from siltstone.rows.files import StoredFile, check_present, write_vector
from siltstone.rows.fold import write_tombstones
from siltstone.rows.index import write_index
from siltstone.rows.job import Action, BucketResult, RoundJob
from siltstone.storage.parquet import ROW_GROUP_ROWS, open_writer

_CLOSED_TOGETHER = 8


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
    """Return how a bucket absorbs its changes, and why."""
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
        return "major", f"{new_rows} new rows come to {stored}, more than {settings.max_delta_fraction:.0%}"
    if len(bucket.files) + 1 > settings.max_files:
        return "major", f"it would have {len(bucket.files) + 1} files, more than {settings.max_files}"
    return "minor", f"{new_rows} new and {dead_rows} dead rows are few beside {stored}"


def absorb(job: RoundJob, number: int, stored: Sequence[StoredFile], change: Change) -> BucketResult:
    """Write what a bucket's changes need and return its new shape. Raises: CorruptionError where rows do not add up."""
    bucket = job.buckets[number]
    action, reason = choose(job, bucket, change.rows.num_rows, change.dead_count)
    if action == "major":
        buckets, written = _rewrite(job, bucket, stored, change)
    elif action == "minor":
        buckets, written = _add(job, bucket, stored, change)
    else:
        buckets, written = [Bucket(**bucket)], []
    for child in buckets:
        if change.tombstones is not None:
            child.tombstones = write_tombstones(job, child, change.tombstones)
        if change.marks is not None:
            child.due_at, child.held_at = change.marks if child.files else (None, None)
    accounting = change.accounting
    accounting.live_rows = sum(bucket.live_count for bucket in buckets)
    if not accounting.is_balanced:
        raise CorruptionError(
            f"bucket {bucket.name}: rows do not add up, so nothing is committed: {dict(accounting)}; keep the data and "
            "report this"
        )
    return BucketResult(
        number,
        action,
        reason,
        tuple(buckets),
        accounting,
        written_files=len(written),
        written_bytes=sum(file.content_length for file in written),
        written_rows=sum(file.record_count for file in written),
    )


def _add(
    job: RoundJob, bucket: Bucket, stored: Sequence[StoredFile], change: Change
) -> tuple[list[Bucket], list[CompactedFile]]:
    # What is carried over by reference is not read, so that nobody else would notice what is missing.
    check_present(job.root, stored)
    files = []
    writer = CompactedWriter(job)
    for file, dead in zip(stored, change.dead, strict=True):
        if not len(dead):
            files.append(file.file)
            continue
        all_dead = file.dead | BitMap64(array("Q", dead.tobytes()))
        if len(all_dead) < file.file.record_count:
            vector = write_vector(job.root, job.folder, all_dead, job.began, writer.close_later)
            files.append(CompactedFile(**{**file.file, "deletion_vector": vector}))
    writer.write(change.rows)
    written = writer.close()
    return [Bucket(**{**bucket, "files": [*files, *written]})], written


def _rewrite(
    job: RoundJob, bucket: Bucket, stored: Sequence[StoredFile], change: Change
) -> tuple[list[Bucket], list[CompactedFile]]:
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
    write(align(change.rows, schema))
    for child, writer in zip(children, writers, strict=True):
        child.files = writer.close()
    return children, [file for child in children for file in child.files]


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
    splits = 0
    while job.primary_keys and rows >> splits > 2 * job.bucket_rows and bucket.depth + splits < MAX_DEPTH:
        splits += 1
    depth = bucket.depth + splits
    return [Bucket(depth=depth, bits=(bucket.bits << splits) + number) for number in range(1 << splits)]


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
