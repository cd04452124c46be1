"""The primary key index: a file beside each data file that leads from key hashes to rows.

Layout, little-endian. Hashes are sorted and fall into cells: a hash is the number of its cell followed by `low_bits` more
bits. 2048 cells in a row are a block: how many rows each of its cells has (4, 8, 16 or 32 bits each), then of each row the
low bits of its hash, then of each row its number, both packed without gaps, and filled up with zeros to a multiple of 8 rows.
After the blocks comes the footer: how many rows each block has, the CRC-32 of each block (4 bytes each); row count, first
cell, number of cells (8 bytes each), `low_bits`, bits of a count (1 byte each), two zeros; the CRC-32 of the footer up to
here; 8 bytes magic.

So a hash says in which cell it is, and a cell has one or two rows. An index takes about 67 bits a row less the depth of its
bucket; with hashes kept whole, 65 less the depth is the least there is.
"""

import mmap
import operator
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.objects import local_path, open_objects
from siltstone.rows.columns import Flags, Hashes, Integers, rising_order

MAGIC = b"SILTPKI2"
BLOCK_CELLS = 2048
_TRAILER = struct.Struct("<QQQBBxx")
_CHECKSUM = struct.Struct("<I")
_CHECKSUM_BYTES = _CHECKSUM.size
_TRAILER_BYTES = _TRAILER.size + _CHECKSUM_BYTES + len(MAGIC)
_BYTES_PER_BLOCK = 8
_CELL_ROWS = 2
# Behind up to 7 bits of others, so many are still within one word.
_MAX_LOW_BITS = 56
_TAIL_BYTES = 64 << 10
# To read so much takes less time than to map it.
_SMALL_BYTES = 64 << 10
# What a store sends in the time that one more request takes to begin.
_JOINED_BYTES = 1 << 20
_ROWS_PER_BLOCK = 3 * BLOCK_CELLS // 2
_COUNT_BITS = (4, 8, 16, 32)
_TURNED_ROWS = 64

_PLAIN_MAGIC = b"SILTPKI1"
_PLAIN_BLOCK_ROWS = 4096
_PLAIN_HEADER_BYTES = 16

Bytes = npt.NDArray[np.uint8]


class _DamageError(Exception):
    """What is wrong with an index; whoever knows where it is reports it."""


class StoredIndex:
    """An index being read. Nothing is read before something is looked for, and then no more than it takes. Safe for threads.

    Whatever is read is checked: the footer first, a block before its first use. So a lookup checks the blocks that may
    have its key, a merge of many keys and `fsck` check all of them. A local index is mapped, so that only the pages in
    use are read. From a store come the footer and then the blocks that are wanted; all of it at once where more than a third is.
    """

    def __init__(self, root: str, path: str, row_count: int, length: int | None = None) -> None:
        self._root = root
        self._path = path
        self._row_count = row_count
        self._length = length
        self._lock = threading.Lock()
        self._layout: _Layout | None = None
        self._data: Bytes = np.zeros(0, np.uint8)
        self._reader: IO[bytes] | None = None
        # From here on, all is there.
        self._end = 0
        self._is_read: Flags = np.zeros(0, np.bool_)
        self._is_checked: Flags = np.zeros(0, np.bool_)

    def find(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """Return the rows, rising, whose hash is among `hashes`, which has no duplicates; and where in `hashes` it is.

        Raises: CorruptionError.
        """
        if not len(hashes):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        with self._lock:
            return self._find(hashes)

    def _find(self, hashes: Hashes) -> tuple[Integers, Integers]:
        try:
            layout = self._open(len(hashes))
            # Those before the first cell become large numbers.
            cells = (hashes >> np.uint64(layout.low_bits)) - np.uint64(layout.first_cell)
            inside = np.flatnonzero(cells < np.uint64(layout.cell_count))
            found = self._read_cells(layout, cells[inside].view(np.int64))
            lows = np.repeat(hashes[inside] & _mask(layout.low_bits), found.sizes)
            hits = np.flatnonzero(self._bits(found.spread(found.lows, layout.low_bits), layout.low_bits) == lows)
            which = np.repeat(np.arange(len(inside)), found.sizes)[hits]
            ranks = hits - (np.cumsum(found.sizes) - found.sizes)[which]
            rows = self._rows(layout, found.numbers[which] + ranks * layout.row_bits)
        except _DamageError as error:
            raise self._damaged(str(error)) from error
        order = np.argsort(rows)
        return rows[order], inside[which[order]]

    def hashes_by_row(self) -> Hashes:
        """Return the hash of each row, in row order. Raises: CorruptionError."""
        with self._lock:
            return self._hashes_by_row()

    def _hashes_by_row(self) -> Hashes:
        result = np.zeros(self._row_count, np.uint64)
        try:
            layout = self._open(self._row_count)
            found = self._read_cells(layout, np.arange(layout.cell_count))
            cells = np.arange(layout.cell_count).view(np.uint64) + np.uint64(layout.first_cell)
            highs = np.repeat(cells << np.uint64(layout.low_bits), found.sizes)
            rows = self._rows(layout, found.spread(found.numbers, layout.row_bits))
            result[rows] = highs | self._bits(found.spread(found.lows, layout.low_bits), layout.low_bits)
        except _DamageError as error:
            raise self._damaged(str(error)) from error
        return result

    def check(self) -> None:
        """Check all of it. Raises: CorruptionError."""
        self.hashes_by_row()

    def _open(self, wanted: int) -> "_Layout":
        """Read the footer, unless it is there; all of the index where so many hashes are likely to be in most blocks."""
        if self._layout is not None:
            return self._layout
        try:
            local = local_path(self._root, self._path)
            if local is not None:
                with open(local, "rb", buffering=0) as file:
                    is_small = self._length is not None and self._length <= _SMALL_BYTES
                    data = file.read() if is_small else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    self._data = np.frombuffer(data, np.uint8)
            elif wanted * 3 * _ROWS_PER_BLOCK > self._row_count:
                self._data = np.frombuffer(open_objects(self._root).read(self._path), np.uint8)
            else:
                self._open_reader()
        except (FileNotFoundError, NotFoundError) as error:
            raise CorruptionError(
                f"{self._root}/{self._path}: the primary key index is missing; rebase the partition"
            ) from error
        except (ValueError, OSError) as error:
            raise _DamageError(str(error)) from error
        if self._length not in (None, len(self._data)):
            raise _DamageError(f"{len(self._data)} bytes instead of {self._length}")
        if self._data[-len(MAGIC) :].tobytes() != MAGIC:
            self._fill(0, len(self._data))
            self._reader = None
            self._data = np.frombuffer(_encode(*_read_plain(self._data, self._row_count)), np.uint8)
        start = _footer_start(self._data)
        self._fill(start, len(self._data))
        layout = _parse_footer(self._data, start, self._row_count)
        self._is_read = layout.starts[:-1] >= self._end
        self._is_checked = np.zeros(len(layout.rows), np.bool_)
        self._layout = layout
        return layout

    def _open_reader(self) -> None:
        """Open a reader, which brings the end of the index along. What is not read is not there: it takes no memory."""
        reader = open_objects(self._root).open_reader(self._path)
        self._data = np.zeros(reader.seek(0, 2), np.uint8)
        self._reader = reader
        self._end = len(self._data)
        self._fill(max(self._end - _TAIL_BYTES, 0), self._end)

    def _fill(self, start: int, stop: int) -> None:
        """Read some bytes, unless they are there."""
        if self._reader is None or start >= self._end:
            return
        self._reader.seek(start)
        part = self._reader.read(stop - start)
        if len(part) != stop - start:
            raise _DamageError(f"{start + len(part)} bytes instead of {len(self._data)}")
        self._data[start:stop] = np.frombuffer(part, np.uint8)
        if stop >= self._end:
            self._end = start

    def _read_blocks(self, layout: "_Layout", blocks: Integers) -> None:
        """Read those blocks that are not there, and check those that are not checked."""
        missing = blocks[~self._is_read[blocks]]
        if len(missing) * 3 > len(layout.rows):
            missing = np.flatnonzero(~self._is_read)
        for start, stop in layout.joined(missing):
            self._fill(start, stop)
        self._is_read[missing] = True
        for block in blocks[~self._is_checked[blocks]].tolist():
            if zlib.crc32(self._data[layout.starts[block] : layout.starts[block + 1]].data) != layout.checksums[block]:
                raise _DamageError("wrong checksum")
        self._is_checked[blocks] = True

    def _read_cells(self, layout: "_Layout", cells: Integers) -> "_Cells":
        """Return where the rows of some cells are."""
        block_of = cells // BLOCK_CELLS
        blocks = np.flatnonzero(np.bincount(block_of, minlength=len(layout.rows)))
        if not len(blocks):
            return _Cells(cells, cells, cells)
        self._read_blocks(layout, blocks)
        spans = zip(layout.starts[blocks].tolist(), layout.lows[blocks].tolist(), strict=True)
        counts = _unpacked_counts(np.concatenate([self._data[start:stop] for start, stop in spans]), layout.count_bits)
        before = np.cumsum(counts, dtype=np.int64)
        total = int(before[-1])
        before -= counts
        firsts = np.arange(len(blocks)) * BLOCK_CELLS
        if not np.array_equal(np.diff(before[firsts], append=total), layout.rows[blocks]):
            raise _DamageError("cells do not add up")
        # By block: where its cells are among those read, and where its lists would begin if all rows read were in them.
        shifts, lows, numbers = np.zeros((3, len(layout.rows)), np.int64)
        shifts[blocks] = firsts - blocks * BLOCK_CELLS
        lows[blocks] = layout.lows[blocks] * 8 - before[firsts] * layout.low_bits
        numbers[blocks] = layout.numbers[blocks] * 8 - before[firsts] * layout.row_bits
        at = cells + shifts[block_of]
        ranks = before[at]
        return _Cells(
            counts[at].astype(np.int64),
            lows[block_of] + ranks * layout.low_bits,
            numbers[block_of] + ranks * layout.row_bits,
        )

    def _rows(self, layout: "_Layout", at: Integers) -> Integers:
        rows = self._bits(at, layout.row_bits).view(np.int64)
        if rows.max(initial=-1) >= self._row_count:
            raise _DamageError("a row that is not in the file")
        return rows

    def _bits(self, at: Integers, width: int) -> Hashes:
        """Return the numbers that begin at some bits. A footer comes after all of them, so that whole words can be read."""
        words = np.ndarray(len(self._data) - 7, "<u8", self._data, 0, 1)
        found: Hashes = words[at >> 3]
        found >>= (at & 7).view(np.uint64)
        found &= _mask(width)
        return found

    def _damaged(self, how: str) -> CorruptionError:
        return CorruptionError(
            f"{self._root}/{self._path}: the primary key index is damaged ({how}); restore it, or rebase"
        )


@dataclass(frozen=True)
class _Cells:
    """How many rows each of some cells has, and at which bits its lows and its row numbers begin."""

    sizes: Integers
    lows: Integers
    numbers: Integers

    def spread(self, firsts: Integers, step: int) -> Integers:
        """Return the bit of each row, given that of each cell's first one."""
        ends = np.cumsum(self.sizes)
        starts = np.repeat(firsts - (ends - self.sizes) * step, self.sizes)
        starts += np.arange(0, len(starts) * step, step) if step else 0
        return starts


@dataclass(frozen=True)
class _Layout:
    """Where things are in an index; `starts`, `lows` and `numbers` are where blocks and their two lists begin."""

    row_count: int
    first_cell: int
    cell_count: int
    low_bits: int
    count_bits: int
    rows: Integers
    checksums: Integers
    starts: Integers
    lows: Integers
    numbers: Integers

    @property
    def row_bits(self) -> int:
        """Bits of a row number."""
        return _row_bits(self.row_count)

    def joined(self, blocks: Integers) -> Iterator[tuple[int, int]]:
        """Yield from where to where to read for some blocks, with what lies between them where that is little."""
        if not len(blocks):
            return
        starts, stops = self.starts[blocks], self.starts[blocks + 1]
        cuts = np.flatnonzero(starts[1:] - stops[:-1] > _JOINED_BYTES)
        yield from zip(starts[[0, *(cuts + 1)]].tolist(), stops[[*cuts, -1]].tolist(), strict=True)


def _lay_out(
    row_count: int,
    first_cell: int,
    cell_count: int,
    low_bits: int,
    count_bits: int,
    rows: Integers,
    checksums: Integers,
) -> _Layout:
    cells = np.full(len(rows), BLOCK_CELLS)
    cells[-1:] = cell_count - BLOCK_CELLS * (len(rows) - 1)
    eighths = (rows + 7) // 8
    counts = (cells * count_bits + 7) // 8
    starts = np.concatenate([[0], np.cumsum(counts + eighths * (low_bits + _row_bits(row_count)))])
    lows = starts[:-1] + counts
    numbers = lows + eighths * low_bits
    return _Layout(row_count, first_cell, cell_count, low_bits, count_bits, rows, checksums, starts, lows, numbers)


def _footer_start(data: Bytes) -> int:
    if len(data) < _TRAILER_BYTES:
        raise _DamageError(f"only {len(data)} bytes")
    cell_count = _TRAILER.unpack_from(data.data, len(data) - _TRAILER_BYTES)[2]
    start = len(data) - _TRAILER_BYTES - _BYTES_PER_BLOCK * -(-cell_count // BLOCK_CELLS)
    if start < 0:
        raise _DamageError("a footer of another index")
    return int(start)


def _parse_footer(data: Bytes, start: int, row_count: int) -> _Layout:
    footer = data[start : -_CHECKSUM_BYTES - len(MAGIC)].tobytes()
    checksum = data[-_CHECKSUM_BYTES - len(MAGIC) :][:_CHECKSUM_BYTES].tobytes()
    if zlib.crc32(footer) != int.from_bytes(checksum, "little"):
        raise _DamageError("wrong checksum")
    found, first_cell, cell_count, low_bits, count_bits = _TRAILER.unpack(footer[-_TRAILER.size :])
    if found != row_count:
        raise _DamageError(f"{found} rows instead of {row_count}")
    rows, checksums = np.frombuffer(footer[: -_TRAILER.size], "<u4").astype(np.int64).reshape(2, -1)
    layout = _lay_out(row_count, first_cell, cell_count, low_bits, count_bits, rows, checksums)
    is_possible = low_bits <= _MAX_LOW_BITS and count_bits in _COUNT_BITS and int(rows.sum()) == row_count
    if not is_possible or int(layout.starts[-1]) != start:
        raise _DamageError("a footer of another index")
    return layout


def write_index(
    root: str, path: str, hashes: Hashes, close: Callable[[IO[bytes]], object] = operator.methodcaller("close")
) -> int:
    """Write the index of a file whose rows have these hashes, in row order; return how many bytes it has.

    It is there once its writer is closed, which is handed to `close`.
    """
    order = rising_order(hashes)
    data = _encode(hashes[order], order)
    writer = open_objects(root).open_writer(path)
    writer.write(data)
    close(writer)
    return len(data)


def _encode(hashes: Hashes, numbers: Integers) -> bytes:
    """Return the bytes of an index, given sorted hashes and the number of each one's row."""
    count = len(hashes)
    low_bits, first_cell, cell_count = _choose_cells(hashes)
    cells = (hashes >> np.uint64(low_bits)) - np.uint64(first_cell)
    counts = np.bincount(cells.view(np.int64), minlength=cell_count)
    count_bits = next(bits for bits in _COUNT_BITS if counts.max(initial=0) < 1 << bits)
    rows = np.add.reduceat(counts, np.arange(0, cell_count, BLOCK_CELLS)) if count else counts
    # Each block's rows begin with a byte of their own.
    filled = (rows + 7) // 8 * 8
    places = np.arange(count) + np.repeat(np.cumsum(filled - rows) - filled + rows, rows)
    total = int(filled.sum())
    lists = [
        _packed(hashes & _mask(low_bits), places, total, low_bits),
        _packed(numbers.view(np.uint64), places, total, _row_bits(count)),
    ]
    table = _packed_counts(counts, count_bits)
    blocks = []
    for block, stop in enumerate(np.cumsum(filled // 8).tolist()):
        start = stop - int(filled[block]) // 8
        own = slice(block * BLOCK_CELLS * count_bits // 8, (block + 1) * BLOCK_CELLS * count_bits // 8)
        packed = (
            each[start * width : stop * width] for each, width in zip(lists, (low_bits, _row_bits(count)), strict=True)
        )
        blocks.append(b"".join([table[own], *packed]))
    checksums = np.array([zlib.crc32(block) for block in blocks], "<u4")
    trailer = _TRAILER.pack(count, first_cell, cell_count, low_bits, count_bits)
    footer = rows.astype("<u4").tobytes() + checksums.tobytes() + trailer
    return b"".join([*blocks, footer, zlib.crc32(footer).to_bytes(_CHECKSUM_BYTES, "little"), MAGIC])


def _choose_cells(hashes: Hashes) -> tuple[int, int, int]:
    """Return how many bits of a hash do not tell its cell, the first cell, and how many there are: one for 1 to 2 rows."""
    if not len(hashes):
        return 0, 0, 0
    first, last = int(hashes[0]), int(hashes[-1])
    for low_bits in range(_MAX_LOW_BITS, -1, -1):
        cells = (last >> low_bits) - (first >> low_bits) + 1
        if cells * _CELL_ROWS >= len(hashes) or not low_bits:
            break
    return low_bits, first >> low_bits, cells


def _packed(values: Hashes, places: Integers, total: int, width: int) -> bytes:
    """Return numbers of `width` bits at their places among `total`, without gaps: 64 of them are `width` words."""
    spread = np.zeros((-(-total // 64), 64), np.uint64)
    spread.reshape(-1)[places] = values
    columns = np.empty(spread.shape[::-1], np.uint64)
    # Turned in pieces that fit into the processor's nearest memory.
    for start in range(0, len(spread), _TURNED_ROWS):
        columns[:, start : start + _TURNED_ROWS] = spread[start : start + _TURNED_ROWS].T
    words = np.zeros((width, columns.shape[1]), np.uint64)
    for place, column in enumerate(columns) if width else ():
        word, shift = divmod(place * width, 64)
        words[word] |= column << np.uint64(shift)
        if shift + width > 64:
            words[word + 1] |= column >> np.uint64(64 - shift)
    return words.T.astype("<u8").tobytes()


def _packed_counts(counts: Integers, bits: int) -> bytes:
    if bits >= 8:
        return counts.astype(f"<u{bits // 8}").tobytes()
    pairs = np.append(counts, np.zeros(len(counts) % 2, np.int64)).astype(np.uint8).reshape(-1, 2)
    return (pairs[:, 0] | pairs[:, 1] << 4).tobytes()


def _unpacked_counts(data: Bytes, bits: int) -> npt.NDArray[np.unsignedinteger]:
    if bits >= 8:
        return data.view(f"<u{bits // 8}")
    counts = np.empty(2 * len(data), np.uint8)
    counts[::2] = data & 15
    counts[1::2] = data >> 4
    return counts


def _row_bits(row_count: int) -> int:
    return max(row_count - 1, 0).bit_length()


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


def plain_index_bytes(row_count: int) -> int:
    """Return the size of an index in the format in which that follows from the number of rows: it is read, not written."""
    blocks = -(-row_count // _PLAIN_BLOCK_ROWS)
    return _PLAIN_HEADER_BYTES + 12 * row_count + 12 * blocks + _CHECKSUM_BYTES


def _read_plain(data: Bytes, row_count: int) -> tuple[Hashes, Integers]:
    """Return sorted hashes and the rows they are of from an index in which they are not packed.

    That is 8 bytes magic, 8 bytes row count, the hashes (8 bytes each), the rows (4 bytes each). Then, for each block of
    4096 rows, its first hash (8 bytes) and the CRC-32 of its hashes followed by its rows (4 bytes); last the CRC-32 of
    magic, count and these two lists.
    """
    if len(data) != plain_index_bytes(row_count):
        raise _DamageError(f"{len(data)} bytes")
    split = _PLAIN_HEADER_BYTES + 8 * row_count
    end = split + 4 * row_count
    header, lists = data[:_PLAIN_HEADER_BYTES].tobytes(), data[end:-_CHECKSUM_BYTES].tobytes()
    if header != _PLAIN_MAGIC + row_count.to_bytes(8, "little"):
        raise _DamageError("another header")
    if zlib.crc32(header + lists) != int.from_bytes(data[-_CHECKSUM_BYTES:].tobytes(), "little"):
        raise _DamageError("wrong checksum")
    hashes, rows = data[_PLAIN_HEADER_BYTES:split], data[split:end]
    blocks = range(-(-row_count // _PLAIN_BLOCK_ROWS))
    for block, checksum in zip(blocks, np.frombuffer(lists, "<u4", offset=8 * len(blocks)).tolist(), strict=True):
        first, last = block * _PLAIN_BLOCK_ROWS, (block + 1) * _PLAIN_BLOCK_ROWS
        if zlib.crc32(rows[4 * first : 4 * last].data, zlib.crc32(hashes[8 * first : 8 * last].data)) != checksum:
            raise _DamageError("wrong checksum")
    return hashes.view("<u8"), rows.view("<u4").astype(np.int64)
