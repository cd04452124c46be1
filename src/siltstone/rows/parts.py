"""The first step of a task: read deltas, mark row-level deletes, and split the rows by bucket."""

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import CorruptionError
from siltstone.model.entities import REMOVALS
from siltstone.rows.columns import align, hash_keys, hash_sequence
from siltstone.rows.files import read_vector
from siltstone.rows.job import Part, ReadTask, RoundJob
from siltstone.storage.parquet import DAMAGE_ERRORS, open_parquet

REMOVAL = "_siltstone_removal"
_METADATA_KEY = b"siltstone.part"
_MEMORY_BYTES = 256 << 20


def read_parts(job: RoundJob, reads: Iterable[ReadTask]) -> Iterator[tuple[int, bytes]]:
    """Yield (bucket number, part as bytes) for the files of some deltas."""
    starts = np.array([bucket.first_hash for bucket in job.buckets], np.uint64)
    for read in reads:
        for first_row, table in _row_groups(job, read):
            for bucket, rows, part_first in _split(job, read, table, first_row, starts):
                yield bucket, _encode_part(read, part_first, rows)


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
            try:
                table = file.read_row_group(group, columns=columns)
            except DAMAGE_ERRORS as error:
                raise CorruptionError(
                    f"{job.root}/{read.uri}: the data file is damaged ({error}); restore it"
                ) from error
            if dead is not None:
                first = first_row - read.first_row
                live = np.fromiter((row not in dead for row in range(first, first + size)), np.bool_, size)
                table = table.filter(pa.array(live))
            yield first_row, _typed(job, read, table)
            first_row += size


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


def _split(
    job: RoundJob, read: ReadTask, table: pa.Table, first_row: int, starts: npt.NDArray[np.uint64]
) -> Iterator[tuple[int, pa.Table, int]]:
    if not table.num_rows:
        return
    by_key = bool(job.primary_keys) and (not read.is_delete or set(read.delete_columns) == set(job.primary_keys))
    if read.is_delete and not by_key:
        # Any bucket may have such rows: all of them get the delete.
        yield from ((bucket, table, first_row) for bucket in range(len(starts)))
        return
    if len(starts) == 1:
        yield 0, table, first_row
        return
    if by_key:
        hashes = hash_keys(table, job.primary_keys)
    else:
        hashes = hash_sequence(np.arange(first_row, first_row + table.num_rows))
    buckets = np.searchsorted(starts, hashes, "right") - 1
    order = np.argsort(buckets, kind="stable")
    present, firsts = np.unique(buckets[order], return_index=True)
    for bucket, rows in zip(present, np.split(order, firsts[1:]), strict=True):
        yield int(bucket), table.take(pa.array(rows)), first_row + int(rows[0])


def _encode_part(read: ReadTask, first_row: int, table: pa.Table) -> bytes:
    about = [read.run, first_row, read.is_delete, list(read.delete_columns)]
    schema = table.schema.with_metadata({_METADATA_KEY: json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def decode_part(data: bytes) -> Part:
    """Return a part that travelled as bytes."""
    table = pa.ipc.open_stream(data).read_all()
    run, first_row, is_delete, delete_columns = json.loads(table.schema.metadata[_METADATA_KEY])
    columns = tuple(name for name in table.column_names if name != REMOVAL)
    return Part(run, first_row, is_delete, tuple(delete_columns), columns, table.replace_schema_metadata(None))


class GatheredParts:
    """Parts by bucket, each taken once; what they need of memory is bounded, but for one bucket's."""

    def __init__(self, parts: Iterable[tuple[int, bytes]] = (), *, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes)  # noqa: SIM115 - it goes when nobody holds it
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._size = 0
        for bucket, part in parts:
            self.add(bucket, part)

    def add(self, bucket: int, part: bytes) -> None:
        """Add a part."""
        self._file.seek(self._size)
        self._file.write(part)
        self._spans.setdefault(bucket, []).append((self._size, len(part)))
        self._size += len(part)

    def take(self, bucket: int) -> list[bytes]:
        """Return the parts of a bucket, in the order they came, and forget them."""
        parts = []
        for start, length in self._spans.pop(bucket, []):
            self._file.seek(start)
            parts.append(self._file.read(length))
        return parts
