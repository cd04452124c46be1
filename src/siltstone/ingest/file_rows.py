"""The rows of data files: finding and opening files, a reader for each format, one stream of batches, and the schema a table of them would have."""

import contextlib
import difflib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import InputWarning, InvalidInputError
from siltstone.ingest.data_file import InputFile, Location, RowProgress, compression_of
from siltstone.ingest.text_file import CsvFile, JsonLinesFile
from siltstone.model import TableVersion
from siltstone.model.entities import REMOVALS
from siltstone.model.schema import evolve, normalize_schema, schema_from_json
from siltstone.storage.conversion import UnfitValueError, columns_without_index, convert, empty_batch, stored_type

Format = Literal["parquet", "csv", "jsonl"]
STANDARD_INPUT = "-"
_FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}
BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class FilesRead:
    """How far data files are read. The number of all rows is a guess, unless the files say it; None where nothing is known."""

    step: Literal["Scanning", "Writing"]
    file: str
    rows: int
    bytes: int
    total_bytes: int
    total_rows: int | None = None

    def __str__(self) -> str:
        return f"{self.step} {self.file}: {self.rows:,} rows"


Report = Callable[[str | FilesRead], None]
"""Told what is done, and how far it is."""


@contextlib.contextmanager
def open_bytes(name: str) -> Iterator[tuple[IO[bytes], str]]:
    """Open any file, unpacked, or standard input for `-`; yield it with its name for messages. Raises: InvalidInputError."""
    if name == STANDARD_INPUT:
        yield sys.stdin.buffer, "standard input"
        return
    if "://" not in name and Path(name).is_dir():
        raise InvalidInputError(f"{name}: is a folder; name the files in it")
    with Location(name, name, compression_of(name)).opened() as stream:
        yield stream, name


@contextlib.contextmanager
def open_input(name: str, format: Format | None = None, delimiter: str | None = None) -> Iterator[InputFile]:
    """Open a data file, `-` for JSON lines from standard input. Raises: InvalidInputError."""
    if name != STANDARD_INPUT:
        is_local = "://" not in name
        if is_local and Path(name).is_dir():
            raise InvalidInputError(f"{name}: is a folder; name the files in it, e.g. {name.rstrip('/')}/*.parquet")
        if is_local and not Path(name).exists():
            raise InvalidInputError(f"{name}: no such file{_similar(Path(name))}")
        yield _input_file(Location(name, name, compression_of(name)), format, delimiter)
        return
    # It is read twice, and a pipe can be read once.
    with tempfile.NamedTemporaryFile(prefix="siltstone-stdin-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield _input_file(Location("standard input", copy.name, None), format or "jsonl", delimiter)


def _similar(path: Path) -> str:
    """Return a question whether another file of the folder is meant, if one has nearly this name."""
    with contextlib.suppress(OSError):
        close = difflib.get_close_matches(path.name, [file.name for file in path.parent.iterdir()], n=1, cutoff=0.7)
        return f"; did you mean {close[0]}?" if close else ""
    return ""


def _input_file(location: Location, format: Format | None, delimiter: str | None) -> InputFile:
    path = Path(location.name.lower())
    suffix = path.suffix if location.compression is None else Path(path.stem).suffix
    chosen = format or _FORMATS.get(suffix)
    if chosen is None:
        raise InvalidInputError(f"{location.name}: unknown file format; use --format parquet, csv or jsonl")
    if chosen == "parquet":
        if location.compression is not None:
            raise InvalidInputError(f"{location.name}: unpack it first; Parquet files are compressed inside")
        return ParquetFile(location)
    if chosen == "csv":
        return CsvFile(location, delimiter or ("\t" if suffix == ".tsv" else ","))
    return JsonLinesFile(location)


class ParquetFile(InputFile):
    """A Parquet file."""

    _rows_read = 0

    @property
    def position(self) -> int:
        """How many of its bytes were read, by the share of its rows."""
        return self.size * self._rows_read // self.row_count if self.row_count else self.size

    def schema(self, table_schema: pa.Schema, progress: RowProgress) -> pa.Schema:
        """Return the file's own columns, without a pandas index that has no name."""
        with self._opened_bytes() as stream, pq.ParquetFile(stream) as file:
            schema, self.row_count = file.schema_arrow, file.metadata.num_rows
            return pa.schema([schema.field(name) for name in columns_without_index(schema)])

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield batches of the file's row groups."""
        with self._opened_bytes() as stream, pq.ParquetFile(stream) as file:
            self._rows_read = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=schema.names):
                self._rows_read += batch.num_rows
                yield batch.select(schema.names)


def silent(message: str | FilesRead) -> None:
    """Ignore the message."""


def infer_schema(
    file: str, format: Format | None = None, delimiter: str | None = None, *, progress: Report = silent
) -> pa.Schema:
    """Return the columns of a data file; one without any value is taken for text. Raises: InvalidInputError."""
    with open_input(file, format, delimiter) as opened:
        fields = []
        for field in opened.schema(pa.schema([]), _scan_counter(opened, progress)):
            if pa.types.is_null(field.type):
                _warn(f"{opened.name}: column {field.name!r} has no values; its type is taken to be string")
                field = field.with_type(pa.string())
            fields.append(field)
        with _naming(lambda: opened.name):
            return normalize_schema(pa.schema(fields))


def read_schema(path: str) -> pa.Schema:
    """Read a schema written as JSON. Raises: InvalidInputError that names the file."""
    try:
        return schema_from_json(orjson.loads(Path(path).read_bytes()))
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read ({error.strerror}); give a JSON file") from error
    except ValueError as error:
        # Errors of ours about bad fields are value errors, too.
        raise InvalidInputError(f"{path}: {error}") from error


@contextlib.contextmanager
def open_rows(
    files: Sequence[str],
    version: TableVersion,
    format: Format | None = None,
    delimiter: str | None = None,
    columns: Sequence[str] | None = None,
    op_column: str | None = None,
    *,
    progress: Report = silent,
) -> "Iterator[FileRows]":
    """Open files whose rows are to be written to a table, all of their columns or only these.

    Errors about rows name the file, also those of whoever takes the rows. Raises: InvalidInputError.
    """
    duplicates = [file for number, file in enumerate(files) if file in files[:number]]
    if duplicates:
        raise InvalidInputError(f"{duplicates[0]}: named twice; name it once, or its rows would be written twice")
    table_schema = version.written_schema
    if op_column is not None and op_column not in table_schema.names:
        table_schema = table_schema.append(pa.field(op_column, pa.string()))
    with contextlib.ExitStack() as stack:
        inputs = [stack.enter_context(open_input(file, format, delimiter)) for file in files]
        rows = FileRows(inputs, table_schema, columns, op_column, version.sort_keys, progress)
        with _naming(lambda: rows.current):
            yield rows
        rows.warn_of_late_deletes()


class FileRows:
    """The rows of several files as one stream of batches with one schema."""

    def __init__(
        self,
        inputs: Sequence[InputFile],
        table_schema: pa.Schema,
        columns: Sequence[str] | None,
        op_column: str | None,
        sort_keys: Sequence[str],
        progress: Report,
    ) -> None:
        self._inputs = inputs
        self._op_column = op_column
        self._sort_key = sort_keys[0] if op_column is not None and sort_keys else None
        self._late_deletes = 0
        self._progress = progress
        self.current = inputs[0].name
        self._schemas = [input_.schema(table_schema, _scan_counter(input_, progress)) for input_ in inputs]
        if columns is not None:
            self._schemas = [
                pa.schema([field for field in schema if field.name in columns]) for schema in self._schemas
            ]
        # Files that have only null lines, and so no columns, get those of the others, or the table's.
        substitute = next((schema for schema in self._schemas if len(schema)), table_schema)
        self._schemas = [
            schema if len(schema) or not file.null_lines else substitute
            for file, schema in zip(inputs, self._schemas, strict=True)
        ]
        self._type_empty_columns(table_schema)
        self._schema = self._combined(table_schema)

    @property
    def null_lines(self) -> int:
        """How many lines of the files were null when their rows were read."""
        return sum(input_.null_lines for input_ in self._inputs)

    def _type_empty_columns(self, table_schema: pa.Schema) -> None:
        """Give columns without values the type they have elsewhere; without one they say nothing and are left out."""
        fields = [field for schema in (*self._schemas, table_schema) for field in schema]
        types = {field.name: field.type for field in fields if not pa.types.is_null(field.type)}
        for name in dict.fromkeys(name for schema in self._schemas for name in schema.names):
            if name not in types:
                _warn(f"column {name!r} is not in the table and has no values; it is left out")
        self._schemas = [
            pa.schema(
                [
                    field.with_type(types[field.name]) if pa.types.is_null(field.type) else field
                    for field in schema
                    if field.name in types
                ]
            )
            for schema in self._schemas
        ]

    def _combined(self, table_schema: pa.Schema) -> pa.Schema:
        first = self._schemas[0]
        combined = first
        for file, schema in zip(self._inputs[1:], self._schemas[1:], strict=True):
            self.current = file.name
            if set(schema.names) != set(first.names):
                differing = sorted(set(schema.names) ^ set(first.names))
                raise InvalidInputError(
                    f"{file.name}: differs from {self._inputs[0].name} in the columns {', '.join(differing)}; files of one "
                    "delta must have the same columns, so write them one by one"
                )
            combined = evolve(_stored(combined, table_schema), _stored(schema, table_schema))
        self.current = self._inputs[0].name
        return combined

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, after an empty batch, so that files without rows are checked as well."""
        yield empty_batch(self._schema)
        counts = [input_.row_count for input_ in self._inputs]
        total_bytes, total_rows = sum(input_.size for input_ in self._inputs), sum(counts) if all(counts) else None
        rows = bytes_before = 0
        for file, schema in zip(self._inputs, self._schemas, strict=True):
            self.current = file.name
            for batch in file.batches(schema):
                conformed = self._conformed(batch)
                self._count_late_deletes(conformed)
                yield conformed
                rows += batch.num_rows
                done = bytes_before + file.position
                self._progress(FilesRead("Writing", file.name, rows, done, total_bytes, total_rows))
            bytes_before += file.size

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

    def _count_late_deletes(self, batch: pa.RecordBatch) -> None:
        """Count row-level deletes that have no sort key, and so are older than every row that has one."""
        if self._sort_key in batch.schema.names and self._op_column in batch.schema.names:
            is_delete = pc.is_in(convert(batch.column(self._op_column), pa.string()), pa.array(REMOVALS))
            self._late_deletes += pc.sum(pc.and_(is_delete, pc.is_null(batch.column(self._sort_key)))).as_py() or 0

    def warn_of_late_deletes(self) -> None:
        """Warn of deletes without a sort key, if there were any."""
        if self._late_deletes:
            deletes = "1 delete has" if self._late_deletes == 1 else f"{self._late_deletes} deletes have"
            _warn(
                f"{deletes} no sort key {self._sort_key!r}: older than every row that has one, so that they remove "
                "none of those; give the sort key, or write a delta of type delete"
            )


def _stored(schema: pa.Schema, table_schema: pa.Schema) -> pa.Schema:
    """Return a file's columns with the types they are stored with."""
    types = {field.name: field.type for field in table_schema}
    return pa.schema([field.with_type(stored_type(field.type, types.get(field.name), field.name)) for field in schema])


def _scan_counter(file: InputFile, progress: Report) -> RowProgress:
    """Return what counts the rows of a file that is scanned, which is how many there will be to write."""
    file.row_count = 0

    def count(rows: int) -> None:
        file.row_count += rows
        progress(FilesRead("Scanning", file.name, file.row_count, file.position, file.size))

    return count


@contextlib.contextmanager
def _naming(current: Callable[[], str]) -> Iterator[None]:
    """Name the file in errors about its rows."""
    try:
        yield
    except InvalidInputError as error:
        name = current()
        raise error if name in str(error) else InvalidInputError(f"{name}: {error}") from error


def _warn(message: str) -> None:
    warnings.warn(message, InputWarning, stacklevel=2)
