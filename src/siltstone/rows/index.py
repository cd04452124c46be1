"""The primary key index: a file beside each data file, sorted by key hash, from keys to rows.

Layout, little-endian: 8 bytes magic, 8 bytes row count n, n hashes (uint64, rising), n row numbers (uint32). Then, for
each block of 4096 rows, its first hash (uint64) and the CRC-32 of its hashes followed by its row numbers (uint32); last
the CRC-32 of magic, count and these two lists.

A key is found by a few small reads: the lists lead to its block. Whatever is read is checked: the lists when the
index is opened, a block before its first use. So a lookup checks the blocks that may have its key, a merge of
many keys and `fsck` check all of them.
"""

import zlib

import numpy as np
import numpy.typing as npt

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.objects import local_path, open_objects
from siltstone.rows.columns import Integers
from siltstone.rows.hashing import Hashes

MAGIC = b"SILTPKI1"
BLOCK_ROWS = 4096
_HEADER_BYTES = 16
_CHECKSUM_BYTES = 4

Rows = npt.NDArray[np.uint32]


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


class StoredIndex:
    """An index as stored; a local one is mapped, so that only the pages in use are read."""

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
