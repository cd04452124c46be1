"""CSV files, read with the types of known columns."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv

from siltstone.cli.csv_quoting import CheckedText
from siltstone.cli.input_place import Looked, Place
from siltstone.errors import InvalidInputError
from siltstone.ingest.inference import TextColumn
from siltstone.model.schema import check_columns

# A row must fit into one block.
BLOCK_BYTES = 16 << 20


class CsvFile:
    """A CSV file with a header. A field left empty is null; one that is quoted and empty is empty text."""

    def __init__(self, place: Place, delimiter: str) -> None:
        self.name = place.name
        self.null_lines = 0
        self._place = place
        self._delimiter = delimiter
        self._header: list[str] = []

    def schema(self, known: pa.Schema, looked: Looked) -> pa.Schema:
        """Return the header's columns."""
        with self._opened({}) as rows:
            self._header = rows.schema.names
        self._check_header(known)
        found = self._look({name: TextColumn() for name in self._header if name not in known.names}, looked)
        types = {name: known.field(name).type if name in known.names else found[name] for name in self._header}
        return pa.schema(list(types.items()))

    def _check_header(self, known: pa.Schema) -> None:
        if len(self._header) == 1 and self._header[0] not in known.names:
            for delimiter in ";\t|":
                if delimiter in self._header[0]:
                    raise InvalidInputError(
                        f"{self.name}: its only column is {self._header[0]!r}; say --delimiter {delimiter!r}"
                    )
        for number, name in enumerate(self._header):
            if name in self._header[:number]:
                raise InvalidInputError(f"{self.name}: its header names the column {name!r} twice; rename one")
        with self._named():
            check_columns(pa.schema([pa.field(name, pa.string()) for name in self._header]))
        for field in known:
            if field.name in self._header and pa.types.is_nested(field.type):
                raise InvalidInputError(
                    f"{self.name}: column {field.name!r} is {field.type} in the table, which CSV cannot hold; "
                    "use Parquet or JSON lines"
                )

    def _look(self, columns: dict[str, TextColumn], looked: Looked) -> dict[str, pa.DataType]:
        if columns:
            with self._opened(dict.fromkeys(columns, pa.string()), list(columns)) as rows:
                for batch in rows:
                    for name, column in columns.items():
                        column.look(batch.column(name))
                    looked(batch.num_rows)
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
        with self._named(), self._place.opened() as stream:
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
        """Say file and column in what Arrow reports by number."""
        try:
            yield
        except InvalidInputError as error:
            raise InvalidInputError(self._spelled(str(error))) from error

    def _spelled(self, message: str) -> str:
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
