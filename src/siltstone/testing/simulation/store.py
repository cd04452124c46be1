"""The store of a simulation: objects in memory with a right clock, and calls that go through a gate."""

import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Protocol, TypeVar, cast

from siltstone.clock import StoreClock
from siltstone.errors import AlreadyExistsError, NotFoundError
from siltstone.model.locators import check_path
from siltstone.objects import ObjectInfo
from siltstone.objects.interface import as_chunks

T = TypeVar("T")


class Gate(Protocol):
    """What every call to the store passes: here it may wait, fail, lose its answer, or find its process dead."""

    def __call__(self, name: str, path: str, do: Callable[[], T]) -> T:
        """Let a call through."""


class ObjectClock(Protocol):
    """What gives objects their time."""

    def now_ms(self) -> int:
        """Return the time of day."""


class SimulatedObjects:
    """Objects in memory. Each object that one call deletes goes by itself: a process may die between two of them."""

    def __init__(
        self, root: str, clock: ObjectClock, gate: Gate, known_clock: Callable[[], StoreClock] | None = None
    ) -> None:
        """Make an empty store. One whose clock is not known to processes is a disk, and has no clock of its own."""
        self.root = root
        self.has_clock = known_clock is not None
        self.changes = 0
        self.contents: dict[str, bytes] = {}
        self._modified_ms: dict[str, int] = {}
        self._clock = clock
        self._gate = gate
        self._known_clock = known_clock

    def put(self, path: str, data: bytes) -> None:
        """Store an object."""
        self.changes += 1
        self.contents[check_path(path)] = data
        self._modified_ms[path] = self._clock.now_ms()

    def remove(self, path: str) -> None:
        """Delete an object, if it is there."""
        self.changes += 1
        self.contents.pop(check_path(path), None)
        self._modified_ms.pop(path, None)

    def damage(self, path: str, data: bytes | None) -> None:
        """Let an object become another one, at its old time, or vanish."""
        if data is None:
            self.remove(path)
        else:
            self.changes += 1
            self.contents[path] = data

    def read(self, path: str) -> bytes:
        """Return the whole object."""
        return self._gate("read", path, lambda: self._content(path))

    def now_ms(self, *, is_asked: bool = False) -> int:
        """Return the time that the process which runs has from the store."""
        return self._clock.now_ms() if self._known_clock is None else self._known_clock().now_ms(is_asked=is_asked)

    def skew_ms(self) -> int | None:
        """Return how far the clock of the process which runs is ahead of the store's time."""
        return None if self._known_clock is None else self._known_clock().skew_ms()

    def read_start(self, path: str, length: int) -> bytes:
        """Return the first bytes of the object."""
        return self._gate("read", path, lambda: self._content(path))[:length]

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the object's bytes."""
        yield self._gate("read", path, lambda: self._content(path))

    def info(self, path: str) -> ObjectInfo | None:
        """Return size and time of one object, or None."""
        return self._gate("info", path, lambda: self._info(path) if path in self.contents else None)

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create the object, if there is none."""
        whole = b"".join(as_chunks(data))

        def put() -> None:
            if path in self.contents:
                raise AlreadyExistsError(f"{self.root}/{path}: exists already")
            self.put(path, whole)

        self._gate("create", path, put)

    def replace(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create or replace the object."""
        whole = b"".join(as_chunks(data))
        self._gate("replace", path, lambda: self.put(path, whole))

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Return the objects in a folder, in no order that anybody may rely on."""
        start = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

        def look() -> list[ObjectInfo]:
            paths = sorted((path for path in self.contents if path.startswith(start)), key=_no_order)
            return [self._info(path) for path in paths if recursive or "/" not in path.removeprefix(start)]

        return self._gate("list", prefix, look)

    def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly in `prefix`."""
        start = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

        def look() -> list[str]:
            below = [path.removeprefix(start) for path in self.contents if path.startswith(start)]
            return list(dict.fromkeys(path.partition("/")[0] for path in below if "/" in path))

        return self._gate("list folders", prefix, look)

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, one after another."""
        for path in paths:
            self._gate("delete", path, lambda path=path: self.remove(path))  # type: ignore[misc]

    def open_reader(self, path: str) -> IO[bytes]:
        """Open a reader of the object as it is now."""
        return io.BytesIO(self._gate("open", path, lambda: self._content(path)))

    def open_writer(self, path: str) -> IO[bytes]:
        """Open a writer of a new object, which is there once it is closed."""
        return cast("IO[bytes]", _Writer(self, path))

    def finish(self, path: str, data: bytes) -> None:
        """Store what was written."""
        self._gate("write", path, lambda: self.put(path, data))

    def _content(self, path: str) -> bytes:
        try:
            return self.contents[check_path(path)]
        except KeyError:
            raise NotFoundError(f"{self.root}/{path}: there is no such object") from None

    def _info(self, path: str) -> ObjectInfo:
        return ObjectInfo(path, len(self.contents[path]), self._modified_ms[path])


def _no_order(path: str) -> int:
    """Return a number by which names are in no order of theirs, but in the same one each time."""
    return zlib.crc32(path.encode())


class _Writer:
    """Collects what is written. No file of Python's own, which would finish the object of a dead process too."""

    def __init__(self, objects: SimulatedObjects, path: str) -> None:
        self.closed = False
        self._objects = objects
        self._path = path
        self._data = bytearray()

    def write(self, data: Any) -> int:
        self._data += memoryview(data).cast("B")
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass

    def tell(self) -> int:
        return len(self._data)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._objects.finish(self._path, bytes(self._data))
