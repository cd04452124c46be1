"""Three ways to absorb the changes of a bucket: beside its files (minor), in place of its small ones (tiered), or of all (major).

Neighbours that are merged together, and keep files of theirs or are small, share one data file with one index, and one object
with their deletion vectors; those that leave tombstones share one file of these. In a data file, a bucket's rows that were
there before, which are carried over, come before those that the deltas bring.
"""

import itertools
from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from siltstone.errors import CorruptionError
from siltstone.log.horizon import new_round_name
from siltstone.model.buckets import Bucket, BucketLine, CompactedFile
from siltstone.model.properties import ROWS_KIND
from siltstone.model.rounds import Accounting
from siltstone.objects import close_together, open_objects
from siltstone.rows.choice import Choice, choose, split_count
from siltstone.rows.columns import Hashes, Integers, align, hash_keys
from siltstone.rows.deaths import died_rows
from siltstone.rows.files import StoredFile, check_present, write_vectors
from siltstone.rows.fold import split_tombstones, write_tombstones
from siltstone.rows.index import write_index
from siltstone.rows.job import BucketResult, Died, RoundJob, Stretch
from siltstone.rows.slices import StretchFiles, slices_of
from siltstone.storage.parquet import ROW_GROUP_ROWS, open_writer

_CLOSED_TOGETHER = 8
# A row group has no more than about so many bytes before it is encoded, unless a single row has: it is in memory as a whole.
_GROUP_BYTES = 32 << 20


class Marks(NamedTuple):
    """When a bucket has something to do even if no delta comes: see `Bucket`."""

    due_at: int | None
    held_at: int | None


class Rows(NamedTuple):
    """Rows of a table from one on: a round has some for each bucket, and to cut a table takes longer than to merge them."""

    table: pa.Table
    first_row: int
    row_count: int

    @classmethod
    def all_of(cls, table: pa.Table) -> "Rows":
        """Return all rows of a table."""
        return cls(table, 0, table.num_rows)

    def cut(self) -> pa.Table:
        """Return them as a table."""
        return self.table.slice(self.first_row, self.row_count)


def _cut_together(several: Sequence[Rows]) -> Iterator[pa.Table]:
    """Yield all rows in order, those that are neighbours in a table as one."""
    table, start, stop = several[0].table, several[0].first_row, several[0].first_row
    for own, first_row, row_count in several:
        if own is not table or first_row != stop:
            yield table.slice(start, stop - start)
            table, start = own, first_row
        stop = first_row + row_count
    yield table.slice(start, stop - start)


@dataclass(frozen=True)
class Change:
    """What the deltas do to a bucket: rows that die, by file; rows that come; tombstones, where there are any.

    Where `marks` are given, they say when the bucket will have something to do; else it keeps its own.
    """

    dead: list[Integers]
    rows: Rows
    accounting: Accounting
    tombstones: pa.Table | None = None
    marks: Marks | None = None

    @property
    def dead_count(self) -> int:
        """How many compacted rows die."""
        return sum(self.dead_counts)

    @property
    def dead_counts(self) -> list[int]:
        """How many compacted rows die in each file."""
        return list(map(len, self.dead))


def absorb(job: RoundJob, stretch: Stretch, files: StretchFiles, changes: Sequence[Change]) -> list[BucketResult]:
    """Write what the changes of neighbouring buckets need, and return the new shape of each.

    Raises: CorruptionError where rows do not add up, or files that are carried over are missing.
    """
    chosen = [
        choose(job, bucket, change.rows.row_count, change.dead_counts)
        for bucket, change in zip(stretch.buckets, changes, strict=True)
    ]
    merged = _merged(job, stretch, chosen, changes)
    added = dict(zip(merged, _add(job, stretch, files, changes, merged), strict=True))
    outcomes: list[_Outcome] = []
    for place, (bucket, choice) in enumerate(zip(stretch.buckets, chosen, strict=True)):
        outcome = added.get(place)
        if outcome is None and choice.action == "major":
            outcome = _rewrite(job, bucket, files.of(place), changes[place])
        outcomes.append(outcome or _Outcome([bucket.replaced()]))
    _finish(job, outcomes, changes)
    return [
        _result(job, number, bucket, choice, outcome, change)
        for number, bucket, choice, outcome, change in zip(
            stretch.numbers, stretch.buckets, chosen, outcomes, changes, strict=True
        )
    ]


def _merged(
    job: RoundJob, stretch: Stretch, chosen: Sequence[Choice], changes: Sequence[Change]
) -> dict[int, Sequence[int]]:
    """Return the places of the buckets whose rows go to the file that they share, each with those of files that are merged.

    A small bucket that is rewritten is one of which all files are merged, unless it has no neighbours or splits.
    """
    merged: dict[int, Sequence[int]] = {}
    tables = {id(change.rows.table): change.rows.table for change in changes}
    row_bytes = {each: table.nbytes / max(1, table.num_rows) for each, table in tables.items()}
    for place, (bucket, choice, change) in enumerate(zip(stretch.buckets, chosen, changes, strict=True)):
        if choice.action in ("minor", "tiered"):
            merged[place] = choice.merged
        elif choice.action == "major" and len(chosen) > 1:
            rows = _rows_after(bucket, change)
            size = bucket.content_length + change.rows.row_count * row_bytes[id(change.rows.table)]
            is_small = rows <= job.settings.shared_rows and size <= job.settings.shared_bytes
            if is_small and not split_count(job, bucket, rows):
                merged[place] = range(len(bucket.files))
    return merged


def _rows_after(bucket: Bucket, change: Change) -> int:
    return bucket.live_count - change.dead_count + change.rows.row_count


class _Outcome(NamedTuple):
    """What a bucket became, which of its files were written for that, and the places of those that it no longer has."""

    buckets: list[Bucket]
    written: Sequence[CompactedFile] = ()
    dropped: Sequence[int] = ()


def _died(job: RoundJob, bucket: Bucket, outcome: _Outcome, change: Change) -> tuple[Died, ...]:
    """Return which rows died of files that the bucket no longer has."""
    if job.kind != ROWS_KIND:
        return ()
    dropped = [(bucket.files[place], change.dead[place]) for place in outcome.dropped]
    return tuple(died_rows(file.uri, file.first_row, dead) for file, dead in dropped if len(dead))


def _result(
    job: RoundJob, number: int, bucket: Bucket, choice: Choice, outcome: _Outcome, change: Change
) -> BucketResult:
    """Return the result of a bucket. Raises: CorruptionError where rows do not add up."""
    accounting, lines = change.accounting, tuple(map(BucketLine.of, outcome.buckets))
    accounting.live_rows = sum(line.totals.live_count for line in lines)
    if not accounting.is_balanced:
        raise CorruptionError(
            f"bucket {bucket.name}: rows do not add up, so nothing is committed: {dict(accounting)}; keep the data and "
            "report this"
        )
    return BucketResult(
        number,
        choice.action,
        choice.reason,
        lines,
        accounting,
        written_files=len(outcome.written),
        written_bytes=sum(file["content_length"] for file in outcome.written),
        written_rows=sum(file["record_count"] for file in outcome.written),
        died=_died(job, bucket, outcome, change),
    )


def _finish(job: RoundJob, outcomes: Sequence[_Outcome], changes: Sequence[Change]) -> None:
    """Give buckets the tombstones and times that their changes say."""
    children: list[Bucket] = []
    tombstones: list[pa.Table] = []
    for (buckets, *_), change in zip(outcomes, changes, strict=True):
        if change.tombstones is not None:
            children += buckets
            tombstones += split_tombstones(job, buckets, change.tombstones)
        if change.marks is not None:
            for child in buckets:
                child.due_at, child.held_at = change.marks if child.files else (None, None)
    if children:
        write_tombstones(job, children, tombstones)


def _add(
    job: RoundJob,
    stretch: Stretch,
    files: StretchFiles,
    changes: Sequence[Change],
    merged: Mapping[int, Sequence[int]],
) -> list[_Outcome]:
    """Add the new rows of buckets, and those of files that are `merged`, by the buckets' places, beside their other files.

    All go to one data file, and all deletion vectors to one object.
    """
    if not merged:
        return []
    kept = {
        (place, position)
        for place, positions in merged.items()
        for position in range(len(stretch.buckets[place].files))
        if position not in positions
    }
    by_reference = [file for file, owners in zip(files.whole, files.owners, strict=True) if not kept.isdisjoint(owners)]
    # What is carried over by reference is not read, so that nobody else would notice what is missing.
    check_present(job.root, by_reference)
    writer = CompactedWriter(job)
    marked = _with_vectors(job, files, changes, kept, writer.close_later)
    carried = dict.fromkeys(merged, 0)
    for carries, places in itertools.groupby(merged, key=lambda place: bool(merged[place])):
        if not carries:
            writer.write_all([*_cut_together([changes[place].rows for place in places])])
            continue
        for place in places:
            change, stored = changes[place], files.of(place)
            carried[place] = sum(
                _carry(job, writer, stored[position], change.dead[position]) for position in merged[place]
            )
            writer.write(align(change.rows.cut(), job.schema))
    counts = [carried[place] + changes[place].rows.row_count for place in merged]
    outcomes = []
    for place, written in zip(merged, slices_of(writer.close(), counts, list(carried.values())), strict=True):
        bucket = stretch.buckets[place]
        others = [
            marked.get((place, position), file) if (place, position) in kept else None
            for position, file in enumerate(bucket.files)
        ]
        dropped = [position for position, file in enumerate(others) if file is None]
        outcomes.append(_Outcome([bucket.replaced(files=[*filter(None, others), *written])], written, dropped))
    return outcomes


def _carry(job: RoundJob, writer: "CompactedWriter", stored: StoredFile, dead: Integers) -> int:
    """Write the rows of a file that stay alive once more, and return how many there are."""
    count = 0
    for table in stored.live_rows(job.schema, dead):
        writer.write(table)
        count += table.num_rows
    if not stored.file.is_shared:
        stored.release()
    return count


def _with_vectors(
    job: RoundJob,
    files: StretchFiles,
    changes: Sequence[Change],
    kept: Container[tuple[int, int]],
    close: Callable[[IO[bytes]], object],
) -> dict[tuple[int, int], CompactedFile | None]:
    """Return those files that are kept, by the places of bucket and file, in which rows die, with new deletion vectors.

    They are None where no row is left.
    """
    changed: dict[tuple[int, int], CompactedFile | None] = {}
    dead_rows: list[BitMap64] = []
    marked: list[tuple[tuple[int, int], CompactedFile]] = []
    for file, owners in zip(files.whole, files.owners, strict=True):
        for each, owner in zip(file.slices, owners, strict=True):
            dead = changes[owner[0]].dead[owner[1]]
            if not len(dead) or owner not in kept:
                continue
            all_dead = file.dead_of(each) | BitMap64(array("Q", dead.tobytes()))
            changed[owner] = None
            if len(all_dead) < each["record_count"]:
                marked.append((owner, each))
                dead_rows.append(all_dead)
    vectors = write_vectors(job.root, job.folder, dead_rows, job.began, close)
    for (owner, file_), vector in zip(marked, vectors, strict=True):
        changed[owner] = file_.replaced(deletion_vector=vector)
    return changed


def _rewrite(job: RoundJob, bucket: Bucket, stored: Sequence[StoredFile], change: Change) -> _Outcome:
    children = _children(job, bucket, _rows_after(bucket, change))
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
    carried = [writer.row_count for writer in writers]
    write(align(change.rows.cut(), schema))
    for child, writer, count in zip(children, writers, carried, strict=True):
        (child.files,) = slices_of(writer.close(), [writer.row_count], [count])
    return _Outcome(children, [file for child in children for file in child.files], range(len(stored)))


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
    splits = split_count(job, bucket, rows)
    depth = bucket.depth + splits
    return [Bucket(depth=depth, bits=(bucket.bits << splits) + number) for number in range(1 << splits)]


class CompactedWriter:
    """Writes rows to new files of bounded size, each with its index; `row_count` has how many it was given."""

    def __init__(self, job: RoundJob) -> None:
        self._job = job
        self.row_count = 0
        self._max_rows = job.settings.records_per_compacted_file
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0.0
        self._rows = 0
        self._hashes: list[Hashes] = []
        self._name = ""
        self._file: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self._files: list[CompactedFile] = []
        self._unclosed: list[IO[bytes]] = []

    def write_all(self, tables: Sequence[pa.Table]) -> None:
        """Add the rows of several tables, in order."""
        together = pa.concat_tables(tables)
        # Measuring and cutting a table costs by the call, so that small ones are copied into one.
        is_small = together.get_total_buffer_size() <= _GROUP_BYTES
        for table in [together.combine_chunks()] if is_small else tables:
            self.write(table)

    def write(self, table: pa.Table) -> None:
        """Add rows; they are written a row group at a time."""
        self.row_count += table.num_rows
        row_bytes = max(1.0, table.nbytes / max(1, table.num_rows))
        while table.num_rows:
            room = min(ROW_GROUP_ROWS, self._max_rows - self._rows) - self._waiting_rows
            room = min(room, max(1, int((_GROUP_BYTES - self._waiting_bytes) / row_bytes)))
            part = table.slice(0, room)
            table = table.slice(part.num_rows)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += part.num_rows * row_bytes
            if part.num_rows == room:
                self._flush()

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        job = self._job
        group = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0.0
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
