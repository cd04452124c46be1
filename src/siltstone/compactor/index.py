"""The primary key index: a file beside each data file, sorted by key hash, that tells the row of a key.

Layout: 8 bytes magic, 8 bytes row count n, n hashes (uint64, rising), n row numbers (uint32); little-endian.
A key is found by a few small reads: binary search on the hashes, then one row number.
"""

import numpy as np
import numpy.typing as npt

from siltstone.compactor.columns import Integers
from siltstone.compactor.hashing import Hashes
from siltstone.errors import CorruptionError, NotFoundError
from siltstone.objects import local_folder, open_objects

MAGIC = b"SILTPKI1"
_HEADER_BYTES = 16


def write_index(root: str, path: str, hashes: Hashes) -> None:
    """Write the index of a file whose rows have these hashes, in row order."""
    order = np.argsort(hashes)
    header = MAGIC + len(hashes).to_bytes(8, "little")
    with open_objects(root).open_writer(path) as file:
        file.write(header)
        file.write(np.ascontiguousarray(hashes[order], "<u8").tobytes())
        file.write(order.astype("<u4").tobytes())


class StoredIndex:
    """An index as stored; a local one is mapped, so that only the pages looked at are read."""

    def __init__(self, root: str, path: str, row_count: int) -> None:
        folder = local_folder(root)
        try:
            if folder is None:
                data: npt.NDArray[np.uint8] = np.frombuffer(open_objects(root).read(path), np.uint8)
            else:
                data = np.memmap(folder / path, np.uint8, "r")
        except (FileNotFoundError, NotFoundError) as error:
            raise CorruptionError(f"{root}/{path}: the primary key index is missing; rebase the partition") from error
        except (ValueError, OSError) as error:
            raise CorruptionError(f"{root}/{path}: the primary key index is damaged ({error}); rebase") from error
        split = _HEADER_BYTES + 8 * row_count
        count = int.from_bytes(bytes(data[8:_HEADER_BYTES]), "little")
        if bytes(data[:8]) != MAGIC or count != row_count or len(data) != split + 4 * row_count:
            raise CorruptionError(f"{root}/{path}: the primary key index is damaged; rebase the partition")
        self.hashes: Hashes = data[_HEADER_BYTES:split].view("<u8")
        self.rows: npt.NDArray[np.uint32] = data[split:].view("<u4")

    def find(self, wanted: Hashes) -> tuple[Integers, Hashes]:
        """Return the rows, rising, whose hash is among `wanted`, which is sorted and has no doubles; and their hashes."""
        if len(wanted) * 16 < len(self.hashes):
            first = np.searchsorted(self.hashes, wanted, "left")
            last = np.searchsorted(self.hashes, wanted, "right")
            spans = [np.arange(start, stop) for start, stop in zip(first, last, strict=True) if stop > start]
            places = np.concatenate(spans) if spans else np.zeros(0, np.int64)
        else:
            slots = np.minimum(np.searchsorted(wanted, self.hashes), max(len(wanted) - 1, 0))
            places = np.flatnonzero(wanted[slots] == self.hashes) if len(wanted) else np.zeros(0, np.int64)
        rows = self.rows[places].astype(np.int64)
        order = np.argsort(rows)
        return rows[order], self.hashes[places][order]

    def hashes_by_row(self) -> Hashes:
        """Return the hash of each row, in row order."""
        result = np.empty(len(self.hashes), np.uint64)
        result[self.rows] = self.hashes
        return result
