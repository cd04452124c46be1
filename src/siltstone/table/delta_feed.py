"""The rows of a table's deltas as they were written, commit after commit, before anything is compacted.

Each row says at which stream position it is, what it does, and which of its columns it has; in the order of position and row
they mean what the table is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import CorruptionError, InvalidInputError, NotFoundError
from siltstone.model import Delta, TableVersion
from siltstone.model.entities import REMOVALS
from siltstone.model.locators import PartitionValue, split_table_name
from siltstone.model.properties import KIND, ROWS_KIND
from siltstone.model.schema import check_known, nullable
from siltstone.rows.columns import align
from siltstone.storage import object_store as storage
from siltstone.storage.interface import StreamLog, StreamState
from siltstone.storage.parquet import DAMAGE_ERRORS, open_parquet
from siltstone.table.change_feed import COMMITTED_AT, POSITION, Changes
from siltstone.table.snapshot import Moment, take_snapshot

OPERATION, ROW, COLUMNS = "_op", "_row", "_columns"
DELTA_FIELDS = pa.schema(
    [
        pa.field(OPERATION, pa.string(), nullable=False),
        pa.field(POSITION, pa.int64(), nullable=False),
        pa.field(ROW, pa.int64(), nullable=False),
        pa.field(COLUMNS, pa.list_(pa.string()), nullable=False),
        pa.field(COMMITTED_AT, pa.timestamp("us", "UTC"), nullable=False),
    ]
)
_BATCH_ROWS = 1 << 16
_PART_BYTES = 32 << 20


@dataclass(frozen=True)
class DeltaFile:
    """A data file of a delta, whose rows count from `first_row` on; without a name, what the delta does to all of its partition.

    Columns are named as files name them; `columns` are those that the rows have. Where there are `partition_values`, rows are of
    that partition, also those that do not say so.
    """

    position: int
    committed_at: int
    operation: str
    columns: tuple[str, ...]
    uri: str | None = None
    record_count: int = 0
    content_length: int = 0
    first_row: int = 1
    op_column: str | None = None
    partition_values: tuple[PartitionValue, ...] = ()


@dataclass(frozen=True)
class DeltaRows:
    """The rows of some files of deltas, by position: a plain value, which can be pickled."""

    root: str
    name: str
    version: TableVersion
    columns: tuple[str, ...]
    files: tuple[DeltaFile, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of rows, and those that say what a row does."""
        return delta_schema(self.version, self.columns)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises: NotFoundError where a delta was trimmed meanwhile, CorruptionError."""
        for file in self.files:
            try:
                for rows, operations, first_row in self._rows(file):
                    yield from self._finished(file, rows, operations, first_row).to_batches()
            except CorruptionError as error:
                feed = open_delta_feed(self.name, self.columns, root=self.root)
                if feed.stream.read(lambda state, file=file: not _is_named(state, file)):  # type: ignore[misc]
                    raise _trimmed(self.name, file.position, None) from error
                raise

    def _rows(self, file: DeltaFile) -> "Iterator[tuple[pa.Table, pa.Array[pa.StringScalar], int]]":
        """Yield rows in today's columns, what each does, and the number of the first."""
        if file.uri is None:
            yield self._in_partition(pa.table({"": pa.nulls(1)}), file), pa.array([file.operation]), file.first_row
            return
        names = {stored: name for stored, name in self.version.names_by_file().items() if name in self.columns}
        wanted = [stored for stored in file.columns if stored in names]
        with open_parquet(self.root, file.uri) as opened:
            if opened.metadata.num_rows != file.record_count:
                raise CorruptionError(
                    f"{self.root}/{file.uri}: has {opened.metadata.num_rows} rows instead of {file.record_count}; restore it"
                )
            read = [*wanted, *([file.op_column] if file.op_column and file.op_column not in wanted else [])]
            first_row = file.first_row
            try:
                # Batches without a column would have no rows.
                for batch in opened.iter_batches(_BATCH_ROWS, columns=read or opened.schema_arrow.names[:1]):
                    table = pa.Table.from_batches([batch])
                    rows = table.select(wanted).rename_columns([names[stored] for stored in wanted])
                    yield self._in_partition(rows, file), _operations(table, file), first_row
                    first_row += batch.num_rows
            except DAMAGE_ERRORS as error:
                raise CorruptionError(
                    f"{self.root}/{file.uri}: the data file is damaged ({error}); restore it"
                ) from error

    def _in_partition(self, rows: pa.Table, file: DeltaFile) -> pa.Table:
        """Return rows with the values of their partition. One that was given as a delete in all of them does not have these."""
        for name, value in zip(self.version.partition_keys, file.partition_values, strict=False):
            if name in self.columns:
                values = (
                    pa.array([value]).cast(self.schema.field(name).type).take(pa.array(np.zeros(len(rows), np.int64)))
                )
                rows = (rows.drop_columns(name) if name in rows.column_names else rows).append_column(name, values)
        return rows

    def _finished(
        self, file: DeltaFile, rows: pa.Table, operations: "pa.Array[pa.StringScalar]", first_row: int
    ) -> pa.Table:
        count = len(operations)
        names = self.version.names_by_file()
        own = [names[stored] for stored in file.columns if stored in names]
        if rows.num_columns:
            rows = align(rows, pa.schema([self.schema.field(name) for name in self.columns]))
        else:
            rows = pa.table({name: pa.nulls(count, self.schema.field(name).type) for name in self.columns})
        return pa.Table.from_arrays(
            [
                *rows.columns,
                operations,
                pa.array(np.full(count, file.position)),
                pa.array(np.arange(first_row, first_row + count)),
                pa.array([own], DELTA_FIELDS.field(COLUMNS).type).take(pa.array(np.zeros(count, np.int64))),
                pa.array(np.full(count, file.committed_at * 1000)).cast(DELTA_FIELDS.field(COMMITTED_AT).type),
            ],
            schema=self.schema,
        )


def _operations(table: pa.Table, file: DeltaFile) -> "pa.Array[pa.StringScalar]":
    if file.op_column is None:
        return pa.array([file.operation]).take(pa.array(np.zeros(table.num_rows, np.int64)))
    written = table.column(file.op_column).combine_chunks()
    kinds = pc.if_else(pc.is_in(written, pa.array(REMOVALS)), "delete", "upsert")
    return pc.if_else(pc.fill_null(pc.equal(written, "-U"), False), "update_before", kinds)


@dataclass(frozen=True)
class DeltaFeed:
    """The deltas of a table, found once; see `open_delta_feed`."""

    root: str
    name: str
    version: TableVersion
    columns: tuple[str, ...]
    stream: StreamLog

    @property
    def newest(self) -> int:
        """The newest position."""
        return self.stream.read(lambda state: state.stream_position)

    def position_of(self, moment: Moment) -> int:
        """Return a position, or the newest one by a time. Raises: InvalidInputError where there is none yet, and for tags."""
        if isinstance(moment, str):
            raise InvalidInputError(
                f"{self.name}: deltas cannot begin at {moment!r}; give a position or a time, e.g. 120 or 2024-05-01T08:00:00Z"
            )
        if not isinstance(moment, int):
            return self.stream.read(lambda state: state.position_at(moment))
        if moment > self.newest:
            raise InvalidInputError(f"{self.name}: there is no position {moment} yet; the newest one is {self.newest}")
        return moment

    def after(self, position: int, upto: int | None = None) -> list[Delta]:
        """Return the deltas after a position, up to another, by position. Raises: NotFoundError where some are trimmed."""

        def read(state: StreamState) -> list[Delta]:
            found: list[Delta] = []
            for partition_id, partition in state.partitions().items():
                deltas = state.deltas(partition_id, position, upto)
                found += deltas
                following = deltas[:1] or state.deltas(partition_id, position)[:1]
                before = following[0].previous_stream_position if following else partition.stream_position
                # One from before deltas said so may have been the first one, or come after those that are trimmed.
                before = before or partition.trimmed_stream_position
                if position < before and upto != position:
                    raise _trimmed(self.name, position + 1, _whole_after(state))
            return sorted(found, key=lambda delta: delta.stream_position)

        return self.stream.read(read)

    def refuse_followers(self) -> None:
        """Refuse a table whose rows come from the deltas of another one. Raises: InvalidInputError."""
        for followed in take_snapshot(self.name, root=self.root).streams:
            if followed.locator != self.stream.locator:
                other = f"{followed.locator.namespace}.{followed.locator.table}"
                raise InvalidInputError(
                    f"{self.name}: was rebased, and follows the deltas of {other}; read those, or feed=changes of this table"
                )

    def parts(self, deltas: Sequence[Delta], size: int = _PART_BYTES) -> list[DeltaRows]:
        """Return the rows of deltas in parts of about so many bytes of files, for readers side by side."""
        parts: list[list[DeltaFile]] = []
        filled = size
        for file in _files_of(deltas, self.version):
            if filled >= size:
                parts.append([])
                filled = 0
            parts[-1].append(file)
            filled += file.content_length
        return [DeltaRows(self.root, self.name, self.version, self.columns, tuple(part)) for part in parts]


def open_delta_feed(name: str, columns: Sequence[str] | None = None, *, root: str) -> DeltaFeed:
    """Find the deltas of a table, to be read in today's columns, or some of them. Raises: InvalidInputError, NotFoundError."""
    stream = storage.find_stream(*split_table_name(name), root=root)
    version = stream.read(lambda state: state.version)
    if KIND.of(version.properties, name) != ROWS_KIND:
        raise InvalidInputError(f"{name}: is a table of documents; see `documents timeline` for its deltas")
    schema = version.written_schema
    names = schema.names if columns is None else list(columns)
    check_known(names, schema, "column")
    taken = [each for each in names if each in DELTA_FIELDS.names]
    if taken:
        raise InvalidInputError(
            f"{name}: its column {taken[0]} has the name of a column of deltas; rename it, or leave it out with columns=…"
        )
    return DeltaFeed(root, name, version, tuple(names), stream)


def delta_schema(version: TableVersion, columns: Sequence[str]) -> pa.Schema:
    """Return the columns of rows, which may all be absent, and those that say what a row does."""
    own = nullable(pa.schema([version.schema.field(name) for name in columns]))
    return pa.schema([*own, *DELTA_FIELDS])


def snapshot_rows(changes: Changes, position: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table that is compacted up to a position, as the rows of a delta are: `changes` are its inserts."""
    schema = delta_schema(changes.version, changes.columns)
    for batch in changes:
        count = batch.num_rows
        zeros = pa.array(np.zeros(count, np.int64))
        columns = [*(batch.column(name) for name in changes.columns), pa.array(["insert"]).take(zeros)]
        columns += [pa.array(np.full(count, position)), zeros]
        columns += [
            pa.array([changes.columns], DELTA_FIELDS.field(COLUMNS).type).take(zeros),
            batch.column(COMMITTED_AT),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _files_of(deltas: Sequence[Delta], version: TableVersion) -> Iterator[DeltaFile]:
    """Yield the files of deltas by position; one that several partitions share, once."""
    keys = tuple(version.names_in_files(version.partition_keys))
    seen: set[tuple[str, tuple[PartitionValue, ...]]] = set()
    for delta in deltas:
        place = delta.stream_position, delta.committed_at
        values = tuple(delta.partition_values)
        if delta.replaces:
            yield DeltaFile(*place, "overwrite", keys, first_row=0, partition_values=values)
        own = () if delta.op_column is None else values
        operation = "upsert" if delta.type != "delete" else "delete_where" if delta.floor is None else "truncate"
        columns = delta.columns if delta.delete_columns is None else delta.delete_columns if delta.floor != "" else []
        first_row = 1
        for entry in delta.manifest.entries:
            if (entry.uri, own) not in seen:
                size = entry.record_count, entry.content_length
                yield DeltaFile(*place, operation, tuple(columns), entry.uri, *size, first_row, delta.op_column, own)
            seen.add((entry.uri, own))
            first_row += entry.record_count


def _is_named(state: StreamState, file: DeltaFile) -> bool:
    deltas = (state.deltas(each, file.position - 1, file.position) for each in state.partitions())
    return any(entry.uri == file.uri for found in deltas for delta in found for entry in delta.manifest.entries)


def _whole_after(state: StreamState) -> int:
    """Return the lowest position after which all deltas are there."""
    return max((partition.trimmed_stream_position for partition in state.partitions().values()), default=0)


def _trimmed(name: str, position: int, whole_after: int | None) -> NotFoundError:
    start = "" if whole_after is None else f"start={whole_after}, after which all are there, "
    return NotFoundError(
        f"{name}: deltas from position {position} on are trimmed, since they are compacted, and past their retention; begin anew, with a "
        f"new checkpoint: with {start}snapshot=true, or with feed=changes"
    )
