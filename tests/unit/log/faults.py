"""A store that does as it is told, around a real one."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from siltstone.errors import StorageError
from siltstone.objects import ObjectInfo, Objects


class FaultyObjects:
    """Passes on to `inner`; counts opens; fails or lies where a test says so."""

    def __init__(self, inner: Objects) -> None:
        self.inner = inner
        self.opened: list[str] = []
        self.listings: list[list[ObjectInfo]] = []
        self.fail_after_create: Callable[[str], bool] = lambda path: False
        self.fail_before_create: Callable[[str], bool] = lambda path: False
        self.before_create: Callable[[str], object] = lambda path: None
        self.before_publish: Callable[[str], object] = lambda path: None
        self.after_create: Callable[[str], object] = lambda path: None
        self.fail_list = False
        self.fail_read: Callable[[str], bool] = lambda path: False
        self.fail_delete = False

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Give the listings prepared, then real ones."""
        if self.fail_list:
            raise StorageError(f"{prefix}: no answer")
        return self.listings.pop(0) if self.listings else self.inner.list_objects(prefix, recursive=recursive)

    def stream(self, path: str) -> Iterator[bytes]:
        self.opened.append(path)
        if self.fail_read(path):
            raise StorageError(f"{path}: no answer")
        return self.inner.stream(path)

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        if self.fail_before_create(path):
            raise StorageError(f"{path}: no answer")
        self.before_create(path)
        whole = data if isinstance(data, bytes) else b"".join(data)
        self.before_publish(path)
        self.inner.create(path, whole)
        self.after_create(path)
        if self.fail_after_create(path):
            raise StorageError(f"{path}: no answer")

    def delete(self, paths: Sequence[str]) -> None:
        if self.fail_delete:
            raise StorageError("no answer")
        self.inner.delete(paths)
