"""The first step of a task: read deltas, mark row-level deletes, and split the rows by the task that merges their bucket."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import CorruptionError
from siltstone.model.buckets import HASH_BITS, Buckets
from siltstone.model.entities import REMOVALS
from siltstone.model.properties import ROWS_KIND
from siltstone.rows.columns import Flags, Hashes, Integers, align, equal_ids, hash_keys, hash_sequence, sort_ranks
from siltstone.rows.files import read_vector
from siltstone.rows.job import NOTHING_COMBINED, Combined, Part, ReadTask, RoundJob
from siltstone.storage.parquet import DAMAGE_ERRORS, open_parquet

REMOVAL = "_siltstone_removal"
_METADATA_KEY = b"siltstone.part"
_MEMORY_BYTES = 256 << 20
# Rows are read, and sent, at most so many bytes at a time, where they are not single rows.
_READ_BYTES = 128 << 20
_PART_BYTES = 16 << 20
_LOCAL_TASK_BYTES = 16 << 20
# Rows of a key that another row of the same delta replaces are left out where they are at least this share.
_LEAST_DUPLICATES = 0.1


@dataclass(frozen=True)
class Tasks:
    """How buckets, given by their rising numbers, are shared among tasks: neighbours together, and as evenly as can be."""

    numbers: Sequence[int]
    count: int

    def numbers_of(self, task: int) -> Sequence[int]:
        """Return the buckets of a task."""
        size = len(self.numbers)
        return self.numbers[size * task // self.count : size * (task + 1) // self.count]

    def of(self, buckets: Integers) -> Integers:
        """Return the task of each bucket, -1 where it has none."""
        size = len(self.numbers)
        if isinstance(self.numbers, range):
            places = buckets - self.numbers.start
            is_there = (places >= 0) & (places < size)
        else:
            places = np.searchsorted(np.asarray(self.numbers, np.int64), buckets)
            is_there = np.isin(buckets, np.asarray(self.numbers, np.int64))
        return np.where(is_there, ((places + 1) * self.count - 1) // max(size, 1), -1)


def local_tasks(job: RoundJob, numbers: Sequence[int] | None = None) -> Tasks:
    """Return tasks, by default for all buckets, that are small enough for one process to run one after another."""
    numbers = range(len(job.buckets)) if numbers is None else numbers
    return Tasks(numbers, max(1, min(len(numbers), job.input_bytes // _LOCAL_TASK_BYTES)))


def gather_here(
    job: RoundJob, numbers: Sequence[int] | None = None, progress: Callable[[int], None] = lambda files: None
) -> Iterator[tuple[int, list[Part]]]:
    """Read all deltas of a job in this process, and yield each bucket, by default all, with its parts in stream order.

    `progress` is told how many files are read, before each.
    """

    def reads() -> Iterator[ReadTask]:
        for done, read in enumerate(job.reads):
            progress(done)
            yield read

    tasks = local_tasks(job, numbers)
    parts = GatheredParts(read_parts(job, reads(), tasks))
    for task in range(tasks.count):
        by_bucket = parts_by_bucket(tasks.numbers_of(task), parts.take(task))
        for number in tasks.numbers_of(task):
            yield number, by_bucket.pop(number, [])


def read_parts(job: RoundJob, reads: Iterable[ReadTask], tasks: Tasks) -> Iterator[tuple[int, bytes]]:
    """Yield (task, part as bytes) for the files of some deltas: rows of one delta for the buckets of one task."""
    starts = first_hashes(job.buckets)
    for read in reads:
        for first_row, table in _row_groups(job, read):
            yield from _split(job, read, table, first_row, starts, tasks)


def first_hashes(buckets: Buckets) -> Hashes:
    """Return the smallest hash of each bucket."""
    starts = [np.zeros(0, np.uint64)]
    for start, depth, count in buckets.runs():
        # A single bucket has all hashes; they cannot be shifted by that many bits.
        steps = np.arange(count, dtype=np.uint64) << np.uint64(min(HASH_BITS - depth, HASH_BITS - 1))
        starts.append(steps + np.uint64(start))
    return np.concatenate(starts)


def _row_groups(job: RoundJob, read: ReadTask) -> Iterator[tuple[int, pa.Table]]:
    dead = None if read.deletion_vector is None else read_vector(job.root, read.deletion_vector)
    with open_parquet(job.root, read.uri) as file:
        if file.metadata.num_rows != read.record_count:
            raise CorruptionError(
                f"{job.root}/{read.uri}: has {file.metadata.num_rows} rows instead of {read.record_count}; restore it"
            )
        columns = _columns_to_read(job, read, file.schema_arrow.names)
        first_row = read.first_row
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if group % read.of != read.share:
                first_row += size
                continue
            for table in _row_group(job, read, file, group, columns):
                size = table.num_rows
                if dead is not None:
                    first = first_row - read.first_row
                    live = np.fromiter((row not in dead for row in range(first, first + size)), np.bool_, size)
                    table = table.filter(pa.array(live))
                yield first_row, _typed(job, read, table)
                first_row += size


def _row_group(
    job: RoundJob, read: ReadTask, file: pq.ParquetFile, group: int, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows of a row group, in several tables where it is large. Raises: CorruptionError."""
    about = file.metadata.row_group(group)
    try:
        if about.total_byte_size <= _READ_BYTES:
            yield file.read_row_group(group, columns=list(columns))
            return
        rows = max(1, about.num_rows * _READ_BYTES // about.total_byte_size)
        for batch in file.iter_batches(rows, row_groups=[group], columns=list(columns)):
            yield pa.Table.from_batches([batch])
    except DAMAGE_ERRORS as error:
        raise CorruptionError(f"{job.root}/{read.uri}: the data file is damaged ({error}); restore it") from error


def _columns_to_read(job: RoundJob, read: ReadTask, stored: Sequence[str]) -> list[str]:
    """Return those of a file's columns that the job knows, by their names in the file, and the operation column."""
    names = {name: stored_name for stored_name, name in read.names}
    columns = {names.get(name, name) for name in job.schema.names} | {read.op_column}
    present = [name for name in stored if name in columns]
    # Without any column, rows would not be counted.
    return present or list(stored[:1])


def _typed(job: RoundJob, read: ReadTask, table: pa.Table) -> pa.Table:
    """Bring the columns that the table has to the table's types; before-images go, deletes are marked."""
    schema = job.schema
    names = {name: stored for stored, name in read.names}
    # Columns that were dropped since are still in the files.
    columns = [name for name in read.columns or table.column_names if name in schema.names]
    present = [name for name in columns if names.get(name, name) in table.column_names]
    renamed = table.select([names.get(name, name) for name in present]).rename_columns(present)
    typed = align(renamed, pa.schema([schema.field(name) for name in columns]))
    if read.is_delete:
        return typed
    if read.op_column is None:
        return typed.append_column(REMOVAL, pa.array(np.full(table.num_rows, read.is_tombstones)))
    operations = table.column(read.op_column)
    typed = typed.append_column(REMOVAL, pc.is_in(operations, pa.array(REMOVALS)))
    images = pc.equal(operations, "-U")
    return typed.filter(pc.invert(images)) if pc.any(images).as_py() else typed


class _Run(NamedTuple):
    """Rows of one bucket within a part, and those that were left out since others of their key follow."""

    bucket: int
    rows: int
    combined: Combined = NOTHING_COMBINED


def _split(
    job: RoundJob, read: ReadTask, table: pa.Table, first_row: int, starts: Hashes, tasks: Tasks
) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a row group as parts, sorted by bucket, in stream order within each."""
    if not table.num_rows or not tasks.numbers:
        return
    by_key = bool(job.primary_keys) and (
        not read.is_delete or (set(read.delete_columns) == set(job.primary_keys) and read.floor is None)
    )
    if read.is_delete and not by_key:
        # Any bucket may have such rows: all tasks get the delete, and apply it to each of their buckets.
        parts = list(_encoded_parts(read, table, first_row, None))
        yield from ((task, part) for task in range(tasks.count) for part in parts)
        return
    if by_key:
        hashes = hash_keys(table, job.primary_keys)
    else:
        hashes = hash_sequence(np.arange(first_row, first_row + table.num_rows))
    buckets = np.searchsorted(starts, hashes, "right") - 1
    kept = _combined(job, read, table, hashes)
    order = np.argsort(buckets, kind="stable") if len(starts) > 1 else np.arange(table.num_rows)
    order = order[kept[order]]
    removed = np.zeros(table.num_rows, np.bool_) if read.is_delete else np.asarray(table.column(REMOVAL))
    upserts = np.bincount(buckets[~kept & ~removed], minlength=len(starts) if not kept.all() else 0)
    removals = np.bincount(buckets[~kept & removed], minlength=len(upserts))
    present, firsts = np.unique(buckets[order], return_index=True)
    runs = [
        _Run(bucket, rows, Combined(int(upserts[bucket]), int(removals[bucket])) if len(upserts) else NOTHING_COMBINED)
        for bucket, rows in zip(present.tolist(), np.diff(firsts, append=len(order)).tolist(), strict=True)
    ]
    owners = tasks.of(present)
    ends = np.append(firsts, len(order))
    for task in np.unique(owners[owners >= 0]).tolist():
        first, last = np.flatnonzero(owners == task)[[0, -1]].tolist()
        rows = order[ends[first] : ends[last + 1]]
        is_whole = len(rows) == table.num_rows and len(starts) == 1
        own = table if is_whole else table.take(pa.array(rows))
        yield from ((task, part) for part in _encoded_parts(read, own, first_row, runs[first : last + 1]))


def _combined(job: RoundJob, read: ReadTask, table: pa.Table, hashes: Hashes) -> Flags:
    """Flag the rows of one delta that count: where only the newest row of a key does, all others may be left out.

    So a key that changes often is not sent, and gathered, once for each change.
    """
    all_rows = np.ones(table.num_rows, np.bool_)
    needed = {*job.primary_keys, *job.sort_keys}
    is_newest = job.keeps_one_row and job.merge_engine == "deduplicate" and job.kind == ROWS_KIND
    if read.is_delete or not is_newest or not needed <= set(table.column_names):
        return all_rows
    rising = np.sort(hashes)
    if np.count_nonzero(rising[1:] == rising[:-1]) < _LEAST_DUPLICATES * table.num_rows:
        return all_rows
    (ids,), count = equal_ids([table], job.primary_keys)
    order = np.arange(table.num_rows)
    if job.sort_keys:
        (ranks,) = sort_ranks([table], job.sort_keys)
        order = np.argsort(ranks, kind="stable")
    newest = np.zeros(count, np.int64)
    # Of several assignments to one place, the last one stays.
    newest[ids[order]] = order
    flags = np.zeros(table.num_rows, np.bool_)
    flags[newest] = True
    return flags


def _encoded_parts(read: ReadTask, table: pa.Table, first_row: int, runs: Sequence[_Run] | None) -> Iterator[bytes]:
    """Yield rows as parts of bounded size. Deletes that any bucket may have rows for have no runs."""
    if table.nbytes <= _PART_BYTES or table.num_rows < 2:
        yield _encode_part(read, first_row, table, runs)
        return
    half = table.num_rows // 2
    before, after = (None, None) if runs is None else _cut(runs, half)
    yield from _encoded_parts(read, table.slice(0, half), first_row, before)
    yield from _encoded_parts(read, table.slice(half), first_row + half, after)


def _cut(runs: Sequence[_Run], rows: int) -> tuple[list[_Run], list[_Run]]:
    """Return the runs of the first rows, and those of the others."""
    before: list[_Run] = []
    after: list[_Run] = []
    for run in runs:
        own = min(run.rows, rows)
        if own:
            before.append(run._replace(rows=own))
        if own < run.rows:
            after.append(run._replace(rows=run.rows - own, combined=NOTHING_COMBINED if own else run.combined))
        rows -= own
    return before, after


def _encode_part(read: ReadTask, first_row: int, table: pa.Table, runs: Sequence[_Run] | None) -> bytes:
    about = [read.run, first_row, read.is_delete, list(read.delete_columns), read.floor, runs]
    schema = table.schema.with_metadata({_METADATA_KEY: json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def parts_by_bucket(numbers: Sequence[int], data: Iterable[bytes]) -> dict[int, list[Part]]:
    """Return the parts of a task, which travelled as bytes, for each of its buckets that has any, in stream order."""
    by_bucket: dict[int, list[Part]] = defaultdict(list)
    for part, runs in map(_decode_part, data):
        if runs is None:
            for number in numbers:
                by_bucket[number].append(part)
            continue
        start = 0
        for bucket, rows, combined in runs:
            own = replace(part, table=part.table.slice(start, rows), combined=Combined(*combined))
            by_bucket[bucket].append(own)
            start += rows
    for parts in by_bucket.values():
        parts.sort(key=lambda part: (part.run, part.first_row))
    return by_bucket


def _decode_part(data: bytes) -> tuple[Part, list[_Run] | None]:
    table = pa.ipc.open_stream(data).read_all()
    run, first_row, is_delete, delete_columns, floor, runs = json.loads(table.schema.metadata[_METADATA_KEY])
    columns = tuple(name for name in table.column_names if name != REMOVAL)
    rows = table.replace_schema_metadata(None)
    return Part(run, first_row, is_delete, tuple(delete_columns), columns, rows, floor=floor), runs


class GatheredParts:
    """Parts by task, each taken once; what they need of memory is bounded, but for one task's."""

    def __init__(self, parts: Iterable[tuple[int, bytes]] = (), *, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes)  # noqa: SIM115 - it goes when nobody holds it
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._size = 0
        for task, part in parts:
            self.add(task, part)

    def add(self, task: int, part: bytes) -> None:
        """Add a part."""
        self._file.seek(self._size)
        self._file.write(part)
        self._spans.setdefault(task, []).append((self._size, len(part)))
        self._size += len(part)

    def take(self, task: int) -> list[bytes]:
        """Return the parts of a task, in the order they came, and forget them."""
        parts = []
        for start, length in self._spans.pop(task, []):
            self._file.seek(start)
            parts.append(self._file.read(length))
        return parts
