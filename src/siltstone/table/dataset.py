"""Rows as a data set of Arrow's, of which an engine such as DuckDB reads only the columns and the rows that it wants.

The engine writes its filter as an Arrow expression and leaves it to the data set: the expression itself is evaluated on every row
that is read, and what is known of partitions, buckets and row groups only saves reading.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from siltstone.errors import InvalidInputError

Read: TypeAlias = Callable[[Sequence[str] | None, pc.Expression | None], pa.RecordBatchReader]
"""Reads the rows that a filter leaves, and of them some columns, None for all."""


class PushedDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """Rows that are read anew whenever an engine asks for them, with its columns and its filter.

    Where reading fails, `failure` is the error: the engine has its own words for it only.
    """

    def __init__(self, schema: pa.Schema, read: Read) -> None:
        # Arrow's own constructor allows none but Arrow's own data sets.
        self._schema = schema
        self._read = read
        self.failure: Exception | None = None

    def copy(self) -> "PushedDataset":
        """Return the same rows, of which nothing has failed yet."""
        return PushedDataset(self._schema, self._read)

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        return self._schema

    def scanner(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **settings: object
    ) -> "_Scanner":
        """Return what reads the rows; settings say how quickly, and are for Arrow's own data sets."""
        return _Scanner(self, columns, filter)

    def _refuse(self, *arguments: object, **options: object) -> NoReturn:
        raise InvalidInputError("the rows of a table are read by scanner, to_table, to_batches or count_rows only")

    # They would reach for files, which only a scan knows how to read; Arrow's own would not survive that.
    filter = get_fragments = head = join = join_asof = replace_schema = sort_by = take = _refuse
    partition_expression = property(_refuse)

    def read(self, columns: Sequence[str] | None, filter: pc.Expression | None) -> pa.RecordBatchReader:
        """Return a reader of the rows, which keeps why it failed."""
        try:
            reader = self._read(columns, filter)
        except Exception as error:
            self.failure = error
            raise
        return pa.RecordBatchReader.from_batches(reader.schema, self._watched(reader))

    def _watched(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except Exception as error:
            self.failure = error
            raise


class _Scanner:
    """What engines call to get the rows."""

    def __init__(self, rows: PushedDataset, columns: Sequence[str] | None, filter: pc.Expression | None) -> None:
        self._rows, self._columns, self._filter = rows, columns, filter

    def to_reader(self) -> pa.RecordBatchReader:
        return self._rows.read(self._columns, self._filter)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        yield from self.to_reader()

    def to_table(self) -> pa.Table:
        return self.to_reader().read_all()

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self._rows.read([], self._filter))
