"""Compacted files: reading them with their indices, deletion vectors and statistics."""

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.log.horizon import new_round_name
from siltstone.model.buckets import CompactedFile, DeletionVector
from siltstone.objects import local_path, open_objects
from siltstone.rows.columns import Flags, Hashes, Integers, align
from siltstone.storage.parquet import DAMAGE_ERRORS, open_parquet

MAGIC = b"SILTPKI1"
BLOCK_ROWS = 4096
_HEADER_BYTES = 16
_CHECKSUM_BYTES = 4
_FOOTERS_BYTES = 32 << 20
_FEW_ROWS = 16_384

Rows = npt.NDArray[np.uint32]


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
    def index(self) -> "StoredIndex":
        """The primary key index. Raises: CorruptionError."""
        if self._index is None:
            self._index = StoredIndex(self._root, self.file.index_uri or "", self.file.record_count)
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
            flags[np.fromiter(self.dead, np.int64, len(self.dead))] = False
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


class StoredIndex:
    """The primary key index: a file beside each data file, sorted by key hash, from keys to rows.

    Layout, little-endian: 8 bytes magic, 8 bytes row count n, n hashes (uint64, rising), n row numbers (uint32). Then,
    for each block of 4096 rows, its first hash (uint64) and the CRC-32 of its hashes followed by its row numbers
    (uint32); last the CRC-32 of magic, count and these two lists.

    A key is found by a few small reads: the lists lead to its block. Whatever is read is checked: the lists when the
    index is opened, a block before its first use. So a lookup checks the blocks that may have its key, a merge of many
    keys and `fsck` check all of them. A local index is mapped, so that only the pages in use are read.
    """

    def __init__(self, root: str, path: str, row_count: int) -> None:
        self._where = f"{root}/{path}"
        try:
            mapped = local_path(root, path)
            if mapped is None:
                data: npt.NDArray[np.uint8] = np.frombuffer(open_objects(root).read(path), np.uint8)
            else:
                data = np.memmap(mapped, np.uint8, "r")
        except (FileNotFoundError, NotFoundError) as error:
            raise CorruptionError(f"{self._where}: the primary key index is missing; rebase the partition") from error
        except (ValueError, OSError) as error:
            raise CorruptionError(f"{self._where}: the primary key index is damaged ({error}); rebase") from error
        if len(data) != index_bytes(row_count):
            raise self._damaged(f"{len(data)} bytes instead of {index_bytes(row_count)}")
        split = _HEADER_BYTES + 8 * row_count
        end = split + 4 * row_count
        blocks = -(-row_count // BLOCK_ROWS)
        header, lists = bytes(data[:_HEADER_BYTES]), bytes(data[end:-_CHECKSUM_BYTES])
        if header != MAGIC + row_count.to_bytes(8, "little"):
            raise self._damaged("another header")
        if zlib.crc32(header + lists) != int.from_bytes(bytes(data[-_CHECKSUM_BYTES:]), "little"):
            raise self._damaged("wrong checksum")
        self._hashes: Hashes = data[_HEADER_BYTES:split].view("<u8")
        self._rows: Rows = data[split:end].view("<u4")
        self._fences: Hashes = np.frombuffer(lists, "<u8", blocks)
        self._checksums: Rows = np.frombuffer(lists, "<u4", blocks, 8 * blocks)
        self._is_checked = np.zeros(blocks, np.bool_)

    def find(self, hashes: Hashes) -> tuple[Integers, Hashes]:
        """Return the rows, rising, whose hash is among `hashes`, sorted and without duplicates; and their hashes.

        Raises: CorruptionError.
        """
        if len(hashes) * 2 < len(self._fences):
            spans = [self._span(hash_) for hash_ in hashes]
            positions = np.concatenate([np.zeros(0, np.int64), *(np.arange(start, stop) for start, stop in spans)])
        else:
            self.check()
            positions = self._positions_among_all(hashes)
        rows = self._rows[positions].astype(np.int64)
        order = np.argsort(rows)
        return rows[order], self._hashes[positions][order]

    def _span(self, hash_: np.uint64) -> tuple[int, int]:
        """Return where a hash begins and ends, reading only blocks that may have it."""
        first = max(int(np.searchsorted(self._fences, hash_, "left")) - 1, 0)
        last = int(np.searchsorted(self._fences, hash_, "right"))
        self._check_blocks(range(first, last))
        start = first * BLOCK_ROWS
        part = self._hashes[start : last * BLOCK_ROWS]
        return start + int(np.searchsorted(part, hash_, "left")), start + int(np.searchsorted(part, hash_, "right"))

    def _positions_among_all(self, hashes: Hashes) -> Integers:
        if not len(hashes):
            return np.zeros(0, np.int64)
        if len(hashes) * 16 < len(self._hashes):
            first = np.searchsorted(self._hashes, hashes, "left")
            counts = np.searchsorted(self._hashes, hashes, "right") - first
            return np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        slots = np.minimum(np.searchsorted(hashes, self._hashes), len(hashes) - 1)
        return np.flatnonzero(hashes[slots] == self._hashes)

    def hashes_by_row(self) -> Hashes:
        """Return the hash of each row, in row order. Raises: CorruptionError."""
        self.check()
        result = np.empty(len(self._hashes), np.uint64)
        result[self._rows] = self._hashes
        return result

    def check(self) -> None:
        """Check all of it. Raises: CorruptionError."""
        self._check_blocks(range(len(self._fences)))

    def _check_blocks(self, blocks: range) -> None:
        part = slice(blocks.start, blocks.stop)
        if self._is_checked[part].all():
            return
        if not np.array_equal(_block_checksums(self._hashes, self._rows, blocks), self._checksums[part]):
            raise self._damaged("wrong checksum")
        self._is_checked[part] = True

    def _damaged(self, how: str) -> CorruptionError:
        return CorruptionError(f"{self._where}: the primary key index is damaged ({how}); restore it, or rebase")


def index_bytes(row_count: int) -> int:
    """Return the size of the index of so many rows."""
    blocks = -(-row_count // BLOCK_ROWS)
    return _HEADER_BYTES + 12 * row_count + 12 * blocks + _CHECKSUM_BYTES


def write_index(root: str, path: str, hashes: Hashes) -> None:
    """Write the index of a file whose rows have these hashes, in row order."""
    order = np.argsort(hashes)
    rising = np.ascontiguousarray(hashes[order], "<u8")
    rows = order.astype("<u4")
    header = MAGIC + len(hashes).to_bytes(8, "little")
    fences = rising[::BLOCK_ROWS].tobytes()
    checksums = _block_checksums(rising, rows, range(-(-len(rows) // BLOCK_ROWS))).astype("<u4").tobytes()
    with open_objects(root).open_writer(path) as file:
        file.write(header)
        file.write(rising.tobytes())
        file.write(rows.tobytes())
        file.write(fences + checksums)
        file.write(zlib.crc32(header + fences + checksums).to_bytes(_CHECKSUM_BYTES, "little"))


def _block_checksums(hashes: Hashes, rows: Rows, blocks: range) -> Rows:
    checksums = np.empty(len(blocks), np.uint32)
    for position, block in enumerate(blocks):
        part = slice(block * BLOCK_ROWS, (block + 1) * BLOCK_ROWS)
        checksums[position] = zlib.crc32(rows[part].data, zlib.crc32(hashes[part].data))
    return checksums


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


def write_vector(root: str, folder: str, dead: BitMap64, began: int) -> DeletionVector:
    """Write a deletion vector under a new name."""
    path = f"{folder}/{new_round_name(began)}.dv"
    data = dead.serialize()
    with open_objects(root).open_writer(path) as file:
        file.write(data)
    return DeletionVector(uri=path, record_count=len(dead), content_length=len(data), checksum=zlib.crc32(data))
