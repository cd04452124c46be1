"""Files of text: CSV, and JSON lines, which Arrow reads in chunks of whole lines."""

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from siltstone.errors import InvalidInputError
from siltstone.ingest.data_file import InputFile, Location, RowProgress, TextColumn
from siltstone.model.schema import check_columns, describe_type, has_map

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A row of CSV must fit into one block.
BLOCK_BYTES = 16 << 20
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


class CsvFile(InputFile):
    """A CSV file with a header. A field left empty is null; one that is quoted and empty is empty text."""

    def __init__(self, location: Location, delimiter: str) -> None:
        super().__init__(location)
        self._delimiter = delimiter
        self._header: list[str] = []
        self._block_ends: list[int] = []
        self._batches_read = 0

    @property
    def position(self) -> int:
        """How many of its bytes were read, up to the rows that Arrow has made of them: it reads blocks ahead."""
        ends, count = self._block_ends, self._batches_read
        return ends[min(count, len(ends)) - 1] if ends and count else 0

    def schema(self, table_schema: pa.Schema, progress: RowProgress) -> pa.Schema:
        """Return the header's columns."""
        with self._opened({}) as rows:
            self._header = rows.schema.names
        self._check_header(table_schema)
        new = {name: TextColumn() for name in self._header if name not in table_schema.names}
        if new:
            with self._opened(dict.fromkeys(new, pa.string()), list(new)) as rows:
                for batch in self._counted(rows):
                    for name, column in new.items():
                        column.inspect(batch.column(name))
                    progress(batch.num_rows)
        types = {name: column.type or pa.null() for name, column in new.items()}
        return pa.schema(
            [(name, types[name] if name in types else table_schema.field(name).type) for name in self._header]
        )

    def _check_header(self, table_schema: pa.Schema) -> None:
        if len(self._header) == 1 and self._header[0] not in table_schema.names:
            for delimiter in ";\t|":
                if delimiter in self._header[0]:
                    raise InvalidInputError(
                        f"{self.name}: its only column is {self._header[0]!r}; use --delimiter {delimiter!r}"
                    )
        for number, name in enumerate(self._header):
            if name in self._header[:number]:
                raise InvalidInputError(f"{self.name}: its header names the column {name!r} twice; rename one")
        with self._named():
            check_columns(pa.schema([pa.field(name, pa.string()) for name in self._header]))
        for field in table_schema:
            if field.name in self._header and pa.types.is_nested(field.type):
                raise InvalidInputError(
                    f"{self.name}: column {field.name!r} is {field.type} in the table, which CSV cannot hold; "
                    "use Parquet or JSON lines"
                )

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, their columns in the order of `schema`."""
        with self._opened(dict(zip(schema.names, schema.types, strict=True)), schema.names) as rows:
            yield from self._counted(rows)

    def _counted(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, each of which is that of one block."""
        for batch in rows:
            self._batches_read += 1
            yield batch

    def _end_block(self) -> None:
        self._block_ends.append(super().position)

    @contextlib.contextmanager
    def _opened(
        self, types: dict[str, pa.DataType], columns: list[str] | None = None
    ) -> Iterator["pyarrow.csv.CSVStreamingReader"]:
        with self._named(), self._opened_bytes() as stream:
            self._block_ends, self._batches_read = [], 0
            checked: Any = CheckedText(stream, self.name, self._delimiter, BLOCK_BYTES, self._end_block)
            yield pyarrow.csv.open_csv(
                checked,
                # One thread knows in which row it is, and says so in errors.
                pyarrow.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
                pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                pyarrow.csv.ConvertOptions(
                    column_types=types,
                    include_columns=columns,
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name file and column in what Arrow reports by number."""
        try:
            yield
        except InvalidInputError as error:
            raise InvalidInputError(self._name_column(str(error))) from error

    def _name_column(self, message: str) -> str:
        message = message.removeprefix(f"{self.name}: ")
        match = re.match(
            r"In CSV column #(\d+): (?:Row #(\d+): )?(?:CSV conversion error to ([^:]+): )?(.*)", message, re.DOTALL
        )
        if match is None:
            message = re.sub(r"CSV parse error: Row #(\d+): ", r"row \1: ", message)
            return f"{self.name}: {message}"
        number, row, kind, reason = match.groups()
        column = self._header[int(number)] if int(number) < len(self._header) else f"#{number}"
        where = f"{self.name}: row {row}, column {column!r}" if row else f"{self.name}: column {column!r}"
        reason = reason.replace(
            " If these timestamps are in local time, parse them as timestamps without timezone, then call assume_timezone.",
            " Write e.g. Z or +01:00 after it",
        )
        if "UTF8" in reason:
            reason = "is not UTF-8; convert the file first, e.g. with iconv"
        return f"{where}: {reason}{f' for {kind}' if kind and 'invalid value' in reason else ''}"


class CheckedText:
    """A file that refuses to be read further than to the first row that is not well-formed, or too long.

    Arrow's reader takes a quote that is never closed for the rest of the file. A quoted field ends with a quote before a
    separator, a line's end or the end of the file; a quote inside is doubled. A quote inside a field that is not quoted
    is text.
    """

    def __init__(
        self,
        stream: IO[bytes],
        name: str,
        delimiter: str,
        row_bytes_limit: int,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._stream = stream
        self._on_read = on_read
        self._name = name
        self._limit = row_bytes_limit
        self._delimiter = delimiter.encode()
        separator = re.escape(self._delimiter)
        quoted = rb'"[^"]*+(?:""[^"]*+)*+"'
        field = rb'(?:%b|[^"%b\r\n][^%b\r\n]*+|)' % (quoted, separator, separator)
        # Possessive all the way: text is read once, however long, and without a stack of alternatives.
        self._field = re.compile(field)
        self._rows = re.compile(rb'(?:[^"\r\n]*+(?:\r\n?|\n)|%b(?:%b%b)*+(?:\r\n?|\n))*+' % (field, separator, field))
        self._held = b""
        self._rest = b""
        self._line = 1
        self._is_first = True

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._stream.closed

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def read(self, size: int) -> bytes:
        """Read on. Raises: InvalidInputError that names the file and the line."""
        data, is_last = self._held, False
        while not is_last and len(data) < size:
            part = self._stream.read(size - len(data))
            data, is_last = data + part, not part
        # Arrow forgets a line feed that begins a block after a carriage return, also inside quotes.
        self._held = b"\r" if len(data) > 1 and data.endswith(b"\r") and not is_last else b""
        data = data.removesuffix(self._held)
        # The end is checked before the last rows are handed out: Arrow parses what it has.
        self._check(data.removeprefix(BYTE_ORDER_MARK) if self._is_first else data, is_last=is_last)
        self._is_first = False
        self._on_read()
        return data

    def _check(self, data: bytes, *, is_last: bool) -> None:
        if b"\0" in data:
            line = self._line + _lines(self._rest + data[: data.index(b"\0")])
            raise InvalidInputError(
                f"{self._name}: line {line} has a NUL byte, so it is not text in UTF-8; convert the file"
            )
        text = self._rest + data
        if b'"' in text:
            match = self._rows.match(text)
            assert match is not None
            end = match.end()
        else:
            end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._line += _lines(text[:end])
        self._rest = text[end:]
        if b'"' in self._rest:
            self._check_row(is_last=is_last)
        if len(self._rest) > self._limit:
            raise InvalidInputError(
                f"{self._name}: the row that starts in line {self._line} is longer than {_size(self._limit)}; "
                "is a quote left open? Longer rows need another format, e.g. Parquet"
            )

    def _check_row(self, *, is_last: bool) -> None:
        """Check the fields of a row whose end has not been read, or that has none."""
        text, position = self._rest, 0
        field = self._field.match(text)
        while field is not None and field.end() < len(text) and text.startswith(self._delimiter, field.end()):
            position = field.end() + len(self._delimiter)
            field = self._field.match(text, position)
        assert field is not None
        if field.end() == len(text) or (not is_last and field.end() == position):
            return
        line = self._line + _lines(text[:position])
        if field.end() == position:
            raise InvalidInputError(
                f"{self._name}: line {line}: a quote is never closed; close it, or double it if it is text"
            )
        after = text[field.end() : field.end() + 20].splitlines()[0].decode(errors="replace")
        raise InvalidInputError(
            f"{self._name}: line {line}: the quote that is opened there is closed before {after!r}, not at the "
            "field's end; double the quotes inside quoted text"
        )


def _lines(text: bytes) -> int:
    return text.count(b"\n") or text.count(b"\r")


class JsonLinesFile(InputFile):
    """A file of JSON objects, one per line. A column that only some lines have is null in the others.

    A null line is not a row: change streams have one after each delete, for those who keep the newest by key.
    """

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
                    f"{self.name}: line {line} is longer than {_size(LINE_BYTES_LIMIT)}; break it up, or use Parquet"
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
        with self._opened_bytes() as stream:
            data = stream.read(CHUNK_BYTES).removeprefix(BYTE_ORDER_MARK)
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
        values = columns[field.name]
        if pa.types.is_time(field.type):
            # Arrow converts times of day only as part of a timestamp.
            values = pc.binary_join_element_wise("1970-01-01", values, " ").cast(pa.timestamp("us"))
        columns[field.name] = values.cast(field.type)
    return pa.table(columns)


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
        text = line.strip()[:40].decode()
        return f": is {text}, not an object; each line must be one object with the columns of a row"
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


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >= 1 << 20 else f"{limit} bytes"
