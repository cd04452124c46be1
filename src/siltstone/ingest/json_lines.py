"""Files of JSON lines: one object per line, read by Arrow in chunks of whole lines."""

import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from siltstone.errors import InvalidInputError
from siltstone.ingest.data_file import Location, RowProgress, TextColumn, format_limit
from siltstone.model.schema import describe_type, has_map

CHUNK_BYTES = 8 << 20
LINE_BYTES_LIMIT = 64 << 20
_NULL_LINE = re.compile(rb"^[ \t\r]*null[ \t\r]*$", re.MULTILINE)
_NOT_OBJECT = re.compile(rb"^[ \t\r]*+[^ \t\r\n{]", re.MULTILINE)
# What JSON has as text or number only is read as that, then converted.
_READ_AS: dict[pa.DataType, pa.DataType] = {
    pa.date32(): pa.string(),
    pa.time64("us"): pa.string(),
    pa.duration("us"): pa.int64(),
}


class JsonLinesFile:
    """A file of JSON objects, one per line. A column that only some lines have is null in the others.

    A null line is not a row: change streams have one after each delete, for those who keep the newest by key.
    """

    def __init__(self, location: Location) -> None:
        self.name = location.name
        self.null_lines = 0
        self._location = location

    def schema(self, table_schema: pa.Schema, progress: RowProgress) -> pa.Schema:
        """Return the columns that at least one line has."""
        columns = _Columns(self.name, table_schema)
        for first_line, chunk in self._rows_only():
            table = self._parsed(chunk, first_line, columns.readable, "infer")
            columns.inspect(table, chunk)
            progress(table.num_rows)
        return columns.schema()

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, their columns in the order of `schema`."""
        for first_line, chunk in self._rows_only():
            yield from self._parsed(chunk, first_line, schema, "ignore").select(schema.names).to_batches()

    def _rows_only(self) -> Iterator[tuple[int, bytes]]:
        """Yield the chunks with empty lines in place of null ones, which are counted; chunks without a row are left out."""
        self.null_lines = 0
        for first_line, chunk in self._chunks():
            rows, count = _NULL_LINE.subn(b"", chunk) if b"null" in chunk else (chunk, 0)
            self.null_lines += count
            if rows.strip():
                yield first_line, rows

    def _chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines, a few megabytes at a time, with the number of the first one."""
        line, parts = 1, list[bytes]()
        for data in self._blocks():
            first = data.find(b"\n")
            waiting = sum(map(len, parts))
            if waiting + (len(data) if first < 0 else first) > LINE_BYTES_LIMIT:
                raise InvalidInputError(
                    f"{self.name}: line {line} is longer than {format_limit(LINE_BYTES_LIMIT)}; break it up, or use Parquet"
                )
            if first < 0:
                parts.append(data)
                continue
            head, _, tail = data.rpartition(b"\n")
            chunk = b"".join([*parts, head])
            yield line, chunk
            line += chunk.count(b"\n") + 1
            parts = [tail]
        yield line, b"".join(parts)

    def _blocks(self) -> Iterator[bytes]:
        with self._location.opened() as stream:
            data = stream.read(CHUNK_BYTES).removeprefix(b"\xef\xbb\xbf")
            while data:
                yield data
                data = stream.read(CHUNK_BYTES)

    def _parsed(self, chunk: bytes, first_line: int, schema: pa.Schema, unexpected: Any) -> pa.Table:
        try:
            return _parse(chunk, schema, unexpected)
        except (ValueError, pa.ArrowException) as error:
            raise self._line_error(chunk, first_line, schema, unexpected, error) from error

    def _line_error(
        self, chunk: bytes, first_line: int, schema: pa.Schema, unexpected: Any, error: Exception
    ) -> InvalidInputError:
        """Return an error that names the first bad line, found by bisection."""
        lines = chunk.split(b"\n")
        start, stop = 0, len(lines)
        while stop - start > 1:
            middle = (start + stop) // 2
            if _fails(lines[start:middle], schema, unexpected):
                stop = middle
            elif _fails(lines[middle:stop], schema, unexpected):
                start = middle
            else:
                break
        if stop - start > 1:
            # Each line is valid by itself, but not together with the others.
            column = re.search(r"Column\(/([^)]*)\)", str(error))
            where = f"column {column[1]!r}: " if column else ""
            return InvalidInputError(f"{self.name}: {where}lines {first_line} and later disagree: {_reason(error)}")
        return InvalidInputError(f"{self.name}: line {first_line + start}{_complaint(lines[start], schema, error)}")


def _parse(chunk: bytes, schema: pa.Schema, unexpected: Any) -> pa.Table:
    chunk.decode()
    if _NOT_OBJECT.search(chunk):
        # Arrow's reader dies of a null that comes first.
        raise ValueError("each line must be one JSON object")
    read_schema = pa.schema([pa.field(field.name, _READ_AS.get(field.type, field.type)) for field in schema])
    table = pyarrow.json.read_json(
        io.BytesIO(chunk),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
        pyarrow.json.ParseOptions(explicit_schema=read_schema, unexpected_field_behavior=unexpected),
    )
    if table.num_rows != sum(1 for line in chunk.split(b"\n") if line.strip()):
        raise ValueError("each line must be one JSON object")
    for expected in read_schema:
        actual = table.schema.field(expected.name).type
        if actual != expected.type:
            raise ValueError(
                f"column {expected.name!r} has fields that the table's {expected.type} does not have: {actual}"
            )
    columns = {name: table.column(name) for name in table.column_names if unexpected == "infer" or name in schema.names}
    for field in schema:
        columns[field.name] = _converted(columns[field.name], field.type)
    return pa.table(columns)


def _converted(values: Any, kind: pa.DataType) -> "pa.ChunkedArray[Any]":
    if pa.types.is_time(kind):
        # Arrow converts times of day only as part of a timestamp.
        day: Any = "1970-01-01"
        values = pc.binary_join_element_wise(day, values, " ").cast(pa.timestamp("us"))
    converted: pa.ChunkedArray[Any] = values.cast(kind)
    return converted


def _fails(lines: Sequence[bytes], schema: pa.Schema, unexpected: Any) -> bool:
    chunk = b"\n".join(lines)
    if not chunk.strip():
        return False
    try:
        _parse(chunk, schema, unexpected)
    except (ValueError, pa.ArrowException):
        return True
    return False


def _complaint(line: bytes, schema: pa.Schema, error: Exception) -> str:
    """Return what is wrong with one line, and with which of its columns."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as problem:
        return f": not valid JSON: {problem}"
    if not isinstance(row, dict):
        return (
            f": is {line.strip()[:40].decode()}, not an object; each line must be one object with the columns of a row"
        )
    for field in schema:
        if _fails([line], pa.schema([field]), "ignore"):
            value = orjson.dumps(row.get(field.name)).decode()
            return f", column {field.name!r}: {value:.80} does not convert to {describe_type(field.type)}"
    return f": {_reason(error)}"


def _reason(error: Exception) -> str:
    return re.sub(r" in row \d+$", "", str(error).removeprefix("JSON parse error: "))


class _Columns:
    """The columns seen so far, and what they can be."""

    def __init__(self, name: str, table_schema: pa.Schema) -> None:
        self._name = name
        self._table_schema = table_schema
        self.readable = pa.schema([field for field in table_schema if not has_map(field.type)])
        self._present: set[str] = set()
        self._texts: dict[str, TextColumn] = {}
        self._types: dict[str, pa.DataType] = {}

    def inspect(self, table: pa.Table, chunk: bytes) -> None:
        """Take note of a chunk's columns."""
        for field in table.schema:
            values = table.column(field.name)
            if field.name in self.readable.names:
                if values.null_count < len(values) or _mentions(chunk, field.name):
                    self._present.add(field.name)
            elif field.name in self._table_schema.names:
                raise InvalidInputError(
                    f"{self._name}: column {field.name!r} is {self._table_schema.field(field.name).type} in the table, "
                    "which JSON lines cannot hold; use Parquet"
                )
            else:
                self._inspect_new(field, values, chunk)

    def _inspect_new(self, field: "pa.Field[Any]", values: Any, chunk: bytes) -> None:
        name = field.name
        text = self._texts.setdefault(name, TextColumn(times_only=True))
        before = self._types.setdefault(name, pa.null())
        if pa.types.is_timestamp(field.type):
            # Arrow takes text for times; whether it is a day, or has a zone, shows in the text itself.
            values = _parse(chunk, pa.schema([pa.field(name, pa.string())]), "ignore").column(name)
        if pa.types.is_string(values.type):
            text.inspect(values)
        else:
            try:
                merged = pa.unify_schemas(
                    [pa.schema([pa.field(name, before)]), pa.schema([field])], promote_options="permissive"
                )
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise InvalidInputError(
                    f"{self._name}: column {name!r} is {before} in some lines and {field.type} in others"
                ) from error
            self._types[name] = merged.field(name).type
        if text.type is not None and not pa.types.is_null(self._types[name]):
            raise InvalidInputError(
                f"{self._name}: column {name!r} is text in some lines and {self._types[name]} in others"
            )

    def schema(self) -> pa.Schema:
        """Return the columns that at least one line has."""
        fields = [field for field in self.readable if field.name in self._present]
        for name, kind in self._types.items():
            fields.append(pa.field(name, self._texts[name].type or kind))
        return pa.schema(fields)


def _mentions(chunk: bytes, name: str) -> bool:
    """Return whether any line has the column, be it as null: leaving a column out and nulling it are two things."""
    if not re.search(re.escape(orjson.dumps(name)) + rb"\s*:", chunk):
        return False
    return any(name in orjson.loads(line) for line in chunk.split(b"\n") if line.strip())
