"""CSV text on its way to Arrow's reader, which takes a quote that is never closed for the rest of the file.

A quoted field ends with a quote before a separator, a line's end or the end of the file; a quote inside is doubled. A quote
inside a field that is not quoted is text.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv

from siltstone.errors import InvalidInputError
from siltstone.ingest.data_file import Location, RowProgress, TextColumn, format_limit
from siltstone.model.schema import check_columns

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CheckedText:
    """A file that refuses to be read further than to the first row that is not well-formed, or too long."""

    def __init__(self, stream: IO[bytes], name: str, delimiter: str, row_bytes_limit: int) -> None:
        self._stream = stream
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
                f"{self._name}: the row that starts in line {self._line} is longer than {format_limit(self._limit)}; "
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


# A row must fit into one block.
BLOCK_BYTES = 16 << 20


class CsvFile:
    """A CSV file with a header. A field left empty is null; one that is quoted and empty is empty text."""

    def __init__(self, location: Location, delimiter: str) -> None:
        self.name = location.name
        self.null_lines = 0
        self._location = location
        self._delimiter = delimiter
        self._header: list[str] = []

    def schema(self, table_schema: pa.Schema, progress: RowProgress) -> pa.Schema:
        """Return the header's columns."""
        with self._opened({}) as rows:
            self._header = rows.schema.names
        self._check_header(table_schema)
        inferred = self._infer(
            {name: TextColumn() for name in self._header if name not in table_schema.names}, progress
        )
        types = {
            name: table_schema.field(name).type if name in table_schema.names else inferred[name]
            for name in self._header
        }
        return pa.schema(list(types.items()))

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

    def _infer(self, columns: dict[str, TextColumn], progress: RowProgress) -> dict[str, pa.DataType]:
        if columns:
            with self._opened(dict.fromkeys(columns, pa.string()), list(columns)) as rows:
                for batch in rows:
                    for name, column in columns.items():
                        column.inspect(batch.column(name))
                    progress(batch.num_rows)
        return {name: column.type or pa.null() for name, column in columns.items()}

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows, their columns in the order of `schema`."""
        types = {field.name: field.type for field in schema}
        with self._opened(types, schema.names) as rows:
            yield from rows

    @contextlib.contextmanager
    def _opened(
        self, types: dict[str, pa.DataType], columns: list[str] | None = None
    ) -> Iterator["pyarrow.csv.CSVStreamingReader"]:
        with self._named(), self._location.opened() as stream:
            checked: Any = CheckedText(stream, self.name, self._delimiter, BLOCK_BYTES)
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
