"""What `write` and `deltas` do: files into one delta, also as a dry run, and the list of what was committed."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.catalog import main as catalog
from siltstone.cli.hints import find_table
from siltstone.cli.rehearsal import WriteRules, rehearse
from siltstone.cli.results import DeltaLine, TableChanged, Written
from siltstone.cli.tables import describe_table, distinct_files
from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.ingest.input import Format, open_input
from siltstone.ingest.location import InputFile
from siltstone.lake import Lake, Table
from siltstone.model import Delta, Idempotency, StreamLocator, TableVersion
from siltstone.model.entities import REMOVALS
from siltstone.model.schema import evolve, normalize_schema
from siltstone.storage import object_store as storage
from siltstone.storage.conversion import UnfitValueError, convert, empty_batch, stored_type

Report = Callable[[str], None]


class Reading(NamedTuple):
    """How files are to be read, where their names do not tell."""

    format: Format | None = None
    delimiter: str | None = None


AS_NAMED = Reading()
UPSERT = WriteRules()


def _silent(message: str) -> None:
    """Show nothing."""


def schema_of_file(
    file: str,
    reading: Reading = AS_NAMED,
    *,
    report: Report = _silent,
    warn: Report = _silent,
) -> pa.Schema:
    """Return the columns of a data file; one without any value is taken for text. Raises: InvalidInputError."""
    with open_input(file, reading.format, reading.delimiter) as opened:
        found = opened.schema(pa.schema([]), _counter(f"Looking at {opened.name}", report))
        fields = []
        for field in found:
            if pa.types.is_null(field.type):
                warn(f"{opened.name}: column {field.name!r} has no values; its type is taken to be string")
                field = field.with_type(pa.string())
            fields.append(field)
        with _naming(lambda: opened.name):
            return normalize_schema(pa.schema(fields))


def write_files(
    lake: Lake,
    name: str,
    files: Sequence[str],
    rules: WriteRules = UPSERT,
    reading: Reading = AS_NAMED,
    *,
    dry_run: bool = False,
    report: Report = _silent,
    warn: Report = _silent,
) -> Written:
    """Write all rows of the files, in their order, as one delta. Raises: as `Table.write`."""
    table = find_table(lake, name)
    stream = catalog.delta_stream(name, root=lake.root)
    version = table.version
    known = version.schema
    before = _committed_before(stream, rules, lake.root)
    if before is not None:
        return _written(table, rules, table.deltas(before, before), version, position=before, repeated=True)
    doubles = [file for number, file in enumerate(files) if file in files[:number]]
    if doubles:
        raise InvalidInputError(f"{doubles[0]}: is named twice; its rows would be written twice")
    with contextlib.ExitStack() as stack:
        inputs = [stack.enter_context(open_input(file, reading.format, reading.delimiter)) for file in files]
        wanted = (rules.delete_columns or table.version.primary_keys) if rules.type == "delete" else None
        rows = _Rows(inputs, _readable(known, rules), wanted, report, warn)
        late = _LateDeletes(rules.op_column, table.version.sort_keys)
        with _naming(lambda: rows.current):
            if dry_run:
                staged = rehearse(late.counted(rows.batches()), stream, rules, lake.root)
                late.warn(warn)
                return _written(table, rules, staged, version, dry_run=True, null_lines=rows.null_lines)
            position = table.write(late.counted(rows.batches()), **rules._asdict())
            late.warn(warn)
    deltas = table.deltas(position, position)
    return _written(table, rules, deltas, version, position=position, null_lines=rows.null_lines)


def write_first(
    lake: Lake, created: TableChanged, file: str, reading: Reading = AS_NAMED, *, report: Report = _silent
) -> TableChanged:
    """Write the file that a table was made for. Raises: InvalidInputError that says that the table stays."""
    try:
        written = write_files(lake, created.name, [file], UPSERT, reading, report=report)
    except SiltstoneError as error:
        raise type(error)(f"{created.name} was created, but stays empty: {error}") from error
    return dataclasses.replace(created, written=written, table=describe_table(lake, created.name))


def _committed_before(stream: StreamLocator, rules: WriteRules, root: str) -> int | None:
    if rules.idempotency is None:
        return None
    app_id, batch_id = rules.idempotency
    return storage.find_commit(stream, Idempotency(app_id=app_id, batch_id=batch_id), root=root)


def _readable(known: pa.Schema, rules: WriteRules) -> pa.Schema:
    """Return the columns whose types are known before the files are looked at."""
    if rules.op_column is None or rules.op_column in known.names:
        return known
    return known.append(pa.field(rules.op_column, pa.string()))


class _Rows:
    """The rows of several files as one stream of batches with one schema."""

    def __init__(
        self,
        inputs: Sequence[InputFile],
        known: pa.Schema,
        wanted: Sequence[str] | None,
        report: Report,
        warn: Report,
    ) -> None:
        self._inputs = inputs
        self._report = report
        self.current = inputs[0].name
        self._schemas = [
            _selected(each.schema(known, _counter(f"Looking at {each.name}", report)), wanted) for each in inputs
        ]
        self._settle_files_of_nulls(known)
        self._settle_empty_columns(known, warn)
        self._schema = self._combined(known)

    @property
    def null_lines(self) -> int:
        """How many lines of the files were null when their rows were read."""
        return sum(each.null_lines for each in self._inputs)

    def _settle_files_of_nulls(self, known: pa.Schema) -> None:
        """Give files that have only null lines, and so no columns, those of the others, or the table's."""
        columns = next((schema for schema in self._schemas if len(schema)), known)
        self._schemas = [
            schema if len(schema) or not each.null_lines else columns
            for each, schema in zip(self._inputs, self._schemas, strict=True)
        ]

    def _settle_empty_columns(self, known: pa.Schema, warn: Report) -> None:
        """Give columns without values the type they have elsewhere; without one they say nothing and are left out."""
        types = {
            field.name: field.type for schema in (*self._schemas, known) for field in schema if not _is_empty(field)
        }
        empty = {field.name: None for schema in self._schemas for field in schema if _is_empty(field)}
        for name in empty:
            if name not in types:
                warn(f"column {name!r} is not in the table and has no values; it is left out")
        self._schemas = [
            pa.schema(
                [
                    field.with_type(types[field.name]) if _is_empty(field) else field
                    for field in schema
                    if field.name in types
                ]
            )
            for schema in self._schemas
        ]

    def _combined(self, known: pa.Schema) -> pa.Schema:
        first = self._schemas[0]
        combined = first
        for each, schema in zip(self._inputs[1:], self._schemas[1:], strict=True):
            self.current = each.name
            if set(schema.names) != set(first.names):
                odd = sorted(set(schema.names) ^ set(first.names))
                raise InvalidInputError(
                    f"{each.name}: differs from {self._inputs[0].name} in the columns {', '.join(odd)}; files of one "
                    "delta must have the same columns, so write them one by one"
                )
            combined = evolve(_stored(combined, known), _stored(schema, known))
        self.current = self._inputs[0].name
        return combined

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, after an empty batch, so that files without rows are checked as well."""
        yield empty_batch(self._schema)
        for each, schema in zip(self._inputs, self._schemas, strict=True):
            self.current = each.name
            count = _counter(f"Writing {each.name}", self._report)
            for batch in each.batches(schema):
                yield self._conformed(batch)
                count(batch.num_rows)

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self._schema):
            return batch
        columns = []
        for field in self._schema:
            try:
                columns.append(convert(batch.column(field.name), field.type))
            except UnfitValueError as error:
                raise InvalidInputError(error.message(field.name, field.type)) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _LateDeletes:
    """Counts the row-level deletes that have no sort key, and so are older than every row that has one."""

    def __init__(self, op_column: str | None, sort_keys: Sequence[str]) -> None:
        self._op_column = op_column
        self._sort_key = sort_keys[0] if op_column is not None and sort_keys else None
        self._count = 0

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches as they are."""
        for batch in batches:
            if self._sort_key in batch.schema.names and self._op_column in batch.schema.names:
                is_delete = pc.is_in(convert(batch.column(self._op_column), pa.string()), pa.array(REMOVALS))
                self._count += pc.sum(pc.and_(is_delete, pc.is_null(batch.column(self._sort_key)))).as_py() or 0
            yield batch

    def warn(self, warn: Report) -> None:
        """Say it, if there are any."""
        if self._count:
            deletes = "1 delete has" if self._count == 1 else f"{self._count} deletes have"
            warn(
                f"{deletes} no sort key {self._sort_key!r}: older than every row that has one, so that they remove "
                "none of those; give the sort key, or write a delta of type delete"
            )


def _stored(schema: pa.Schema, known: pa.Schema) -> pa.Schema:
    """Return a file's columns with the types they are stored with."""
    types = {field.name: field.type for field in known}
    return pa.schema([field.with_type(stored_type(field.type, types.get(field.name), field.name)) for field in schema])


def _selected(schema: pa.Schema, wanted: Sequence[str] | None) -> pa.Schema:
    return schema if wanted is None else pa.schema([field for field in schema if field.name in wanted])


def _is_empty(field: "pa.Field[Any]") -> bool:
    return bool(pa.types.is_null(field.type))


def _counter(what: str, report: Report) -> Callable[[int], None]:
    total = [0]

    def count(rows: int) -> None:
        total[0] += rows
        report(f"{what}: {total[0]:,} rows")

    return count


@contextlib.contextmanager
def _naming(current: Callable[[], str]) -> Iterator[None]:
    """Name the file in errors about its rows."""
    try:
        yield
    except InvalidInputError as error:
        name = current()
        raise error if name in str(error) else InvalidInputError(f"{name}: {error}") from error


def _written(
    table: Table,
    rules: WriteRules,
    deltas: Sequence[Delta],
    before: TableVersion,
    *,
    position: int | None = None,
    repeated: bool = False,
    dry_run: bool = False,
    null_lines: int = 0,
) -> Written:
    files = distinct_files(deltas)
    known = before.names_by_file()
    names = table.version.names_by_file() | {each.name_in_files: each.name for delta in deltas for each in delta.fields}
    new = [
        column for column in dict.fromkeys(each for delta in deltas for each in delta.columns) if column not in known
    ]
    return Written(
        table=table.name,
        type=rules.type,
        stream_position=position,
        rows=sum(rows for rows, _ in files.values()),
        bytes=sum(size for _, size in files.values()),
        files=len(files),
        partitions=len(deltas),
        new_columns=[names.get(column, column) for column in new],
        repeated=repeated,
        dry_run=dry_run,
        null_lines=null_lines,
    )


def list_deltas(
    lake: Lake, name: str, *, first: int | None = None, last: int | None = None, limit: int | None = None
) -> list[DeltaLine]:
    """List committed deltas by stream position, with a limit the newest of them. Raises: NotFoundError."""
    table = find_table(lake, name)
    names = table.version.names_by_file()
    deltas = table.deltas(first, last)
    if limit is not None:
        deltas = deltas[max(0, len(deltas) - limit) :]
    return [
        DeltaLine(
            stream_position=delta.stream_position,
            committed_at=delta.committed_at,
            type=delta.type,
            partition=delta.partition_values,
            rows=delta.manifest.record_count,
            bytes=delta.manifest.content_length,
            files=len(delta.manifest.entries),
            columns=[names.get(column, column) for column in delta.columns],
            delete_columns=delta.delete_columns and [names.get(column, column) for column in delta.delete_columns],
            op_column=delta.op_column,
            idempotency=f"{delta.idempotency.app_id}:{delta.idempotency.batch_id}" if delta.idempotency else None,
        )
        for delta in deltas
    ]
