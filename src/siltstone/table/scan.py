"""The rows of a snapshot: all of them, or those of a key, with or without deltas that are not compacted yet."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from siltstone.errors import InvalidInputError
from siltstone.log.commit import commit_log
from siltstone.model import TableVersion
from siltstone.model.names import did_you_mean
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import check_known, schema_from_json
from siltstone.rows.columns import Integers, align, equal_ids
from siltstone.rows.files import Comparison, StoredFile
from siltstone.rows.hashing import hash_keys
from siltstone.rows.job import RoundJob
from siltstone.rows.merge import resolve
from siltstone.rows.parts import GatheredParts, read_parts
from siltstone.table.completion import Destination, compacted_partition
from siltstone.table.jobs import Keys, merging_job
from siltstone.table.snapshot import PartitionSnapshot, TableSnapshot


def live_batches(root: str, completion: RoundCompletion, schema: pa.Schema | None = None) -> Iterator[pa.Table]:
    """Yield the live rows after a round, a row group at a time, with the columns it knew or with those of a schema.

    Raises: CorruptionError.
    """
    for file in completion.files:
        yield from live_rows(
            StoredFile(root, file), schema_from_json(completion.fields) if schema is None else schema, ()
        )


def live_rows(
    stored: StoredFile, schema: pa.Schema, dead: Sequence[int] = (), where: Sequence[Comparison] = ()
) -> Iterator[pa.Table]:
    """Yield the rows of a file that are not dead, nor among `dead`, a row group at a time.

    Row groups that rule out `where` are left out; those that do not come whole. Raises: CorruptionError.
    """
    is_whole = stored.file.deletion_vector is None and not len(dead)
    live = stored.live_flags()
    live[np.asarray(dead, np.int64)] = False
    for start, table in stored.scan(schema, where=where):
        yield table if is_whole else table.filter(pa.array(live[start : start + table.num_rows]))


def rows_after(job: RoundJob) -> Iterator[pa.Table]:
    """Yield the rows that a round would leave: those it starts from, merged with the deltas since. Nothing is written.

    Raises: CorruptionError.
    """
    parts = GatheredParts(read_parts(job, job.reads))
    for number in range(len(job.buckets)):
        yield from merged_rows(job, number, parts.take(number))


def merged_rows(job: RoundJob, number: int, parts: Sequence[bytes]) -> Iterator[pa.Table]:
    """Yield the rows of a bucket with its parts of deltas merged in, writing nothing. Raises: CorruptionError."""
    bucket = job.buckets[number]
    stored = [StoredFile(job.root, file) for file in bucket.files]
    if not parts:
        for file in stored:
            yield from live_rows(file, job.schema, ())
        return
    change = resolve(job, bucket, stored, parts)
    for file, dead in zip(stored, change.dead, strict=True):
        yield from live_rows(file, job.schema, dead)  # type: ignore[arg-type]
    yield change.rows


def key_table(schema: pa.Schema, primary_keys: Sequence[str], key: Mapping[str, Any]) -> pa.Table:
    """Return a key as a table of one row, in the table's types. Raises: InvalidInputError."""
    if not primary_keys:
        raise InvalidInputError(f"key {dict(key)!r}: the table has no primary key; read it, and filter")
    for name in key:
        if name not in primary_keys:
            raise InvalidInputError(
                f"{name!r} is not in the primary key ({', '.join(primary_keys)}){did_you_mean(name, primary_keys)}"
            )
    missing = [name for name in primary_keys if name not in key]
    if missing:
        raise InvalidInputError(
            f"key {dict(key)!r} lacks {', '.join(missing)}; give a value for each primary key ({', '.join(primary_keys)})"
        )
    fields = pa.schema([schema.field(name) for name in primary_keys])
    try:
        return pa.Table.from_pylist([dict(key)], schema=fields)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InvalidInputError(f"key {dict(key)!r} does not fit the types of {fields.names}: {error}") from error


class FoundRow(NamedTuple):
    """A compacted row, and where it is."""

    file: str
    row: int
    values: dict[str, Any]


def lookup(root: str, completion: RoundCompletion, wanted: pa.Table, schema: pa.Schema) -> list[FoundRow]:
    """Return the compacted rows of a key, found by the primary key index, with the columns of a schema.

    The key is a row in the types of the schema, which may be wider than those of the round: hashes are the same.
    """
    (hash_,) = hash_keys(wanted, completion.primary_keys)
    (bucket,) = [each for each in completion.buckets if each.has(int(hash_))]
    rows: list[FoundRow] = []
    for file in bucket.files:
        rows += _rows_in_file(StoredFile(root, file), int(hash_), wanted, completion.primary_keys, schema)
    return rows


def lookup_merged(job: RoundJob, wanted: pa.Table, schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the rows of a key that a round would leave, with the columns of a schema; nothing is written.

    Raises: CorruptionError.
    """
    (hash_,) = hash_keys(wanted, job.primary_keys)
    (number,) = [number for number, bucket in enumerate(job.buckets) if bucket.has(int(hash_))]
    bucket = job.buckets[number]
    stored = [StoredFile(job.root, file) for file in bucket.files]
    change = resolve(job, bucket, stored, [part for own, part in read_parts(job, job.reads) if own == number])
    rows: list[dict[str, Any]] = []
    for file, dead in zip(stored, change.dead, strict=True):
        rows += [row.values for row in _rows_in_file(file, int(hash_), wanted, job.primary_keys, schema, dead)]
    changed = align(change.rows, schema)
    rows += changed.take(pa.array(_equal_rows(changed, wanted, job.primary_keys))).to_pylist()
    return rows


def _rows_in_file(
    stored: StoredFile,
    hash_: int,
    wanted: pa.Table,
    primary_keys: Sequence[str],
    schema: pa.Schema,
    dead: Sequence[int] | Integers = (),
) -> list[FoundRow]:
    """Return the rows of a key that are neither dead nor among `dead`."""
    found = stored.live_among(stored.index.find(np.array([hash_], np.uint64))[0])
    found = np.setdiff1d(found, np.asarray(dead, np.int64))
    if not len(found):
        return []
    candidates = stored.read_rows(found, schema)
    places = _equal_rows(candidates, wanted, primary_keys)
    values = candidates.take(pa.array(places)).to_pylist()
    return [FoundRow(stored.file.uri, int(found[place]), each) for place, each in zip(places, values, strict=True)]


def _equal_rows(rows: pa.Table, wanted: pa.Table, primary_keys: Sequence[str]) -> Integers:
    """Return which rows have the key that another table has in its one row."""
    (own, theirs), _ = equal_ids([rows, wanted], primary_keys)
    return np.flatnonzero(own == theirs[0])


class Chosen(NamedTuple):
    """The columns of a read: as the table names them, and as its files do."""

    schema: pa.Schema
    in_files: pa.Schema


def choose_columns(version: TableVersion, columns: Sequence[str] | None) -> Chosen:
    """Return the columns asked for, by default all. Raises: InvalidInputError."""
    schema, in_files = version.schema, version.as_in_files().schema
    names = schema.names if columns is None else [columns] if isinstance(columns, str) else list(columns)
    check_known(names, schema, "column")
    return Chosen(
        pa.schema([schema.field(name) for name in names]),
        pa.schema([in_files.field(name) for name in version.names_in_files(names)]),
    )


class Reads(NamedTuple):
    """What a snapshot is read from: rounds whose files have all rows, and what rounds would do that merge deltas."""

    rounds: list[RoundCompletion]
    jobs: list[RoundJob]


def plan_reads(snapshot: TableSnapshot) -> Reads:
    """Return what has to be read of each partition."""
    rounds = [each.completion for each in snapshot.partitions if each.completion is not None and not each.waiting]
    return Reads(rounds, [merge_of(snapshot, each) for each in snapshot.partitions if each.waiting])


def merge_of(snapshot: TableSnapshot, partition: PartitionSnapshot) -> RoundJob:
    """Return what a round would have to do that merges the deltas that wait in a partition."""
    assert partition.source is not None
    root, locator = snapshot.root, compacted_partition(partition.own)
    destination = Destination(locator, partition.folder, commit_log(root, f"{partition.folder}/log"), root)
    keys = Keys(tuple(snapshot.version.primary_keys))
    source = snapshot.version_of(partition)
    return merging_job(destination, partition.completion, partition.waiting, keys, source, snapshot.version)


def read_batches(snapshot: TableSnapshot, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
    """Return a reader of the rows; without columns, its batches have rows still.

    Raises: InvalidInputError, CorruptionError.
    """
    chosen = choose_columns(snapshot.version, columns)
    tables = (table for each in snapshot.partitions for table in _partition_rows(snapshot, each, chosen))
    return pa.RecordBatchReader.from_batches(chosen.schema, _batches(tables, chosen))


def _partition_rows(snapshot: TableSnapshot, partition: PartitionSnapshot, chosen: Chosen) -> Iterator[pa.Table]:
    if partition.waiting:
        yield from rows_after(merge_of(snapshot, partition))
    elif partition.completion is not None:
        yield from live_batches(snapshot.root, partition.completion, chosen.in_files)


def _batches(tables: Iterable[pa.Table], chosen: Chosen) -> Iterator[pa.RecordBatch]:
    for table in tables:
        rows = align(table, chosen.in_files)
        # Aligned columns are all nullable; what is read has the table's own schema.
        yield from (pa.Table.from_arrays(rows.columns, schema=chosen.schema) if rows.columns else rows).to_batches()


def read_key(snapshot: TableSnapshot, key: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the rows of a primary key, found by the index: one at most, but for each partition.

    Raises: InvalidInputError, CorruptionError.
    """
    version = snapshot.version
    in_files, names = version.as_in_files(), version.names_by_file()
    wanted = key_table(version.schema, version.primary_keys, key).rename_columns(in_files.primary_keys)
    found: list[dict[str, object]] = []
    for partition in snapshot.partitions:
        if partition.waiting:
            found += lookup_merged(merge_of(snapshot, partition), wanted, in_files.schema)
        elif partition.completion is not None:
            rows = lookup(snapshot.root, partition.completion, wanted, in_files.schema)
            found += [row.values for row in rows]
    return [{names[stored]: value for stored, value in row.items()} for row in found]
