"""Parquet data files: written with settings that suit short-lived change data, read back whole or by column."""

import base64
from collections.abc import Iterator, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.model import ManifestEntry
from siltstone.model.properties import MAX_ROW_GROUP_ROWS
from siltstone.model.schema import with_nested_ids
from siltstone.objects import local_path, open_objects

ROW_GROUP_ROWS = MAX_ROW_GROUP_ROWS
TARGET_FILE_BYTES = 256 << 20
_SAMPLE_ROWS = 4096
_PAGE_BYTES = 1 << 20
_MAX_BATCH_ROWS = 16_384
_COMPRESSION_LEVEL = 1
_ARROW_SCHEMA = "ARROW:schema"
# What the Parquet reader raises for bytes that are not what they were: whatever Arrow has, and text that is none.
DAMAGE_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)


class DataFileWriter:
    """Writes rows of one schema to new files, each cut at about `target_bytes`; rows wait for a full row group."""

    def __init__(
        self, root: str, new_path: Iterator[str], schema: pa.Schema, *, target_bytes: int = TARGET_FILE_BYTES
    ) -> None:
        self._objects = open_objects(root)
        self._new_path = new_path
        self.schema = schema
        self._target_bytes = target_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._rows = 0
        self._path = ""
        self._file: IO[bytes] | None = None
        self._writer: pq.ParquetWriter | None = None
        self.entries: list[ManifestEntry] = []
        self.waiting_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take over a batch of the schema."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self.flush(keep_partial=True)

    def flush(self, *, keep_partial: bool = False) -> None:
        """Write the waiting rows as row groups; with `keep_partial`, full ones only."""
        table = pa.Table.from_batches(self._waiting, self.schema)
        ready = table.num_rows - table.num_rows % ROW_GROUP_ROWS if keep_partial else table.num_rows
        rest = table.slice(ready)
        if ready:
            self._write_rows(table.slice(0, ready))
        self._waiting = rest.to_batches()
        self._waiting_rows = rest.num_rows
        self.waiting_bytes = rest.nbytes

    def _write_rows(self, table: pa.Table) -> None:
        if self._writer is None:
            self._path = next(self._new_path)
            self._file = self._objects.open_writer(self._path)
            self._writer = open_writer(self._file, table, self.schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._rows += table.num_rows
        assert self._file is not None
        if self._file.tell() >= self._target_bytes:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._writer is None or self._file is None:
            return
        self._writer.close()
        size = self._file.tell()
        self._file.close()
        self.entries.append(ManifestEntry(uri=self._path, record_count=self._rows, content_length=size))
        self._writer = self._file = None
        self._rows = 0

    def abandon(self) -> list[ManifestEntry]:
        """Close without completing, and return entries of all files begun, for deletion."""
        if self._file is not None:
            self._file.close()
            self.entries.append(ManifestEntry(uri=self._path, record_count=0, content_length=0))
        self._writer = self._file = None
        return self.entries

    def close(self) -> list[ManifestEntry]:
        """Write what waits, make all files durable and return their entries; no rows, no file."""
        if self._waiting_rows:
            self.flush()
        self._finish_file()
        return self.entries


def open_writer(sink: IO[bytes], sample: pa.Table, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a Parquet writer for rows like `sample`; columns that come dictionary-encoded are read back plain.

    Columns get the ids that those of `schema` have.

    Level 1 of zstd compresses nearly as well as the default and much faster; dictionaries are built only for
    columns that repeat themselves, since building one for unique values is most of the cost of writing them.
    """
    writer = pq.ParquetWriter(
        sink,
        pa.schema(
            [with_nested_ids(column.with_metadata(schema.field(column.name).metadata)) for column in sample.schema]
        ),
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        data_page_size=_PAGE_BYTES,
        write_batch_size=_batch_rows(sample),
        use_dictionary=[name for name in sample.schema.names if _repeats(sample.column(name))],
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
    )
    # Arrow would note the types of `sample`; what a reader is to get are the types behind the dictionaries.
    writer.add_key_value_metadata({_ARROW_SCHEMA: base64.b64encode(_plain(sample.schema).serialize()).decode()})
    return writer


def _batch_rows(sample: pa.Table) -> int:
    """Return after how many rows to see whether a page is full, and to look at their values for the statistics.

    The values of a dictionary are looked at once for each batch, which for large ones takes longer than to write them. But no
    page gets much larger than it should be, however large a value is.
    """
    widest: int = max((column.nbytes for column in sample.columns), default=0) // max(1, sample.num_rows)
    return max(1, min(_MAX_BATCH_ROWS, _PAGE_BYTES // max(1, widest)))


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            column.with_type(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in schema
        ]
    )


def _repeats(column: "pa.ChunkedArray[Any]") -> bool:
    if pa.types.is_dictionary(column.type):
        return True
    if pa.types.is_nested(column.type) or pa.types.is_boolean(column.type):
        return False
    sample = (column.drop_null() if column.null_count else column).slice(0, _SAMPLE_ROWS)
    most = len(sample) // 4
    # Where values hardly repeat, a part of the sample has too many of them already.
    return most > 0 and all(len(part.unique()) <= most for part in (sample.slice(0, most + most // 8 + 1), sample))


def open_parquet(
    root: str, uri: str, encoded: Sequence[str] = (), footer: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """Open a data file that a log names; `encoded` columns keep the dictionaries that they are stored with.

    Its `footer` is not read again where it is known. Raises: CorruptionError where it is missing or damaged.
    """
    path = local_path(root, uri)
    # Without the checksums, most flipped bits would be read as other values.
    options = {"read_dictionary": list(encoded), "page_checksum_verification": True, "metadata": footer}
    try:
        if path is not None:
            return pq.ParquetFile(path, memory_map=True, **options)
        return pq.ParquetFile(open_objects(root).open_reader(uri), pre_buffer=True, **options)
    except (FileNotFoundError, NotFoundError) as error:
        raise CorruptionError(f"{root}/{uri}: the data file is missing; restore it from a copy, or rebase") from error
    except DAMAGE_ERRORS as error:
        raise CorruptionError(f"{root}/{uri}: the data file is damaged ({error}); restore it, or rebase") from error


def read_data_file(root: str, entry: ManifestEntry, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a data file and check that it has the rows its entry promises. Raises: CorruptionError."""
    with open_parquet(root, entry.uri) as file:
        try:
            table = file.read(columns=None if columns is None else list(columns))
        except DAMAGE_ERRORS as error:
            raise CorruptionError(f"{root}/{entry.uri}: the data file is damaged ({error}); restore it") from error
    if table.num_rows != entry.record_count:
        raise CorruptionError(
            f"{root}/{entry.uri}: has {table.num_rows} rows instead of {entry.record_count}; restore it, or rebase"
        )
    return table
