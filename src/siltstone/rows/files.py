"""Compacted files: reading them with their indices, deletion vectors and statistics."""

import operator
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log.horizon import new_round_name
from siltstone.model.buckets import CompactedFile, DeletionVector
from siltstone.objects import open_objects
from siltstone.rows.columns import Flags, Integers, align
from siltstone.rows.index import StoredIndex
from siltstone.storage.parquet import DAMAGE_ERRORS, open_parquet

_FOOTERS_BYTES = 32 << 20
_FEW_ROWS = 16_384


class Range(NamedTuple):
    """What is known of a column's values in some rows; None as a bound is not known. NaN is not in the range."""

    least: object = None
    greatest: object = None
    may_be_null: bool = True
    may_be_valid: bool = True


Ranges = Callable[[str], Range]
"""Returns what is known of a column's values in some rows."""


class Footers:
    """The footers of files that a process has opened, which never change; those used last. Safe for threads.

    To take one apart takes longer than to read a few rows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, int], pq.FileMetaData] = {}
        self._bytes = 0

    def get(self, root: str, file: CompactedFile) -> pq.FileMetaData | None:
        """Return the footer of a file, or None."""
        key = root, file.uri, file.content_length
        with self._lock:
            footer = self._known.pop(key, None)
            if footer is not None:
                self._known[key] = footer
            return footer

    def keep(self, root: str, file: CompactedFile, footer: pq.FileMetaData) -> None:
        """Remember the footer of a file, and forget others for it."""
        key = root, file.uri, file.content_length
        with self._lock:
            if key not in self._known:
                self._known[key] = footer
                self._bytes += footer.serialized_size
            while self._bytes > _FOOTERS_BYTES:
                self._bytes -= self._known.pop(next(iter(self._known))).serialized_size


class StoredFile:
    """One compacted file being read; nothing is opened before it is needed, and of `footers` what is known not read again."""

    def __init__(self, root: str, file: CompactedFile, footers: Footers | None = None) -> None:
        self._root = root
        self.file = file
        self._footers = footers
        # Not cached properties: in Python 3.11, while one is computed for a file, by reading, no other file can be opened.
        self._parquet: pq.ParquetFile | None = None
        self._index: StoredIndex | None = None
        self._dead: BitMap64 | None = None

    @property
    def parquet(self) -> pq.ParquetFile:
        """The data file. Raises: CorruptionError."""
        if self._parquet is None:
            known = None if self._footers is None else self._footers.get(self._root, self.file)
            opened = open_parquet(self._root, self.file.uri, footer=known)
            if self._footers is not None:
                self._footers.keep(self._root, self.file, opened.metadata)
            if opened.metadata.num_rows != self.file.record_count:
                raise CorruptionError(
                    f"{self._root}/{self.file.uri}: has {opened.metadata.num_rows} rows instead of "
                    f"{self.file.record_count}; restore it, or rebase the partition"
                )
            self._parquet = opened
        return self._parquet

    @property
    def is_opened(self) -> bool:
        """Whether the data file was opened, so that it is there."""
        return self._parquet is not None

    @property
    def index(self) -> StoredIndex:
        """The primary key index."""
        if self._index is None:
            file = self.file
            self._index = StoredIndex(self._root, file.index_uri or "", file.record_count, file.index_length)
        return self._index

    @property
    def dead(self) -> BitMap64:
        """The dead rows. Raises: CorruptionError."""
        if self._dead is None:
            vector = self.file.deletion_vector
            self._dead = BitMap64() if vector is None else read_vector(self._root, vector)
        return self._dead

    def live_flags(self) -> Flags:
        """Flag each row that is not dead."""
        flags = np.ones(self.file.record_count, np.bool_)
        if self.file.deletion_vector is not None:
            flags[np.frombuffer(self.dead.to_array(), np.uint64).view(np.int64)] = False
        return flags

    def live_among(self, rows: Integers) -> Integers:
        """Return those of `rows` that are not dead."""
        return rows[self.live_flags()[rows]] if self.file.deletion_vector is not None else rows

    def read_rows(self, rows: Integers, schema: pa.Schema) -> pa.Table:
        """Read some rows, given in rising order, reading only the row groups that have them."""
        pieces = []
        for start, table in self.scan(schema, groups_with=rows):
            inside = rows[(rows >= start) & (rows < start + table.num_rows)] - start
            pieces.append(table.take(pa.array(inside)))
        return pa.concat_tables(pieces) if pieces else schema.empty_table()

    def encoded_columns(self) -> set[str]:
        """Return the names of text columns that are stored with a dictionary which is the smaller part of them."""
        if not self.parquet.num_row_groups:
            return set()
        group = self.parquet.metadata.row_group(0)
        columns = [group.column(position) for position in range(group.num_columns)]
        return {
            column.path_in_schema
            for column in columns
            if column.physical_type == "BYTE_ARRAY"
            and column.has_dictionary_page
            and (column.data_page_offset - column.dictionary_page_offset) * 2 <= column.total_compressed_size
        }

    def scan(
        self,
        schema: pa.Schema,
        *,
        groups_with: Integers | None = None,
        may_match: Callable[[Ranges], bool] | None = None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield (first row, rows) of each row group, dead rows included, with the columns of `schema`.

        Left out are row groups with none of the rows `groups_with`, and those that `may_match` rules out.
        """
        stored = set(self.parquet.schema_arrow.names)
        columns = [name for name in schema.names if name in stored]
        encoded = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        file = open_parquet(self._root, self.file.uri, encoded) if encoded else self.parquet
        for group, start in self.groups(groups_with, may_match):
            yield start, self._read_group(file, group, columns, schema)

    def groups(
        self, groups_with: Integers | None = None, may_match: Callable[[Ranges], bool] | None = None
    ) -> Iterator[tuple[int, int]]:
        """Yield (row group, its first row) of those with any of the rows `groups_with` that `may_match` does not rule out."""
        file = self.parquet
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        starts = np.cumsum([0, *sizes[:-1]])
        chosen = (
            range(len(sizes)) if groups_with is None else np.unique(np.searchsorted(starts, groups_with, "right") - 1)
        )
        for group in map(int, chosen):
            if may_match is None or may_match(group_ranges(file, group)):
                yield group, int(starts[group])

    def _read_group(self, file: pq.ParquetFile, group: int, columns: Sequence[str], schema: pa.Schema) -> pa.Table:
        if not columns:
            return align(pa.table({"": pa.nulls(file.metadata.row_group(group).num_rows)}), schema)
        try:
            # Of a few thousand rows, a column takes less time than to wake another thread for it.
            is_large = file.metadata.row_group(group).num_rows > _FEW_ROWS
            return align(file.read_row_group(group, columns=list(columns), use_threads=is_large), schema)
        except DAMAGE_ERRORS as error:
            raise CorruptionError(
                f"{self._root}/{self.file.uri}: the data file is damaged ({error}); restore it, or rebase the partition"
            ) from error


def check_present(root: str, stored: Sequence[StoredFile]) -> None:
    """Check that data files which nobody has opened are there, with the right size. Raises: CorruptionError."""
    for file in (each.file for each in stored if not each.is_opened):
        info, problem = open_objects(root).info(file.uri), None
        if info is None:
            problem = "the data file is missing"
        elif info.size != file.content_length:
            problem = f"the data file is damaged: it has {info.size} bytes instead of {file.content_length}"
        if problem is not None:
            raise CorruptionError(f"{root}/{file.uri}: {problem}; restore it from a copy, or rebase the partition")


def group_ranges(file: pq.ParquetFile, group: int) -> Ranges:
    """Return what the statistics of a row group say of each column; a column that a file lacks is null there."""
    metadata = file.metadata.row_group(group)
    paths = [metadata.column(position).path_in_schema for position in range(metadata.num_columns)]
    # What is inside a nested column has a path of its own, which may be the name of another column.
    counts = Counter(paths)
    positions = {path: position for position, path in enumerate(paths) if counts[path] == 1}
    names = set(file.schema_arrow.names)

    def of(column: str) -> Range:
        if column not in names:
            return Range(may_be_valid=False)
        statistics = metadata.column(positions[column]).statistics if column in positions else None
        if statistics is None:
            return Range()
        nulls = statistics.null_count if statistics.has_null_count else None
        least, greatest = (statistics.min, statistics.max) if statistics.has_min_max else (None, None)
        return Range(least, greatest, may_be_null=nulls != 0, may_be_valid=nulls != metadata.num_rows)

    return of


def read_vector(root: str, vector: DeletionVector) -> BitMap64:
    """Read a deletion vector. Raises: CorruptionError."""
    try:
        data = open_objects(root).read(vector.uri)
    except NotFoundError as error:
        raise CorruptionError(f"{root}/{vector.uri}: the deletion vector is missing; rebase the partition") from error
    if zlib.crc32(data) != vector.checksum:
        raise CorruptionError(
            f"{root}/{vector.uri}: the deletion vector is damaged (wrong checksum); restore it, or rebase the partition"
        )
    try:
        dead = BitMap64.deserialize(data)
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"{root}/{vector.uri}: the deletion vector is damaged ({error}); rebase") from error
    if len(dead) != vector.record_count:
        raise CorruptionError(
            f"{root}/{vector.uri}: has {len(dead)} rows instead of {vector.record_count}; rebase the partition"
        )
    return dead


def write_vector(
    root: str,
    folder: str,
    dead: BitMap64,
    began: int,
    close: Callable[[IO[bytes]], object] = operator.methodcaller("close"),
) -> DeletionVector:
    """Write a deletion vector under a new name. It is there once its writer is closed, which is handed to `close`."""
    path = f"{folder}/{new_round_name(began)}.dv"
    data = dead.serialize()
    writer = open_objects(root).open_writer(path)
    writer.write(data)
    close(writer)
    return DeletionVector(uri=path, record_count=len(dead), content_length=len(data), checksum=zlib.crc32(data))
