"""Compacted files: reading them with their indices, deletion vectors and statistics."""

import operator
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log.horizon import new_vector_name
from siltstone.model.buckets import CompactedFile, DeletionVector
from siltstone.objects import open_objects
from siltstone.rows.columns import Flags, Hashes, Integers, align
from siltstone.rows.index import StoredIndex
from siltstone.rows.kept import Kept
from siltstone.rows.vectors import Framed, frame, is_whole, numbers_in, parse_vector
from siltstone.storage.parquet import DAMAGE_ERRORS, open_parquet

_FOOTERS_BYTES = 32 << 20
_INDICES_BYTES = 256 << 20
_FEW_ROWS = 16_384
_MOST_SHARED = 8


class Range(NamedTuple):
    """What is known of a column's values in some rows; None as a bound is not known. NaN is not in the range."""

    least: object = None
    greatest: object = None
    may_be_null: bool = True
    may_be_valid: bool = True


Ranges = Callable[[str], Range]
"""Returns what is known of a column's values in some rows."""


class Footer:
    """The footer of a data file, and where its row groups begin."""

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self.metadata = metadata
        self._starts: Integers | None = None

    @property
    def starts(self) -> Integers:
        """The number of the first row of each row group, and of what would come after all."""
        if self._starts is None:
            groups = range(self.metadata.num_row_groups)
            self._starts = np.cumsum([0, *(self.metadata.row_group(group).num_rows for group in groups)])
        return self._starts


class KnownFiles:
    """Footers and key indices that a process has opened. To take one apart takes longer than to read a few rows."""

    def __init__(self) -> None:
        self.footers = Kept[tuple[str, str, int], Footer](_FOOTERS_BYTES)
        self.indices = Kept[tuple[str, str, int], StoredIndex](_INDICES_BYTES)


class DataFile:
    """A data file and its key index, opened when they are needed, once for all slices of it that are read."""

    def __init__(self, root: str, file: CompactedFile, known: KnownFiles | None = None) -> None:
        self._root = root
        self._file = file
        self._known = known
        # Not cached properties: in Python 3.11, while one is computed for a file, by reading, no other file can be opened.
        self._parquet: pq.ParquetFile | None = None
        self._footer: Footer | None = None
        self._encoded: tuple[Sequence[str], pq.ParquetFile] | None = None
        self._index: StoredIndex | None = None
        self._read: tuple[object, pa.Table] | None = None
        self._hashes: Hashes | None = None
        self.was_opened = False

    @property
    def parquet(self) -> pq.ParquetFile:
        """The data file. Raises: CorruptionError."""
        if self._parquet is None:
            root, file = self._root, self._file
            key = root, file.uri, file.stored_length
            footer = None if self._known is None else self._known.footers.get(key)
            opened = open_parquet(root, file.uri, footer=None if footer is None else footer.metadata)
            if opened.metadata.num_rows != file.stored_rows:
                raise CorruptionError(
                    f"{root}/{file.uri}: has {opened.metadata.num_rows} rows instead of {file.stored_rows}; restore it, "
                    "or rebase the partition"
                )
            self._footer = footer or Footer(opened.metadata)
            if self._known is not None:
                self._known.footers.keep(key, self._footer, opened.metadata.serialized_size)
            self._parquet = opened
            self.was_opened = True
        return self._parquet

    @property
    def group_starts(self) -> Integers:
        """The number of the first row of each row group, and of what would come after all. Raises: CorruptionError."""
        if self._footer is None:
            self._footer = Footer(self.parquet.metadata)
        return self._footer.starts

    @property
    def index(self) -> StoredIndex:
        """The primary key index, of all rows of the file."""
        if self._index is None:
            file = self._file
            path, length = file.index_uri or "", file.index_length
            self._index = StoredIndex(self._root, path, file.stored_rows, length)
            if self._known is not None and length is not None:
                key = self._root, path, length
                self._index = self._known.indices.get(key) or self._known.indices.keep(key, self._index, length)
        return self._index

    def hashes_by_row(self) -> Hashes:
        """Return the hash of each row of the file, by the index. Raises: CorruptionError."""
        if self._hashes is None:
            self._hashes = self.index.hashes_by_row()
        return self._hashes

    def read_groups(
        self, groups: Sequence[int], columns: Sequence[str], encoded: Sequence[str], schema: pa.Schema
    ) -> pa.Table:
        """Read some columns of row groups, and bring them to a schema; of a shared file, those read last are kept.

        Raises: CorruptionError.
        """
        wanted = (tuple(groups), tuple(columns), tuple(encoded))
        if self._read is not None and self._read[0] == wanted:
            return align(self._read[1], schema)
        file, starts = self._open_encoded(encoded) if encoded else self.parquet, self.group_starts
        rows = sum(int(starts[group + 1] - starts[group]) for group in groups)
        if not columns:
            return align(pa.table({"": pa.nulls(rows)}), schema)
        try:
            # Of a few thousand rows, a column takes less time than to wake another thread for it.
            table = file.read_row_groups(list(groups), columns=list(columns), use_threads=rows > _FEW_ROWS)
        except DAMAGE_ERRORS as error:
            raise CorruptionError(
                f"{self._root}/{self._file.uri}: the data file is damaged ({error}); restore it, or rebase the partition"
            ) from error
        if self._file.is_shared:
            self._read = wanted, table
        return align(table, schema)

    def _open_encoded(self, columns: Sequence[str]) -> pq.ParquetFile:
        if self._encoded is None or self._encoded[0] != columns:
            self._encoded = columns, open_parquet(self._root, self._file.uri, columns)
        return self._encoded[1]

    def release(self) -> None:
        """Close what is open; it is opened again when it is needed."""
        self._parquet = self._encoded = self._index = self._read = self._hashes = None


class SharedObjects:
    """Data files, and objects of deletion vectors, that neighbouring buckets share: those used last stay open.

    For the time of one piece of work, of which one thread reads.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: dict[str, DataFile] = {}
        self._vectors: dict[str, bytes] = {}

    def data_file(self, file: CompactedFile) -> DataFile:
        """Return a data file; where it is shared, the same one each time."""
        if not file.is_shared:
            return DataFile(self._root, file)
        opened = self._files.pop(file.uri, None) or DataFile(self._root, file)
        self._files[file.uri] = opened
        if len(self._files) > _MOST_SHARED:
            self._files.pop(next(iter(self._files))).release()
        return opened

    def vectors(self, uri: str) -> bytes:
        """Return the bytes of an object of deletion vectors. Raises: NotFoundError."""
        data = self._vectors.pop(uri, None)
        self._vectors[uri] = open_objects(self._root).read(uri) if data is None else data
        if len(self._vectors) > _MOST_SHARED:
            self._vectors.pop(next(iter(self._vectors)))
        return self._vectors[uri]


class StoredFile:
    """Compacted rows being read: those of one file, of a slice of one, or of several slices of one, see `together`.

    Rows are numbered from the first one of the slice on; of several, as they are in the file. Nothing is opened before it
    is needed, and of what is `known` or `shared` nothing is read again.
    """

    def __init__(
        self, root: str, file: CompactedFile, known: KnownFiles | None = None, *, shared: SharedObjects | None = None
    ) -> None:
        self._root = root
        self.file = file
        self.slices: tuple[CompactedFile, ...] = (file,)
        self._shared = shared
        self._first, self._count = file.first_row, file.record_count
        self._data = DataFile(root, file, known) if shared is None else shared.data_file(file)
        self._dead: dict[int, BitMap64] = {}

    @classmethod
    def together(
        cls, root: str, slices: Sequence[CompactedFile], *, shared: SharedObjects | None = None
    ) -> "StoredFile":
        """Return slices of one data file as one, in which all other rows count as dead."""
        stored = cls(root, slices[0], shared=shared)
        if stored.file.is_shared:
            stored.slices = tuple(sorted(slices, key=lambda each: each.first_row))
            stored._first, stored._count = 0, stored.file.stored_rows
        return stored

    @property
    def row_count(self) -> int:
        """How many rows are numbered, dead ones included."""
        return self._count

    @property
    def parquet(self) -> pq.ParquetFile:
        """The data file. Raises: CorruptionError."""
        return self._data.parquet

    @property
    def was_opened(self) -> bool:
        """Whether the data file was opened, so that it is there."""
        return self._data.was_opened

    @property
    def index(self) -> StoredIndex:
        """The primary key index, of all rows of the data file."""
        return self._data.index

    def release(self) -> None:
        """Close what is open, so that many files can be read one after another; it is opened again when it is needed."""
        self._data.release()

    def find(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """Return the rows, rising, whose hash is among `hashes`, which has no duplicates; and where in `hashes` it is.

        Raises: CorruptionError.
        """
        rows, places = self.index.find(hashes)
        if self._count < self.file.stored_rows:
            rows = rows - self._first
            is_inside = (rows >= 0) & (rows < self._count)
            rows, places = rows[is_inside], places[is_inside]
        return rows, places

    def hashes_by_row(self) -> Hashes:
        """Return the hash of each row, by the index. Raises: CorruptionError."""
        return self._data.hashes_by_row()[self._first : self._first + self._count]

    @property
    def has_dead(self) -> bool:
        """Whether any row is dead."""
        vectors = any(each["deletion_vector"] is not None for each in self.slices)
        return vectors or sum(each["record_count"] for each in self.slices) < self._count

    def dead_of(self, file: CompactedFile) -> BitMap64:
        """Return the dead rows of one of the slices, numbered within it. Raises: CorruptionError."""
        first_row = file["first_row"]
        dead = self._dead.get(first_row)
        if dead is None:
            vector = file["deletion_vector"]
            dead = BitMap64() if vector is None else read_vector(self._root, vector, self._shared)
            self._dead[first_row] = dead
        return dead

    @property
    def dead(self) -> BitMap64:
        """The dead rows of a file or slice. Raises: CorruptionError."""
        return self.dead_of(self.file)

    def live_flags(self) -> Flags:
        """Flag each row that is not dead. Raises: CorruptionError."""
        flags = np.zeros(self._count, np.bool_)
        for each in self.slices:
            first = each["first_row"] - self._first
            own = flags[first : first + each["record_count"]]
            own[:] = True
            if each["deletion_vector"] is not None:
                own[numbers_in(self.dead_of(each))] = False
        return flags

    def live_among(self, rows: Integers) -> Integers:
        """Return those of `rows` that are not dead."""
        return rows[self.live_flags()[rows]] if self.has_dead and len(rows) else rows

    def read_rows(self, rows: Integers, schema: pa.Schema) -> pa.Table:
        """Read some rows, given in rising order, reading only the row groups that have them."""
        pieces = []
        columns, encoded = self._columns_of(schema)
        starts, wanted = self._data.group_starts, rows + self._first
        for groups in self._several(self.groups(rows), are_neighbours=False):
            first, last = np.searchsorted(wanted, [starts[groups[0]], starts[groups[-1] + 1]]).tolist()
            own = wanted[first:last]
            # Where each group begins among those that are read, and so each of the rows.
            sizes = starts[np.add(groups, 1)] - starts[groups]
            shifts = np.cumsum(sizes) - sizes - starts[groups]
            places = own + shifts[np.searchsorted(starts[groups], own, "right") - 1]
            pieces.append(self._data.read_groups(groups, columns, encoded, schema).take(pa.array(places)))
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
        """Yield (first row, rows) of each row group, or of several small ones, dead rows included, with the columns of `schema`.

        Left out are row groups with none of the rows `groups_with`, and those that `may_match` rules out.
        """
        columns, encoded = self._columns_of(schema)
        last = self._first + self._count
        for groups in self._several(self.groups(groups_with, may_match), are_neighbours=True):
            table = self._data.read_groups(groups, columns, encoded, schema)
            start = int(self._data.group_starts[groups[0]])
            first = max(start, self._first)
            yield first - self._first, table.slice(first - start, min(last - first, table.num_rows))

    def _columns_of(self, schema: pa.Schema) -> tuple[list[str], list[str]]:
        """Return which columns of a schema are stored, and which keep the dictionaries that they are stored with."""
        stored = set(self.parquet.schema_arrow.names)
        encoded = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        return [name for name in schema.names if name in stored], encoded

    def _several(self, groups: Iterable[int], *, are_neighbours: bool) -> Iterator[list[int]]:
        """Yield row groups in lists of a few thousand rows, or of one row group: to read each by itself takes longer."""
        starts = self._data.group_starts
        taken: list[int] = []
        rows = 0
        for group in groups:
            own = int(starts[group + 1] - starts[group])
            if taken and (rows + own > _FEW_ROWS or (are_neighbours and taken[-1] + 1 != group)):
                yield taken
                taken, rows = [], 0
            taken.append(group)
            rows += own
        if taken:
            yield taken

    def live_rows(
        self,
        schema: pa.Schema,
        dead: Integers | Sequence[int] = (),
        may_match: Callable[[Ranges], bool] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows that are not dead, nor among `dead`, a row group at a time.

        Row groups that `may_match` rules out are left out; the others come whole. Raises: CorruptionError.
        """
        if not self.has_dead and not len(dead):
            yield from (table for _, table in self.scan(schema, may_match=may_match))
            return
        live = self.live_flags()
        live[np.asarray(dead, np.int64)] = False
        # Of a file that several buckets share, the row groups of others need not be read.
        wanted = np.flatnonzero(live) if self.file.is_shared else None
        for start, table in self.scan(schema, groups_with=wanted, may_match=may_match):
            yield table.filter(pa.array(live[start : start + table.num_rows]))

    def groups(
        self, groups_with: Integers | None = None, may_match: Callable[[Ranges], bool] | None = None
    ) -> Iterator[int]:
        """Yield the row groups that are read.

        They have some of the rows, and of `groups_with` where it is given, and `may_match` does not rule them out.
        """
        file, starts = self.parquet, self._data.group_starts
        if groups_with is not None:
            chosen = np.unique(np.searchsorted(starts[:-1], groups_with + self._first, "right") - 1)
        else:
            last = self._first + self._count
            chosen = np.flatnonzero((starts[1:] > self._first) & (starts[:-1] < last))
        for group in map(int, chosen):
            if may_match is None or may_match(group_ranges(file, group)):
                yield group


def check_present(root: str, stored: Iterable[StoredFile]) -> None:
    """Check that data files which nobody has opened are there, with the right size. Raises: CorruptionError."""
    for file in (each.file for each in stored if not each.was_opened):
        info, problem = open_objects(root).info(file.uri), None
        if info is None:
            problem = "the data file is missing"
        elif info.size != file.stored_length:
            problem = f"the data file is damaged: it has {info.size} bytes instead of {file.stored_length}"
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


def read_vector(root: str, vector: DeletionVector, shared: SharedObjects | None = None) -> BitMap64:
    """Read a deletion vector; one of several in an object that is `shared` is not read by itself. Raises: CorruptionError."""
    # Each field once: a round reads one of each bucket.
    uri, start, length, checksum = vector.uri, vector.start, vector.content_length, vector.checksum
    where, stop, object_length = f"{root}/{uri}", start + length, vector.object_length
    is_alone = object_length is None
    try:
        data = open_objects(root).read(uri) if shared is None or is_alone else shared.vectors(uri)
    except NotFoundError as error:
        raise CorruptionError(f"{where}: the deletion vector is missing; rebase the partition") from error
    if not is_alone and len(data) != object_length:
        raise CorruptionError(
            f"{where}: the deletion vector is damaged: its object has {len(data)} bytes instead of {object_length}; "
            "restore it, or rebase the partition"
        )
    is_framed = vector.is_framed
    is_sound = not is_framed or is_whole(data, Framed(start, length, checksum))
    data = data if is_alone else data[start:stop]
    if not is_sound or (not is_framed and zlib.crc32(data) != checksum):
        raise CorruptionError(
            f"{where}: the deletion vector is damaged (wrong checksum); restore it, or rebase the partition"
        )
    try:
        dead = parse_vector(data) if is_framed else BitMap64.deserialize(data)
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"{where}: the deletion vector is damaged ({error}); rebase") from error
    if len(dead) != vector.record_count:
        raise CorruptionError(f"{where}: has {len(dead)} rows instead of {vector.record_count}; rebase the partition")
    return dead


def write_vectors(
    root: str,
    folder: str,
    vectors: Sequence[BitMap64],
    began: int,
    close: Callable[[IO[bytes]], object] = operator.methodcaller("close"),
) -> list[DeletionVector]:
    """Write deletion vectors under a new name, all in one object. It is there once its writer, handed to `close`, is closed."""
    if not vectors:
        return []
    path = f"{folder}/{new_vector_name(began)}"
    data, places = frame(vectors)
    writer = open_objects(root).open_writer(path)
    writer.write(data)
    close(writer)
    # A copy is made in less time than another one: a round writes one for each bucket.
    first = DeletionVector(uri=path, record_count=0, content_length=0, checksum=0, object_length=len(data))
    return [
        first.replaced(record_count=len(dead), content_length=place.length, checksum=place.checksum, start=place.start)
        for dead, place in zip(vectors, places, strict=True)
    ]
