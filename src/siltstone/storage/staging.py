"""From Arrow data to staged deltas: check the rows, route them to their partitions, write the files.

Everything that can be wrong with the input is found before or while files are written, and long before anything is
committed; files of a refused write are deleted again.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import InvalidInputError
from siltstone.log.horizon import new_file_name
from siltstone.model import Delta, DeltaLocator, DeltaType, Manifest, ManifestEntry, PartitionLocator, PartitionValue
from siltstone.model.entities import DELTA_TYPES, OPERATIONS, REMOVALS
from siltstone.model.locators import partition_id, partition_value
from siltstone.model.properties import SCHEMA_EVOLUTION, STRICT
from siltstone.model.schema import (
    SchemaField,
    check_columns,
    check_key_types,
    check_unchanged,
    describe_type,
    evolve,
    schema_from_json,
    schema_to_json,
)
from siltstone.objects import LocalObjects, open_objects
from siltstone.storage.conversion import UnfitValueError, convert, record_batches, stored_type
from siltstone.storage.interface import ArrowData, StreamLike
from siltstone.storage.layout import EVERY_PARTITION
from siltstone.storage.parquet import DataFileWriter
from siltstone.storage.streams import locate

_WAITING_BYTES_LIMIT = 512 << 20


def stage_delta(
    data: ArrowData,
    partition: PartitionLocator,
    *,
    type: DeltaType = "upsert",
    delete_columns: Sequence[str] | None = None,
    op_column: str | None = None,
    evolve: bool = True,
    root: str,
) -> Delta:
    """Write the files of a delta to one partition; nobody sees it until it is committed."""
    staging = _Staging(partition, type, delete_columns, op_column, evolve, root)
    only = list(partition.partition_values)
    staging.version.check_partition_values(only)
    deltas = staging.stage(data, only=only)
    return deltas[0] if deltas else staging.delta(only, [])


def stage_deltas(
    data: ArrowData,
    stream: StreamLike,
    *,
    type: DeltaType = "upsert",
    delete_columns: Sequence[str] | None = None,
    op_column: str | None = None,
    evolve: bool = True,
    root: str,
) -> list[Delta]:
    """Write the files of one delta per partition that the rows belong to."""
    return _Staging(stream, type, delete_columns, op_column, evolve, root).stage(data)


def stage_files(files: Sequence[str], stream: StreamLike, *, root: str) -> list[Delta] | None:
    """Stage Parquet files of this machine as they are, by a second name for each, without copying them."""
    objects = open_objects(root)
    staging = _Staging(stream, "upsert", None, None, False, root)
    if not isinstance(objects, LocalObjects) or staging.version.partition_keys:
        return None
    entries: list[ManifestEntry] = []
    try:
        for file in files:
            entry = staging.link(objects, file)
            if entry is None:
                discarded, entries = entries, []
                objects.delete([entry.uri for entry in discarded])
                return None
            entries.append(entry)
    except BaseException:
        objects.delete([entry.uri for entry in entries])
        raise
    return [staging.delta([], entries)]


class _Staging:
    """One write on its way into files."""

    def __init__(
        self,
        stream: StreamLike,
        type: DeltaType,
        delete_columns: Sequence[str] | None,
        op_column: str | None,
        evolve: bool,
        root: str,
    ) -> None:
        source = locate(stream, root)
        read = source.log.recall if source is stream else source.log.read
        version, self._began = read(lambda state: (source.version_in(state), state.batch_id))
        self._name = version.locator.table_locator.full_name
        if type not in DELTA_TYPES:
            raise InvalidInputError(f"{self._name}: unknown delta type {type!r}; use {', '.join(DELTA_TYPES)}")
        if type == "delete":
            version.refuse_undated_delete()
        if delete_columns is not None and type != "delete":
            raise InvalidInputError(f"{self._name}: delete columns go with deltas of type delete, not {type}")
        if op_column is not None and type != "upsert":
            raise InvalidInputError(f"{self._name}: an operation column goes with deltas of type upsert, not {type}")
        if op_column is not None and op_column in version.primary_keys:
            raise InvalidInputError(
                f"{self._name}: {op_column!r} is a primary key, so it cannot be the operation column"
            )
        if op_column is not None and not version.primary_keys:
            raise InvalidInputError(f"{self._name}: an operation column needs a primary key, and the table has none")
        self._stream = source
        self.version = version
        self._table = version.schema
        self._type = type
        self._op_column = op_column
        self._is_strict = not evolve or SCHEMA_EVOLUTION.of(version.properties, self._name) == STRICT
        self._root = root
        self._delete_columns = self._checked_delete_columns(delete_columns) if type == "delete" else None
        self._every_partition = bool(
            self._delete_columns is not None
            and version.partition_keys
            and not set(version.partition_keys) <= set(self._delete_columns)
        )
        self._schema: pa.Schema | None = None
        self._rows = 0
        self._file_columns: list[SchemaField] = []
        self._absent_keys: list[str] = []
        self._deletes_everywhere: list[pa.RecordBatch] = []
        self._writers: dict[str, tuple[list[PartitionValue], DataFileWriter]] = {}

    def _checked_delete_columns(self, requested: Sequence[str] | None) -> list[str]:
        columns = list(self.version.primary_keys if requested is None else requested)
        if not columns:
            raise InvalidInputError(
                f"{self._name}: a delete needs delete columns, since the table has no primary key; name them"
            )
        schema = self._table
        unknown = [column for column in columns if column not in schema.names]
        if unknown or len(set(columns)) != len(columns):
            raise InvalidInputError(
                f"{self._name}: delete columns {', '.join(columns)} must be different columns of the table "
                f"({', '.join(schema.names)})"
            )
        check_key_types(columns, schema, f"{self._name}: delete column")
        return columns

    def stage(self, data: ArrowData, *, only: list[PartitionValue] | None = None) -> list[Delta]:
        """Write all rows; with `only`, refuse rows of any other partition."""
        try:
            for batch in self._batches(data):
                if batch.num_rows:
                    self._write(batch, only)
            deltas = [
                self.delta(values, writer.close(), every_partition=segment == EVERY_PARTITION)
                for segment, (values, writer) in self._writers.items()
            ]
        except BaseException:
            self._discard()
            raise
        if not deltas and only is None and self._changes_schema():
            # No row names a partition, but the columns are new for all of them.
            self._every_partition = bool(self.version.partition_keys)
        if not deltas and (self._every_partition or not self.version.partition_keys):
            deltas = [self.delta([], [], every_partition=self._every_partition)]
        return deltas

    def link(self, objects: LocalObjects, file: str) -> ManifestEntry | None:
        """Give a file a name in the stream; None where it cannot have one, or its columns are not those of the table."""
        with pq.ParquetFile(file) as opened:
            found, rows = opened.schema_arrow, opened.metadata.num_rows
        table = self.version.as_in_files().schema
        if found.names != table.names or any(not found.field(n).type.equals(table.field(n).type) for n in table.names):
            return None
        self._schema = self._check_schema(self._table)
        self._file_columns = self._columns_in_files(self._schema)
        path = f"{self._stream.folder}/{partition_id([])}/{new_file_name(self._began)}.parquet"
        if not objects.link(path, file):
            return None
        return ManifestEntry(uri=path, record_count=rows, content_length=os.stat(file).st_size)

    def _changes_schema(self) -> bool:
        if self._schema is None or self._delete_columns is not None:
            return False
        schema = self._table
        return not evolve(schema, table_columns(self._schema, self._op_column, schema)).equals(schema)

    def delta(
        self, values: Sequence[PartitionValue], entries: Sequence[Any], *, every_partition: bool = False
    ) -> Delta:
        """Make the staged delta of one partition."""
        locator = DeltaLocator(**self._stream.locator, partition_values=list(values))
        return Delta(
            locator=locator,
            type=self._type,
            manifest=Manifest(entries=list(entries)),
            columns=[column.name_in_files for column in self._file_columns if self._is_of_table(column.name)],
            fields=self._file_columns,
            delete_columns=None if self._delete_columns is None else self._names_in_files(self._delete_columns),
            op_column=None if self._op_column is None else self._names_in_files([self._op_column])[0],
            every_partition=every_partition,
        )

    def _is_of_table(self, column: str) -> bool:
        """Return whether a column is one of the table's, also a new one: an operation column need not be."""
        return column != self._op_column or column in self._table.names

    def _names_in_files(self, columns: Sequence[str]) -> list[str]:
        names = {column.name: column.name_in_files for column in self._file_columns}
        return [names.get(name) or self.version.names_in_files([name])[0] for name in columns]

    def _discard(self) -> None:
        for _, writer in self._writers.values():
            open_objects(self._root).delete([entry.uri for entry in writer.abandon()])

    def _batches(self, data: ArrowData) -> Iterator[pa.RecordBatch]:
        for incoming in record_batches(data, self._table):
            batch = self._with_absent_keys(incoming)
            if self._schema is None:
                self._schema = self._check_schema(batch.schema)
                self._file_columns = self._columns_in_files(self._schema)
            yield self._convert(batch)
            self._rows += batch.num_rows

    def _with_absent_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add nulls for partition keys that the data has not; only row-level deletes may do without."""
        if self._op_column is None:
            return batch
        schema = self._table
        self._absent_keys = [key for key in self.version.partition_keys_outside if key not in batch.schema.names]
        for key in self._absent_keys:
            batch = batch.append_column(schema.field(key), pa.nulls(batch.num_rows, schema.field(key).type))
        return batch

    def _columns_in_files(self, schema: pa.Schema) -> list[SchemaField]:
        """Return the columns of the files: what is new to the table has no id yet, and a name that none ever had."""
        existing = {column.name: column for column in self.version.fields}
        columns: list[SchemaField] = []
        for column in schema_to_json(schema):
            if column.name in existing:
                column.id, column.stored_name = (
                    existing[column.name].id,
                    existing[column.name].stored_name,
                )
            else:
                taken = [known_column.name_in_files for known_column in columns]
                name = self.version.new_name_in_files(column.name, self.version.last_column_id + 1, taken)
                column.stored_name = None if name == column.name else name
            columns.append(column)
        return columns

    def _check_schema(self, incoming: pa.Schema) -> pa.Schema:
        """Return the schema of the files for data of a schema; all refusals that need no values are here."""
        version, table = self.version, self._table
        if self._delete_columns is not None:
            self._require(incoming, self._delete_columns, "delete column")
            fields = [incoming.field(column) for column in self._delete_columns]
        else:
            self._require(incoming, version.primary_keys, "primary key")
            self._require_sort_keys(incoming)
            self._require(incoming, version.partition_keys, "partition key")
            if self._op_column is not None:
                self._require(incoming, [self._op_column], "operation column")
            fields = list(incoming)
        try:
            version.refuse_history_columns(incoming.names)
            schema = pa.schema([self._stored_field(field, table) for field in fields])
            check_columns(schema)
            after = evolve(
                table,
                table_columns(schema, self._op_column, table),
                add_columns=self._delete_columns is None,
            )
            if self._is_strict:
                check_unchanged(table, after)
        except InvalidInputError as error:
            raise InvalidInputError(f"{self._name}: {error}") from error
        if self._delete_columns is None and version.merge_engine != "partial_update" and self._op_column is None:
            required = [field.name for field in table if not field.nullable]
            self._require(incoming, required, "non-nullable column")
        return schema

    def _require_sort_keys(self, incoming: pa.Schema) -> None:
        missing = [column for column in self.version.sort_keys if column not in incoming.names]
        if missing and self._op_column is not None:
            raise InvalidInputError(
                f"{self._name}: the data must have the sort key {missing[0]!r}; a row-level delete without it is older "
                "than every row that has it, and would delete nothing. Give it, or write a delta of type delete"
            )
        self._require(incoming, self.version.sort_keys, "sort key")

    def _stored_field(self, field: "pa.Field[Any]", table: pa.Schema) -> "pa.Field[Any]":
        if field.name == self._op_column:
            return pa.field(field.name, pa.string())
        column = table.field(field.name).type if field.name in table.names else None
        return pa.field(field.name, stored_type(field.type, column, field.name))

    def _require(self, incoming: pa.Schema, columns: Iterable[str], what: str) -> None:
        for column in columns:
            if incoming.names.count(column) != 1:
                has = ", ".join(incoming.names) or "no columns"
                hint = "; change events need the name of their format" if _are_events(incoming.names) else ""
                raise InvalidInputError(
                    f"{self._name}: the data must have the {what} {column!r} once; it has {has}{hint}"
                )

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Bring a batch to the stored types, and refuse values that do not fit."""
        assert self._schema is not None
        columns = []
        for field in self._schema:
            if field.name not in batch.schema.names:
                raise InvalidInputError(
                    f"{self._name}: column {field.name!r} of the first batch is missing in a later one; give all batches one schema"
                )
            columns.append(self._convert_column(batch.column(field.name), field))
        if self._delete_columns is None and batch.num_columns != len(self._schema):
            raise InvalidInputError(f"{self._name}: batches have different columns; give all batches one schema")
        converted = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._check_nulls(converted)
        return converted

    def _check_nulls(self, batch: pa.RecordBatch) -> None:
        """Refuse null where the table has none; a row that is a delete needs no more than its primary key."""
        if self._delete_columns is not None:
            return
        strict = [field.name for field in self._table if not field.nullable]
        self._refuse_nulls(batch, [name for name in strict if name in self.version.primary_keys])
        present = [name for name in strict if name in batch.schema.names]
        absent = [] if self.version.merge_engine == "partial_update" else sorted({*strict} - {*present})
        if not absent and not any(batch.column(name).null_count for name in present):
            return
        if self._op_column is not None:
            batch = batch.filter(pc.invert(pc.is_in(batch.column(self._op_column), pa.array(REMOVALS))))
        self._refuse_nulls(batch, present)
        if absent and batch.num_rows:
            raise InvalidInputError(
                f"{self._name}: column {absent[0]!r} must not be null, but the data does not have it; only rows that "
                "are deletes may leave it out"
            )

    def _refuse_nulls(self, batch: pa.RecordBatch, columns: Iterable[str]) -> None:
        for name in columns:
            nulls = batch.column(name).null_count
            if nulls:
                raise InvalidInputError(
                    f"{self._name}: column {name!r} must not be null, but {nulls} {'row is' if nulls == 1 else 'rows are'}"
                )

    def _convert_column(self, column: "pa.Array[Any]", field: "pa.Field[Any]") -> "pa.Array[Any]":
        stored = self._stored_field(field.with_type(column.type), self._table)
        if not stored.type.equals(field.type) and not pa.types.is_null(column.type):
            raise InvalidInputError(
                f"{self._name}: column {field.name!r} is {describe_type(field.type)} in the first batch and "
                f"{describe_type(column.type)} in a later one; give all batches one schema"
            )
        try:
            column = convert(column, field.type)
        except UnfitValueError as error:
            raise InvalidInputError(f"{self._name}: {error.message(field.name, field.type, self._rows)}") from error
        if field.name == self._op_column:
            unknown = pc.filter(column, pc.invert(pc.is_in(column, pa.array(OPERATIONS)))) if len(column) else column
            if len(unknown):
                raise InvalidInputError(
                    f"{self._name}: operation column {field.name!r} has the unknown operation {unknown[0].as_py()!r}; use {', '.join(OPERATIONS)}"
                )
        return column

    def _write(self, batch: pa.RecordBatch, only: list[PartitionValue] | None) -> None:
        everywhere = self._deletes_for_every_partition(batch)
        if everywhere is not None and only is None:
            self._write_with_deletes(batch, everywhere)
        elif everywhere is not None and only is not None:
            self._write_routed(batch.filter(pc.invert(everywhere)), only)
            self._write_rows(only, batch.filter(everywhere))
        else:
            self._write_routed(batch, only)
        if sum(writer.waiting_bytes for _, writer in self._writers.values()) > _WAITING_BYTES_LIMIT:
            for _, writer in self._writers.values():
                writer.flush()

    def _write_routed(self, batch: pa.RecordBatch, only: list[PartitionValue] | None) -> None:
        if not self.version.partition_keys or self._every_partition:
            self._write_rows([], batch)
            return
        for values, rows in self._rows_by_partition(batch):
            if only is not None and partition_id(values) != partition_id(only):
                raise InvalidInputError(f"{self._name}: a row belongs to partition {values!r}, not to {only!r}")
            self._write_rows(values, batch.take(pa.array(rows, pa.int64())))

    def _write_rows(self, values: list[PartitionValue], rows: pa.RecordBatch, *, every_partition: bool = False) -> None:
        if rows.num_rows:
            writer = self._writer(values, every_partition=every_partition or self._every_partition)
            writer.write(pa.RecordBatch.from_arrays(rows.columns, schema=writer.schema))

    def _refuse_deletes_everywhere(self, deletes: pa.RecordBatch) -> None:
        """Refuse deletes that do not name their partition, since they are rows of one."""
        for key in self.version.partition_keys_outside:
            if deletes.column(key).null_count:
                raise InvalidInputError(
                    f"{self._name}: keeps history, in which a delete is a row of its partition; give deletes the partition "
                    f"key {key!r} too"
                )

    def _deletes_for_every_partition(self, batch: pa.RecordBatch) -> "pa.BooleanArray | None":
        """Return a mask of row-level deletes that do not name their key's partition, or None without any."""
        outside = self.version.partition_keys_outside
        if self._op_column is None or not any(batch.column(key).null_count for key in outside):
            return None
        removals = pc.is_in(batch.column(self._op_column), pa.array(REMOVALS))
        if self.version.keeps_history and pc.any(removals).as_py():
            self._refuse_deletes_everywhere(batch.filter(removals))
        if self._absent_keys and not pc.all(removals).as_py():
            raise InvalidInputError(
                f"{self._name}: the data must have the partition key {self._absent_keys[0]!r}; only rows that are "
                "deletes may leave it out, and then concern every partition"
            )
        flags = None
        for key in outside:
            unknown = pc.is_null(batch.column(key))
            flags = unknown if flags is None else pc.or_(flags, unknown)
        flags = pc.and_(flags, removals)
        return flags if pc.any(flags).as_py() else None

    def _write_with_deletes(self, batch: pa.RecordBatch, everywhere: "pa.BooleanArray") -> None:
        """Write rows to their partitions, and deletes that concern every partition to each, in the order they came.

        Partitions that this write has no rows for get these deletes from a file of their own when it is committed.
        """
        deletes = np.flatnonzero(everywhere.to_numpy(zero_copy_only=False))
        others = np.flatnonzero(~everywhere.to_numpy(zero_copy_only=False))
        waiting = {segment: values for segment, (values, _) in self._writers.items() if segment != EVERY_PARTITION}
        for values, positions in self._rows_by_partition(batch.take(pa.array(others))):
            rows = np.sort(np.concatenate([others[positions], deletes]))
            self._write_rows(values, batch.take(pa.array(rows)))
            waiting.pop(partition_id(values), None)
        gone = batch.take(pa.array(deletes))
        for values in waiting.values():
            self._write_rows(values, gone)
        self._write_rows([], gone, every_partition=True)
        self._deletes_everywhere.append(gone)

    def _rows_by_partition(self, batch: pa.RecordBatch) -> Iterator[tuple[list[PartitionValue], list[int]]]:
        keys = self.version.partition_keys
        rows = pa.table({**{key: batch.column(key) for key in keys}, "_siltstone_row": pa.array(range(batch.num_rows))})
        for group in rows.group_by(keys, use_threads=False).aggregate([("_siltstone_row", "list")]).to_pylist():
            yield [partition_value(group[key]) for key in keys], group["_siltstone_row_list"]

    def _writer(self, values: list[PartitionValue], *, every_partition: bool) -> DataFileWriter:
        assert self._schema is not None
        segment = EVERY_PARTITION if every_partition else partition_id(values)
        if segment not in self._writers:
            folder = f"{self._stream.folder}/{segment}"
            paths = (f"{folder}/{new_file_name(self._began)}.parquet" for _ in itertools.count())
            named = [{**column, "name": column.name_in_files} for column in self._file_columns]
            self._writers[segment] = (values, DataFileWriter(self._root, paths, schema_from_json(named)))
            for deletes in [] if every_partition else self._deletes_everywhere:
                self._write_rows(values, deletes)
        return self._writers[segment][1]


def _are_events(names: Sequence[str]) -> bool:
    """Return whether columns are those of change events, which are no rows before they are decoded."""
    return {"op", "after"} <= {*names} or {*names} in ({"key", "value"}, {"schema", "payload"})


def table_columns(schema: pa.Schema, op_column: str | None, table: pa.Schema) -> pa.Schema:
    """Return what a file's schema means for the table: the operation column is not one of its columns."""
    if op_column is None or op_column in table.names:
        return schema
    return pa.schema([field for field in schema if field.name != op_column])
