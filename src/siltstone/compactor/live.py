"""The rows of a compacted partition: as of any position, with or without deltas that are not compacted yet."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from siltstone.compactor.columns import equal_ids
from siltstone.compactor.completion import Destination, current_completion, list_rounds, read_completion
from siltstone.compactor.files import StoredFile
from siltstone.compactor.gathering import GatheredParts
from siltstone.compactor.hashing import hash_keys
from siltstone.compactor.job import RoundJob
from siltstone.compactor.merge import resolve
from siltstone.compactor.naming import source_columns, version_of
from siltstone.compactor.plan import Request, delta_reads, make_job, named_as_in_files, new_deltas
from siltstone.compactor.pruning import Comparison
from siltstone.compactor.reading import read_parts
from siltstone.compactor.state import RoundCompletion
from siltstone.errors import InvalidInputError
from siltstone.model import Delta, TableVersion
from siltstone.model.names import did_you_mean
from siltstone.model.schema import schema_from_json


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


def completion_at(destination: Destination, position: int | None) -> RoundCompletion | None:
    """Return the newest round that read nothing after a position, by default the current one; None before the first.

    Positions are those of the current round's source; rounds that read from another one do not count.
    """
    current = current_completion(destination)
    if position is None or current is None or current.high_watermark <= position:
        return current
    older = [
        entry
        for entry in list_rounds(destination)
        if int(entry["high_watermark"]) <= position and entry["source_folder"] == current.source_folder
    ]
    if not older:
        return None
    return read_completion(destination, max(older, key=lambda entry: int(entry["round_id"])))


class Versions(NamedTuple):
    """The table versions that a merge goes by: of the deltas, and of the table that they are merged into."""

    source: TableVersion
    table: TableVersion


def job_at(request: Request, destination: Destination, versions: Versions | None = None) -> RoundJob:
    """Return what a round from the newest state before the requested position up to it would have to do.

    Versions are the newest, unless given. Raises: CorruptionError.
    """
    return job_on(request, destination, completion_at(destination, request.last_stream_position), versions)


def job_on(
    request: Request, destination: Destination, base: RoundCompletion | None, versions: Versions | None = None
) -> RoundJob:
    """Return what a round from one state up to the requested position would have to do. Raises: CorruptionError."""
    source = request.source
    if versions is None:
        versions = Versions(version_of(source, root=request.root), version_of(request.destination, root=request.root))
    request, table = named_as_in_files(request, versions.table)
    columns = source_columns(versions.source, table)
    watermark = base.high_watermark if base else 0
    reads = delta_reads(new_deltas(request, source, watermark), columns)
    return make_job(request, versions.source, columns, columns.schema_after(watermark), destination, base, reads)


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
        stored = StoredFile(root, file)
        found = stored.live_among(stored.index.find(np.array([hash_], np.uint64))[0])
        if len(found):
            candidates = stored.read_rows(found, schema)
            (own, theirs), _ = equal_ids([candidates, wanted], completion.primary_keys)
            places = np.flatnonzero(own == theirs[0])
            values = candidates.take(pa.array(places)).to_pylist()
            rows += [FoundRow(file.uri, int(found[place]), each) for place, each in zip(places, values, strict=True)]
    return rows


def position_at(deltas: Sequence[Delta], time_ms: int) -> int:
    """Return the position of the newest delta that was committed by a time, 0 before the first."""
    return max((delta.stream_position for delta in deltas if delta.committed_at <= time_ms), default=0)
