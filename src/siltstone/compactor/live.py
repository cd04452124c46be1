"""The rows of a compacted partition: as of any position, with or without deltas that are not compacted yet."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from siltstone.compactor.completion import Destination
from siltstone.compactor.files import StoredFile
from siltstone.compactor.gathering import GatheredParts
from siltstone.compactor.pruning import Comparison
from siltstone.compactor.reading import read_parts
from siltstone.errors import InvalidInputError
from siltstone.model import Delta, TableVersion
from siltstone.model.names import did_you_mean
from siltstone.model.rounds import RoundCompletion
from siltstone.model.schema import schema_from_json
from siltstone.rounds.plan import Request, delta_reads, make_job, named_as_in_files, new_deltas
from siltstone.rows.columns import Integers, align, equal_ids
from siltstone.rows.hashing import hash_keys
from siltstone.rows.job import RoundJob
from siltstone.rows.merge import resolve
from siltstone.table.source_columns import source_columns, version_of


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


class Versions(NamedTuple):
    """The table versions that a merge goes by: of the deltas, and of the table that they are merged into."""

    source: TableVersion
    table: TableVersion


def job_on(request: Request, destination: Destination, base: RoundCompletion | None) -> RoundJob:
    """Return what a round from one state up to the requested position would have to do. Raises: CorruptionError."""
    root = request.root
    versions = Versions(version_of(request.source, root=root), version_of(request.destination, root=root))
    deltas = new_deltas(request, request.source, base.high_watermark if base else 0)
    return merging_job(request, destination, base, deltas, versions)


def merging_job(
    request: Request,
    destination: Destination,
    base: RoundCompletion | None,
    deltas: Sequence[Delta],
    versions: Versions,
) -> RoundJob:
    """Return what a round from one state would have to do that reads the given deltas, all of them after that state."""
    request, table = named_as_in_files(request, versions.table)
    columns = source_columns(versions.source, table)
    schema = columns.schema_after(base.high_watermark if base else 0)
    return make_job(request, versions.source, columns, schema, destination, base, delta_reads(deltas, columns))


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
