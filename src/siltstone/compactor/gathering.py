"""The parts of deltas, gathered by bucket where no shuffle does it: in memory while few, in a temporary file beyond."""

import tempfile
from collections.abc import Iterable

MEMORY_BYTES = 256 << 20


class GatheredParts:
    """Parts by bucket, each taken once; what they need of memory is bounded, but for one bucket's."""

    def __init__(self, parts: Iterable[tuple[int, bytes]] = (), *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes)  # noqa: SIM115 - it goes when nobody holds it
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._size = 0
        for bucket, part in parts:
            self.add(bucket, part)

    def add(self, bucket: int, part: bytes) -> None:
        """Take over a part."""
        self._file.seek(self._size)
        self._file.write(part)
        self._places.setdefault(bucket, []).append((self._size, len(part)))
        self._size += len(part)

    def take(self, bucket: int) -> list[bytes]:
        """Return the parts of a bucket, in the order they came, and forget them."""
        found = []
        for start, length in self._places.pop(bucket, []):
            self._file.seek(start)
            found.append(self._file.read(length))
        return found
