"""The first step of a task: read deltas, mark row-level deletes, and split the rows by the task that merges their bucket."""

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import CorruptionError
from siltstone.model.buckets import HASH_BITS, Bucket, Buckets
from siltstone.model.entities import IS_DELETED, REMOVALS
from siltstone.model.properties import ROWS_KIND
from siltstone.rows.columns import (
    Flags,
    Hashes,
    Integers,
    align,
    equal_ids,
    hash_keys,
    hash_sequence,
    rising_order,
    sort_ranks,
)
from siltstone.rows.files import StoredFile
from siltstone.rows.job import NOTHING_COMBINED, Combined, Part, ReadTask, RoundJob, Stretch
from siltstone.storage.parquet import DAMAGE_ERRORS, open_parquet

REMOVAL = "_siltstone_removal"
_METADATA_KEY = b"siltstone.part"
_BUCKETS_KEY = b"siltstone.buckets"
_COMBINED_KEY = b"siltstone.combined"
_MEMORY_BYTES = 256 << 20
# Rows are read, and sent, at most so many bytes at a time, where they are not single rows.
_READ_BYTES = 128 << 20
_PART_BYTES = 16 << 20
# Buckets are merged together while their changed rows have about so many bytes.
_STRETCH_BYTES = 32 << 20
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
    job: RoundJob,
    numbers: Sequence[int] | None = None,
    progress: Callable[[int], None] = lambda files: None,
    *,
    every: bool = True,
) -> Iterator[Stretch]:
    """Read all deltas of a job in this process, and yield the buckets, by default all, in stretches with their parts.

    Without `every`, these are the buckets that have parts, and those that the job visits anyway. `progress` is told how many files are
    read, before each.
    """

    def reads() -> Iterator[ReadTask]:
        for done, read in enumerate(job.reads):
            progress(done)
            yield read

    tasks = local_tasks(job, numbers)
    parts = GatheredParts(read_parts(job, reads(), tasks))
    visits = job.settings.full or bool(job.due_numbers())
    for task in range(tasks.count):
        yield from stretches(job, tasks.numbers_of(task), parts.take(task), visits=visits, every=every)


def read_parts(job: RoundJob, reads: Iterable[ReadTask], tasks: Tasks) -> Iterator[tuple[int, bytes]]:
    """Yield (task, part as bytes) for the files of some deltas: rows of one delta for the buckets of one task."""
    number_of = bucket_numbers(job.buckets)
    for read in reads:
        for first_row, table in _row_groups(job, read):
            yield from _split(job, read, table, first_row, number_of, tasks)


def bucket_numbers(buckets: Buckets) -> Callable[[Hashes], Integers]:
    """Return what tells the numbers of the buckets that hashes belong to: the depth of its neighbours leads to each."""
    starts, depths, counts = zip(*buckets.runs(), strict=True)
    first_hashes, firsts = np.array(starts, np.uint64), np.cumsum([0, *counts[:-1]])
    # Less one: a single bucket has all hashes, and they cannot be shifted by 64 bits.
    shifts = np.uint64(HASH_BITS - 1) - np.array(depths, np.uint64)

    def numbers_of(hashes: Hashes) -> Integers:
        runs = np.searchsorted(first_hashes, hashes, "right") - 1 if len(starts) > 1 else 0
        places = (hashes - first_hashes[runs]) >> np.uint64(1) >> shifts[runs]
        return firsts[runs] + places.view(np.int64)

    return numbers_of


def _row_groups(job: RoundJob, read: ReadTask) -> Iterator[tuple[int, pa.Table]]:
    stored = StoredFile.together(job.root, read.slices) if read.slices else None
    live = stored.live_flags() if stored is not None and stored.has_dead else None
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
                if live is not None:
                    first = first_row - read.first_row
                    table = table.filter(pa.array(live[first : first + size]))
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
    if read.op_column is None and job.keeps_history and IS_DELETED in typed.column_names:
        # Not of a writer, but of what was compacted.
        return typed.append_column(REMOVAL, pc.fill_null(typed.column(IS_DELETED), False))
    if read.op_column is None:
        return typed.append_column(REMOVAL, pa.array(np.full(table.num_rows, read.is_tombstones)))
    operations = table.column(read.op_column)
    typed = typed.append_column(REMOVAL, pc.is_in(operations, pa.array(REMOVALS)))
    images = pc.equal(operations, "-U")
    return typed.filter(pc.invert(images)) if pc.any(images).as_py() else typed


def _split(
    job: RoundJob,
    read: ReadTask,
    table: pa.Table,
    first_row: int,
    number_of: Callable[[Hashes], Integers],
    tasks: Tasks,
) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a row group as parts, sorted by bucket, in stream order within each."""
    if not table.num_rows or not tasks.numbers:
        return
    by_key = job.goes_by_key(read)
    if read.is_delete and not by_key:
        # Any bucket may have such rows: all tasks get the delete, and apply it to each of their buckets.
        parts = list(_encoded_parts(read, _Rows(table, None), first_row))
        yield from ((task, part) for task in range(tasks.count) for part in parts)
        return
    if by_key:
        hashes = hash_keys(table, job.primary_keys)
    else:
        hashes = hash_sequence(np.arange(first_row, first_row + table.num_rows))
    buckets, is_single = number_of(hashes), len(job.buckets) == 1
    kept = _combined(job, read, table, hashes)
    order = np.arange(table.num_rows) if is_single else rising_order(buckets)
    order = order[kept[order]]
    removed = np.zeros(table.num_rows, np.bool_) if read.is_delete else np.asarray(table.column(REMOVAL))
    combined = _counted(buckets[~kept], removed[~kept])
    own_buckets = buckets[order]
    owners = tasks.of(own_buckets)
    cuts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    for start, stop in itertools.pairwise(cuts):
        if start == stop or owners[start] < 0:
            continue
        is_whole = is_single and stop - start == table.num_rows
        rows = table if is_whole else table.take(pa.array(order[start:stop]))
        part = _Rows(rows, own_buckets[start:stop], combined)
        yield from ((int(owners[start]), data) for data in _encoded_parts(read, part, first_row))


def _counted(buckets: Integers, removed: Flags) -> Combined:
    """Count rows that are left out, by bucket."""
    if not len(buckets):
        return NOTHING_COMBINED
    present, places = np.unique(buckets, return_inverse=True)
    removals = np.bincount(places[removed], minlength=len(present))
    return Combined(present, np.bincount(places, minlength=len(present)) - removals, removals)


def _combined(job: RoundJob, read: ReadTask, table: pa.Table, hashes: Hashes) -> Flags:
    """Flag the rows of one delta that count: where only one row of a key, or version, does, others may be left out.

    So a key that changes often is not sent, and gathered, once for each change.
    """
    all_rows = np.ones(table.num_rows, np.bool_)
    needed = {*job.primary_keys, *job.sort_keys}
    if read.is_delete or job.kind != ROWS_KIND or not needed <= set(table.column_names):
        return all_rows
    # After a removal, another row is the first.
    is_first = job.keeps_first and not pc.any(table.column(REMOVAL)).as_py()
    if not (is_first or job.keeps_newest or job.keeps_history):
        return all_rows
    rising = np.sort(hashes)
    if np.count_nonzero(rising[1:] == rising[:-1]) < _LEAST_DUPLICATES * table.num_rows:
        return all_rows
    (ids,), count = equal_ids([table], [*job.primary_keys, *(job.sort_keys if job.keeps_history else ())])
    order = np.arange(table.num_rows)
    if is_first:
        order = order[::-1]
    elif job.sort_keys and not job.keeps_history:
        (ranks,) = sort_ranks([table], job.sort_keys)
        order = np.argsort(ranks, kind="stable")
    chosen = np.zeros(count, np.int64)
    # Of several assignments to one place, the last one stays.
    chosen[ids[order]] = order
    flags = np.zeros(table.num_rows, np.bool_)
    flags[chosen] = True
    return flags


class _Rows(NamedTuple):
    """Rows that are sent together, the bucket of each, and how many were left out since others of their key follow."""

    table: pa.Table
    buckets: Integers | None
    combined: Combined = NOTHING_COMBINED

    def sliced(self, start: int, stop: int) -> "_Rows":
        """Return some of the rows. What was left out of a bucket goes with the bucket's first row."""
        if self.buckets is None:
            return self._replace(table=self.table.slice(start, stop - start))
        buckets = self.buckets[start:stop]
        combined = self.combined
        if len(combined.buckets):
            # A bucket that begins before has what was left out of it there.
            least = buckets[0] if not start or self.buckets[start - 1] != buckets[0] else buckets[0] + 1
            first, last = np.searchsorted(combined.buckets, [least, buckets[-1] + 1])
            combined = Combined(*(each[first:last] for each in combined))
        return _Rows(self.table.slice(start, stop - start), buckets, combined)


def _encoded_parts(read: ReadTask, rows: _Rows, first_row: int) -> Iterator[bytes]:
    """Yield rows as parts of bounded size."""
    count = rows.table.num_rows
    if rows.table.nbytes <= _PART_BYTES or count < 2:
        yield _encode_part(read, first_row, rows.sliced(0, count))
        return
    half = count // 2
    yield from _encoded_parts(read, rows.sliced(0, half), first_row)
    yield from _encoded_parts(read, rows.sliced(half, count), first_row + half)


def _encode_part(read: ReadTask, first_row: int, rows: _Rows) -> bytes:
    about = [read.run, first_row, read.is_delete, list(read.delete_columns), read.floor]
    metadata = {_METADATA_KEY: json.dumps(about).encode()}
    if rows.buckets is not None:
        firsts = np.flatnonzero(np.diff(rows.buckets, prepend=-1))
        counts = np.diff(firsts, append=len(rows.buckets))
        metadata[_BUCKETS_KEY] = np.stack([rows.buckets[firsts], counts]).astype("<i4").tobytes()
        metadata[_COMBINED_KEY] = np.stack(rows.combined).astype("<i4").tobytes()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, rows.table.schema.with_metadata(metadata), options=options) as writer:
        writer.write_table(rows.table.combine_chunks())
    return bytes(sink.getvalue())


def stretches(
    job: RoundJob, numbers: Sequence[int], data: Iterable[bytes], *, visits: bool = False, every: bool = False
) -> Iterator[Stretch]:
    """Yield the buckets of a task in stretches, given its parts, which travelled as bytes.

    These are the buckets that have parts; with `visits`, also those that the job reads anyway; or else `every` bucket.
    """
    in_order = sorted(map(_decode_part, data), key=lambda part: (part.run, part.first_row))
    parts = _joined(in_order) if len(numbers) > 1 else in_order
    sizes = _sizes(numbers, parts)
    is_anywhere = any(part.buckets is None for part in parts)
    chosen = range(len(numbers)) if every or visits or is_anywhere else np.flatnonzero(sizes[0]).tolist()
    taken: list[tuple[int, Bucket]] = []
    rows = weight = 0.0
    for place in chosen:
        bucket, has_parts = job.buckets[numbers[place]], is_anywhere or bool(sizes[0][place])
        is_visited = job.visits(bucket)
        if not (every or has_parts or is_visited):
            continue
        own_rows, own_bytes = sizes[0][place], sizes[1][place]
        if is_anywhere:
            own_rows += bucket.record_count
        is_full = (
            len(taken) >= job.stretch_buckets
            or rows + own_rows > job.settings.stretch_rows
            or weight + own_bytes > _STRETCH_BYTES
        )
        if taken and (is_full or is_visited):
            yield _stretch(taken, parts)
            taken, rows, weight = [], 0, 0
        taken.append((numbers[place], bucket))
        rows, weight = rows + own_rows, weight + own_bytes
        if is_visited:
            yield _stretch(taken, parts)
            taken, rows, weight = [], 0, 0
    if taken:
        yield _stretch(taken, parts)


def _joined(parts: list[Part]) -> list[Part]:
    """Return parts with small neighbours of the same kind as one: each stretch takes its own from all of them.

    They are taken out of the list, so that a few are in memory twice at a time, and not all.
    """
    joined: list[Part] = []
    parts.reverse()
    while parts:
        several = [parts.pop()]
        size = several[0].table.nbytes
        while parts and size + parts[-1].table.nbytes <= _PART_BYTES and _are_alike(several[0], parts[-1]):
            several.append(parts.pop())
            size += several[-1].table.nbytes
        joined.append(_join(several) if len(several) > 1 else several[0])
    return joined


def _are_alike(one: Part, other: Part) -> bool:
    """Return whether the rows of a part can follow those of another in one; of deletes, only those by key can."""
    kinds = [(part.is_delete, part.delete_columns, part.table.schema) for part in (one, other)]
    return kinds[0] == kinds[1] and all(part.buckets is not None and part.floor is None for part in (one, other))


def _join(parts: Sequence[Part]) -> Part:
    buckets = np.concatenate([part.buckets for part in parts if part.buckets is not None])
    order = rising_order(buckets)
    table = pa.concat_tables([part.table for part in parts]).combine_chunks().take(pa.array(order))
    counts = np.concatenate([np.stack(part.combined) for part in parts], axis=1)
    present, places = np.unique(counts[0], return_inverse=True)
    upserts, removals = np.zeros((2, len(present)), np.int64)
    np.add.at(upserts, places, counts[1])
    np.add.at(removals, places, counts[2])
    return replace(parts[0], table=table, buckets=buckets[order], combined=Combined(present, upserts, removals))


def _sizes(numbers: Sequence[int], parts: Sequence[Part]) -> tuple[Integers, Integers]:
    """Return how many rows, and about how many bytes, each bucket has in parts."""
    rows = np.zeros(len(numbers), np.int64)
    sizes = np.zeros(len(numbers), np.int64)
    for part in parts:
        if part.buckets is not None:
            own = np.bincount(np.searchsorted(numbers, part.buckets), minlength=len(numbers))
            rows += own
            sizes += own * (part.table.nbytes // max(1, part.table.num_rows))
    return rows, sizes


def _stretch(taken: Sequence[tuple[int, Bucket]], parts: Sequence[Part]) -> Stretch:
    numbers, buckets = zip(*taken, strict=True)
    own = [_part_of(part, numbers[0], numbers[-1]) for part in parts]
    return Stretch(numbers, buckets, [part for part in own if part.buckets is None or len(part.buckets)])


def _part_of(part: Part, first: int, last: int) -> Part:
    """Return what a part has for the buckets of some numbers."""
    if part.buckets is None:
        return part
    start, stop = np.searchsorted(part.buckets, [first, last + 1]).tolist()
    low, high = np.searchsorted(part.combined.buckets, [first, last + 1]).tolist()
    return replace(
        part,
        table=part.table.slice(start, stop - start),
        buckets=part.buckets[start:stop],
        combined=Combined(*(each[low:high] for each in part.combined)),
    )


def _decode_part(data: bytes) -> Part:
    table = pa.ipc.open_stream(data).read_all()
    metadata = table.schema.metadata
    run, first_row, is_delete, delete_columns, floor = json.loads(metadata[_METADATA_KEY])
    columns = tuple(name for name in table.column_names if name != REMOVAL)
    buckets, combined = None, NOTHING_COMBINED
    if _BUCKETS_KEY in metadata:
        buckets = np.repeat(*np.frombuffer(metadata[_BUCKETS_KEY], "<i4").astype(np.int64).reshape(2, -1))
        combined = Combined(*np.frombuffer(metadata[_COMBINED_KEY], "<i4").astype(np.int64).reshape(3, -1))
    return Part(
        run,
        first_row,
        is_delete,
        tuple(delete_columns),
        columns,
        table.replace_schema_metadata(None),
        buckets,
        combined,
        floor,
    )


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
