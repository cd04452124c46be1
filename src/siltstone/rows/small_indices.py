"""Looking into many small key indices at once: neighbouring buckets have a file of their own each, and a round asks all."""

from collections.abc import Sequence

import numpy as np

from siltstone.errors import NotFoundError
from siltstone.model.buckets import CompactedFile
from siltstone.objects import open_objects
from siltstone.rows.columns import Flags, Hashes, Integers
from siltstone.rows.index import Bytes, SmallIndex, StoredIndex, parse_small

Found = tuple[Integers, Integers]
"""Rows, rising, and where in the hashes that were looked for each one's is."""
_NOTHING: Found = np.zeros(0, np.int64), np.zeros(0, np.int64)


def find_in_each(root: str, files: Sequence[CompactedFile], hashes: Sequence[Hashes]) -> list[Found]:
    """Return what `StoredIndex.find` returns of the index of each file for its own hashes. Raises: CorruptionError.

    To find a hundred keys in an index takes two dozen steps, each of which costs by the call and not by the key: here they are
    taken once for all indices. One that is not small, or damaged, is looked into by itself, which says what is wrong with it.
    """
    read = {place: _read(root, files[place]) for place, own in enumerate(hashes) if len(own)}
    small = {place: index for place, index in read.items() if index is not None}
    together: dict[int, Found] = {}
    if small:
        found, is_sound = _find([*small.values()], [hashes[place] for place in small])
        together = {place: own for place, own, sound in zip(small, found, is_sound, strict=True) if sound}
    return [
        _NOTHING if place not in read else together.get(place) or _find_alone(root, file, hashes[place])
        for place, file in enumerate(files)
    ]


def _read(root: str, file: CompactedFile) -> SmallIndex | None:
    try:
        data = open_objects(root).read(file["index_uri"])
    except NotFoundError:
        return None
    return parse_small(data, file.stored_rows) if len(data) == file["index_length"] else None


def _find_alone(root: str, file: CompactedFile, hashes: Hashes) -> Found:
    return StoredIndex(root, file["index_uri"], file.stored_rows, file["index_length"]).find(hashes)


def _find(known: Sequence[SmallIndex], hashes: Sequence[Hashes]) -> tuple[list[Found], Flags]:
    """Return what is found in each index, and whether its cells add up and all rows that were found are in its file."""
    data = np.frombuffer(b"".join([index.data for index in known]), np.uint8)
    begins = _starts([len(index.data) for index in known])
    fields = np.array([index[1:] for index in known], np.uint64).T
    row_counts, first_cells, cell_counts, low_bits, row_bits, lows, row_numbers = fields
    low_at, number_at = ((lists.view(np.int64) + begins) * 8 for lists in (lows, row_numbers))
    every = np.concatenate(hashes)
    firsts = _starts([len(own) for own in hashes])
    files = np.repeat(np.arange(len(known)), [len(own) for own in hashes])
    # Those before the first cell become large numbers.
    cells = (every >> low_bits[files]) - first_cells[files]
    inside = np.flatnonzero(cells < cell_counts[files])
    files, cells = files[inside], cells[inside].view(np.int64)
    counts, tables = _counts(data, begins, lows.view(np.int64))
    is_sound = np.add.reduceat(counts, tables) == row_counts.view(np.int64)
    if not is_sound.all():
        # So that no row of theirs is looked for beyond the last one.
        counts *= np.repeat(is_sound, np.diff(tables, append=len(counts)))
    ranks_before = np.cumsum(counts) - counts
    at = cells + tables[files]
    sizes = counts[at]
    # From here on by the rows of those cells.
    which = np.repeat(np.arange(len(inside)), sizes)
    ranks = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ranks += (ranks_before[at] - ranks_before[tables[files]])[which]
    files = files[which]
    own_lows = _bits(data, low_at[files] + ranks * low_bits[files].view(np.int64), low_bits[files])
    hits = np.flatnonzero(own_lows == every[inside[which]] & _masks(low_bits[files]))
    files, places = files[hits], inside[which[hits]]
    numbers = _bits(data, number_at[files] + ranks[hits] * row_bits[files].view(np.int64), row_bits[files])
    is_sound[files[numbers >= row_counts[files]]] = False
    order = np.lexsort((numbers, files))
    rows, places = numbers.view(np.int64)[order], (places - firsts[files])[order]
    ends = np.cumsum(np.bincount(files, minlength=len(known))).tolist()
    return [(rows[start:end], places[start:end]) for start, end in zip([0, *ends], ends, strict=False)], is_sound


def _counts(data: Bytes, begins: Integers, sizes: Integers) -> tuple[Integers, Integers]:
    """Return how many rows each cell of each index has, two in a byte, and where those of each index begin."""
    starts = _starts(sizes.tolist())
    packed = data[np.arange(int(sizes.sum())) + np.repeat(begins - starts, sizes)]
    counts = np.empty(2 * len(packed), np.int64)
    counts[::2] = packed & 15
    counts[1::2] = packed >> 4
    return counts, 2 * starts


def _starts(sizes: Sequence[int]) -> Integers:
    return np.cumsum([0, *sizes[:-1]])


def _masks(widths: Hashes) -> Hashes:
    return (np.uint64(1) << widths) - np.uint64(1)


def _bits(data: Bytes, at: Integers, widths: Hashes) -> Hashes:
    """Return the numbers that begin at some bits. A footer comes after those of each index, so that whole words can be read."""
    words = np.ndarray(len(data) - 7, "<u8", data, 0, 1)
    found: Hashes = words[at >> 3]
    return (found >> (at & 7).view(np.uint64)) & _masks(widths)
