"""Values that a process remembers for as long as there is room: those used last."""

import threading
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values that never change, by their keys, with about how many bytes each takes. Safe for threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._values: dict[K, tuple[int, V]] = {}
        self._bytes = 0

    def get(self, key: K) -> V | None:
        """Return a value, or None."""
        with self._lock:
            kept = self._values.pop(key, None)
            if kept is None:
                return None
            self._values[key] = kept
            return kept[1]

    def keep(self, key: K, value: V, size: int) -> V:
        """Remember a value, and forget others for it; return the one that is remembered, or could not be."""
        with self._lock:
            if key in self._values:
                return self._values[key][1]
            self._values[key] = size, value
            self._bytes += size
            while self._bytes > self._most_bytes:
                self._bytes -= self._values.pop(next(iter(self._values)))[0]
            return value
