"""What a store of objects is: the protocol, and the parts that every implementation shares."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple, Protocol

from siltstone.model.locators import check_path

CHUNK_BYTES = 4 << 20


class ObjectInfo(NamedTuple):
    """One listed object; `version` changes with its content: the ETag, or the time on the disk in nanoseconds."""

    path: str
    size: int
    modified_ms: int
    version: str = ""


class Objects(Protocol):
    """A flat set of immutable objects under `root`, addressed by relative paths with `/`."""

    @property
    def root(self) -> str:
        """The canonical address everything lives under."""

    def now_ms(self, *, is_asked: bool = False) -> int:
        """Return the time in milliseconds since 1970, the store's own where it has one.

        A machine that slept is behind by as much, for a while, unless the store `is_asked` again.
        """

    def skew_ms(self) -> int | None:
        """Return how far this machine's clock is ahead of the store's time, as last measured; negative if behind.

        None where the store has no clock of its own. No request is made while `now_ms` would not make any.
        """

    def read(self, path: str) -> bytes:
        """Return the whole object. Raises: NotFoundError."""

    def read_start(self, path: str, length: int) -> bytes:
        """Return the first bytes of the object, or all of a shorter one. Raises: NotFoundError."""

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the object's bytes in chunks of a few megabytes. Raises: NotFoundError."""

    def info(self, path: str) -> ObjectInfo | None:
        """Return size and time of one object, or None."""

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create the object whole and durable, or not at all. Raises: AlreadyExistsError."""

    def replace(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create or atomically replace the object; only for what nobody else writes."""

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Return the objects in the folder `prefix`, unordered; empty if the folder does not exist."""

    def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly in `prefix`."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; it is not an error if one is gone already."""

    def open_reader(self, path: str) -> IO[bytes]:
        """Open a seekable reader. Raises: NotFoundError."""

    def open_writer(self, path: str) -> IO[bytes]:
        """Open a writer of a new object, durable once closed; its name must be unique."""


def check_prefix(prefix: str) -> str:
    """Return the path of a folder to list, without slashes around it; empty for the root. Raises: InvalidInputError."""
    folder = prefix.strip("/")
    return check_path(folder) if folder else ""


def as_chunks(data: bytes | Iterable[bytes]) -> Iterable[bytes]:
    """Return whole bytes as one chunk."""
    return (data,) if isinstance(data, bytes) else data


class NewObject(io.RawIOBase):
    """A writer that knows its position, and that finishes the object when closed."""

    def __init__(self, write: Callable[[bytes], object], finish: Callable[[], None]) -> None:
        self._write = write
        self._finish = finish
        self._position = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Hand over a piece."""
        size = memoryview(data).nbytes
        self._write(data)
        self._position += size
        return size

    def tell(self) -> int:
        """Return how much was written."""
        return self._position

    def close(self) -> None:
        """Finish the object, once."""
        if not self.closed:
            super().close()
            self._finish()
