"""Parquet files, which have types of their own."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.cli.input_place import Looked, Place
from siltstone.storage.incoming import columns_without_index

BATCH_ROWS = 1 << 16


class ParquetFile:
    """A Parquet file."""

    def __init__(self, place: Place) -> None:
        self.name = place.name
        self.null_lines = 0
        self._place = place

    @contextlib.contextmanager
    def _opened(self) -> Iterator[pq.ParquetFile]:
        with self._place.opened() as stream, pq.ParquetFile(stream) as file:
            yield file

    def schema(self, known: pa.Schema, looked: Looked) -> pa.Schema:
        """Return the file's own columns, without a pandas index that has no name."""
        with self._opened() as file:
            schema = file.schema_arrow
            return pa.schema([schema.field(name) for name in columns_without_index(schema)])

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield batches of the file's row groups."""
        with self._opened() as file:
            for batch in file.iter_batches(BATCH_ROWS, columns=schema.names):
                yield batch.select(schema.names)
