"""The rows of a compacted partition: as of any position, with or without deltas that are not compacted yet."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
from siltstone.model import Delta
from siltstone.model.schema import schema_from_json


def live_batches(root: str, completion: RoundCompletion, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the live rows after a round, a row group at a time. Raises: CorruptionError."""
    schema = schema_from_json(completion.fields)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns if name in schema.names])
    for file in completion.files:
        yield from live_rows(StoredFile(root, file), schema, ())


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


def job_at(request: Request, destination: Destination) -> RoundJob:
    """Return what a round from the newest state before the requested position up to it would have to do.

    Raises: CorruptionError.
    """
    return job_on(request, destination, completion_at(destination, request.last_stream_position))


def job_on(request: Request, destination: Destination, base: RoundCompletion | None) -> RoundJob:
    """Return what a round from one state up to the requested position would have to do. Raises: CorruptionError."""
    source = request.source
    version = version_of(source, root=request.root)
    request, table = named_as_in_files(request)
    columns = source_columns(version, table)
    watermark = base.high_watermark if base else 0
    reads = delta_reads(new_deltas(request, source, watermark), columns)
    return make_job(request, version, columns, columns.schema_after(watermark), destination, base, reads)


def rows_at(request: Request, destination: Destination, *, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows as of the requested position: of the newest round before it, merged with the deltas since.

    Nothing is written. Raises: CorruptionError.
    """
    job = job_at(request, destination)
    parts = GatheredParts(read_parts(job, job.reads))
    for number in range(len(job.buckets)):
        for table in merged_rows(job, number, parts.take(number)):
            yield table if columns is None else table.select(list(columns))


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
    if not primary_keys or set(key) != set(primary_keys):
        raise InvalidInputError(f"give a value for each primary key ({', '.join(primary_keys) or 'there is none'})")
    fields = pa.schema([schema.field(name) for name in primary_keys])
    try:
        return pa.Table.from_pylist([dict(key)], schema=fields)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidInputError(f"key {dict(key)!r} does not fit the types of {fields.names}: {error}") from error


def lookup(root: str, completion: RoundCompletion, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the compacted rows of a key, found by the primary key index. Raises: InvalidInputError."""
    schema = schema_from_json(completion.fields)
    wanted = key_table(schema, completion.primary_keys, key)
    (hash_,) = hash_keys(wanted, completion.primary_keys)
    (bucket,) = [each for each in completion.buckets if each.has(int(hash_))]
    rows: list[dict[str, Any]] = []
    for file in bucket.files:
        stored = StoredFile(root, file)
        found = stored.live_among(stored.index.find(np.array([hash_], np.uint64))[0])
        if len(found):
            candidates = stored.read_rows(found, schema)
            (own, theirs), _ = equal_ids([candidates, wanted], completion.primary_keys)
            rows += candidates.filter(pa.array(own == theirs[0])).to_pylist()
    return rows


def position_at(deltas: Sequence[Delta], time_ms: int) -> int:
    """Return the position of the newest delta that was committed by a time, 0 before the first."""
    return max((delta.stream_position for delta in deltas if delta.committed_at <= time_ms), default=0)
