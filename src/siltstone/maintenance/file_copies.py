"""Copying objects from one store to another: each whole or not at all, with the checksum of what was copied."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from siltstone.errors import AlreadyExistsError, CorruptionError
from siltstone.objects import LocalObjects, Objects, StoreObjects

T = TypeVar("T")
R = TypeVar("R")
_THREADS = 8

Progress = Callable[[str], None]
"""Called with what is under way."""


class Copied(NamedTuple):
    """How many bytes an object has, and the CRC-32 of them."""

    size: int
    checksum: int


def copy_object(source: Objects, path: str, target: Objects, stored: str) -> Copied:
    """Copy an object, unless it is there; return what there is now. Raises: NotFoundError, StorageError."""
    seen: list[Copied] = []
    try:
        target.create(stored, _counted(source.stream(path), seen))
    except AlreadyExistsError:
        # Whoever was faster copied the same.
        return measure(target, stored)
    return seen[0]


def link_object(objects: Objects, path: str, new_path: str) -> None:
    """Let an object have a second name: on local disk without a copy of it, elsewhere the store makes one. Raises: NotFoundError."""
    if isinstance(objects, LocalObjects) and objects.link(new_path, objects.locate(path)):
        return
    if isinstance(objects, StoreObjects):
        objects.duplicate(path, new_path)
        return
    objects.create(new_path, objects.stream(path))


def measure(objects: Objects, path: str) -> Copied:
    """Read an object, and return its size and checksum. Raises: NotFoundError."""
    seen: list[Copied] = []
    for _ in _counted(objects.stream(path), seen):
        pass
    return seen[0]


def _counted(chunks: Iterable[bytes], seen: list[Copied]) -> Iterator[bytes]:
    """Yield chunks; when all are through, say how many bytes they had."""
    size = checksum = 0
    for chunk in chunks:
        size += len(chunk)
        checksum = zlib.crc32(chunk, checksum)
        yield chunk
    seen[:] = [Copied(size, checksum)]


def check_copy(objects: Objects, path: str, found: Copied, expected: Copied) -> None:
    """Refuse an object that is another one than it was. Raises: CorruptionError."""
    if found != expected:
        raise CorruptionError(
            f"{objects.root}/{path}: has {found.size} bytes with checksum {found.checksum:08x} instead of {expected.size} "
            f"with {expected.checksum:08x}; it is damaged, take another backup"
        )


def for_each(items: Sequence[T], work: Callable[[T], R], *stores: Objects) -> list[R]:
    """Call a function with each of some items, several at a time; stores that stand in for others get one after another."""
    if len(items) < 2 or not all(isinstance(store, LocalObjects | StoreObjects) for store in stores):
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
        return list(pool.map(work, items))
