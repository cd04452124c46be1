"""Looking into many small key indices at once: neighbouring buckets have a file of their own each, and a round asks all."""

from collections.abc import Sequence

import numpy as np

from siltstone.rows.columns import Hashes, Integers
from siltstone.rows.index import Block, Bytes, StoredIndex

Found = tuple[Integers, Integers]
"""Rows, rising, and where in the hashes that were looked for each one's is."""


def find_in_each(indices: Sequence[StoredIndex], hashes: Sequence[Hashes]) -> list[Found]:
    """Return what `StoredIndex.find` returns of each index for its own hashes. Raises: CorruptionError.

    To find a hundred keys in an index takes two dozen steps, each of which costs by the call and not by the key: here they are
    taken once for all indices that are small.
    """
    blocks = [index.only_block(len(own)) if len(own) else None for index, own in zip(indices, hashes, strict=True)]
    small = [place for place, block in enumerate(blocks) if block is not None]
    together = dict(
        zip(small, _find([blocks[place] for place in small], [hashes[place] for place in small]), strict=True)
    )
    return [together.get(place) or index.find(hashes[place]) for place, index in enumerate(indices)]


def _find(blocks: Sequence[Block | None], hashes: Sequence[Hashes]) -> list[Found]:
    known = [block for block in blocks if block is not None]
    if not known:
        return []
    data = np.concatenate([block.data for block in known])
    begins = _starts([len(block.data) for block in known])
    first_cells, cell_counts, low_bits, row_bits = np.array([block.numbers for block in known], np.uint64).T
    low_at, number_at = (np.array([block.lists for block in known]) + begins[:, None]).T * 8
    every = np.concatenate(hashes)
    firsts = _starts([len(own) for own in hashes])
    files = np.repeat(np.arange(len(known)), [len(own) for own in hashes])
    # Those before the first cell become large numbers.
    cells = (every >> low_bits[files]) - first_cells[files]
    inside = np.flatnonzero(cells < cell_counts[files])
    files, cells = files[inside], cells[inside].view(np.int64)
    counts = np.concatenate([block.counts for block in known]).astype(np.int64)
    ranks_before = np.cumsum(counts) - counts
    tables = _starts([len(block.counts) for block in known])
    at = cells + tables[files]
    sizes = counts[at]
    # From here on by the rows of those cells.
    which = np.repeat(np.arange(len(inside)), sizes)
    ranks = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ranks += (ranks_before[at] - ranks_before[tables[files]])[which]
    files = files[which]
    lows = _bits(data, low_at[files] + ranks * low_bits[files].view(np.int64), low_bits[files])
    hits = np.flatnonzero(lows == every[inside[which]] & _masks(low_bits[files]))
    files, places = files[hits], inside[which[hits]]
    rows = _bits(data, number_at[files] + ranks[hits] * row_bits[files].view(np.int64), row_bits[files]).view(np.int64)
    order = np.lexsort((rows, files))
    cuts = np.cumsum(np.bincount(files, minlength=len(known)))[:-1]
    found = list(zip(np.split(rows[order], cuts), np.split((places - firsts[files])[order], cuts), strict=True))
    for block, (own, _) in zip(known, found, strict=True):
        block.check_rows(own)
    return found


def _starts(sizes: Sequence[int]) -> Integers:
    return np.cumsum([0, *sizes[:-1]])


def _masks(widths: Hashes) -> Hashes:
    return (np.uint64(1) << widths) - np.uint64(1)


def _bits(data: Bytes, at: Integers, widths: Hashes) -> Hashes:
    """Return the numbers that begin at some bits. A footer comes after those of each index, so that whole words can be read."""
    words = np.ndarray(len(data) - 7, "<u8", data, 0, 1)
    found: Hashes = words[at >> 3]
    return (found >> (at & 7).view(np.uint64)) & _masks(widths)
