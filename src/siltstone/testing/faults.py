"""Faults between the engine and its store: at the n-th call, fail, lose the answer, or kill the process.

with faults(root, at_call=7, kind="lose") as store:
    table.write(data)
assert store.calls > 7
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Literal, TypeVar, cast

from siltstone.errors import StorageError
from siltstone.log.commit import forget_logs
from siltstone.objects import ObjectInfo, Objects, canonical_root, open_objects, replaced

T = TypeVar("T")
FaultKind = Literal["fail", "lose", "kill", "kill_after", "meet"]
FAULT_KINDS: tuple[FaultKind, ...] = ("fail", "lose", "kill", "kill_after")


class Killed(BaseException):
    """The process died here. No `except Exception` catches it, and nothing reaches the store afterwards."""


class FaultyObjects:
    """A store that counts its calls and, at one of them, misbehaves.

    fail: the call has no effect and raises StorageError.
    lose: the call has its effect, but the answer is a StorageError.
    kill: the process dies before the call. kill_after: it dies after the call.
    meet: no fault; before the call, `act` is called as if it were another process.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        at_call: int | None = None,
        kind: FaultKind = "fail",
        act: Callable[[], object] = lambda: None,
    ) -> None:
        self.root = objects.root
        self.calls = 0
        self.history: list[str] = []
        self._objects = objects
        self._at_call = at_call
        self._kind = kind
        self._act = act
        self._dead = False

    def check_alive(self) -> None:
        """Raise Killed once the process is dead."""
        if self._dead:
            raise Killed("the process died")

    def _call(self, name: str, path: str, do: Callable[[], T]) -> T:
        self.check_alive()
        self.calls += 1
        self.history.append(f"{name} {path}")
        if self.calls != self._at_call:
            return do()
        if self._kind == "meet":
            # Another process has its own view of every log, and leaves ours alone.
            forget_logs(self.root)
            self._act()
            forget_logs(self.root)
            return do()
        if self._kind == "kill":
            self._dead = True
            raise Killed(f"before call {self.calls}: {name} {path}")
        if self._kind == "fail":
            raise StorageError(f"injected failure of call {self.calls}: {name} {path}")
        result = do()
        if self._kind == "kill_after":
            self._dead = True
            raise Killed(f"after call {self.calls}: {name} {path}")
        if isinstance(result, _FaultyWriter):
            result.close()
        raise StorageError(f"injected loss of the answer to call {self.calls}: {name} {path}")

    def now_ms(self, *, is_asked: bool = False) -> int:
        """Return the store's time; that is not counted."""
        return self._objects.now_ms(is_asked=is_asked)

    def skew_ms(self) -> int | None:
        """Return how far this machine's clock is ahead of the store's time; that is not counted."""
        return self._objects.skew_ms()

    def read(self, path: str) -> bytes:
        """Count, then read."""
        return self._call("read", path, lambda: self._objects.read(path))

    def read_start(self, path: str, length: int) -> bytes:
        """Count, then read."""
        return self._call("read start", path, lambda: self._objects.read_start(path, length))

    def stream(self, path: str) -> Iterator[bytes]:
        """Count, then stream."""
        return self._call("stream", path, lambda: self._objects.stream(path))

    def info(self, path: str) -> ObjectInfo | None:
        """Count, then look."""
        return self._call("info", path, lambda: self._objects.info(path))

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Count, then create."""
        self._call("create", path, lambda: self._objects.create(path, data))

    def replace(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Count, then replace."""
        self._call("replace", path, lambda: self._objects.replace(path, data))

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Count, then list."""
        return self._call("list", prefix, lambda: self._objects.list_objects(prefix, recursive=recursive))

    def list_folders(self, prefix: str) -> list[str]:
        """Count, then list."""
        return self._call("list folders", prefix, lambda: self._objects.list_folders(prefix))

    def delete(self, paths: Sequence[str]) -> None:
        """Count, then delete."""
        self._call("delete", ", ".join(paths), lambda: self._objects.delete(paths))

    def open_reader(self, path: str) -> IO[bytes]:
        """Count, then open a reader whose reads count as well."""
        return cast("IO[bytes]", self._call("open reader", path, lambda: _FaultyReader(self, path)))

    def open_writer(self, path: str) -> IO[bytes]:
        """Count, then open a writer whose closing counts as well."""
        return cast("IO[bytes]", self._call("open writer", path, lambda: _FaultyWriter(self, path)))


class _FaultyReader:
    """A reader whose reads go through the counter."""

    def __init__(self, store: FaultyObjects, path: str) -> None:
        self._store = store
        self._path = path
        self._file = store._objects.open_reader(path)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        pass

    def read(self, size: int = -1) -> bytes:
        return self._store._call("read range", self._path, lambda: self._file.read(size))

    def close(self) -> None:
        self._file.close()


class _FaultyWriter:
    """A writer whose closing goes through the counter."""

    def __init__(self, store: FaultyObjects, path: str) -> None:
        self._store = store
        self._path = path
        self._file = store._objects.open_writer(path)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        # Not a call of its own: what is written becomes an object, or not, when the writer is closed.
        self._store.check_alive()
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self._file.tell()

    def __enter__(self) -> "_FaultyWriter":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        if not self._file.closed:
            self._store._call("close", self._path, self._file.close)


@contextlib.contextmanager
def faults(
    root: str,
    *,
    at_call: int | None = None,
    kind: FaultKind = "fail",
    act: Callable[[], object] = lambda: None,
) -> Iterator[FaultyObjects]:
    """Put a faulty store in place of `root`'s for this process; before and after, no state is remembered."""
    address = canonical_root(root)
    store = FaultyObjects(open_objects(address), at_call=at_call, kind=kind, act=act)
    forget_logs(address)
    try:
        with replaced(address, store):
            yield store
    finally:
        forget_logs(address)
