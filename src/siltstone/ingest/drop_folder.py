"""A folder or prefix that files are dropped into: which are there, which have changed, and moving away what was taken."""

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from typing import Protocol

from siltstone.errors import AccessDeniedError, InvalidInputError, NotFoundError, StorageError
from siltstone.objects import Objects, canonical_root, local_folder, open_objects
from siltstone.objects.interface import ObjectInfo

DONE_FOLDER = "done"
REJECTED_FOLDER = "rejected"
_UNFINISHED = (".tmp", ".part", ".crdownload")


class DropFolder(Protocol):
    """Where files arrive; paths are relative to it. `appears_whole` says that a file is never seen half written."""

    address: str
    appears_whole: bool

    def list_files(self, *, recursive: bool) -> list[ObjectInfo]:
        """Return all files, unordered. Raises: NotFoundError where there is no such folder, StorageError."""

    def changed(self, files: Iterable[ObjectInfo]) -> list[str]:
        """Return the paths of those files that are gone, or not what they were. Raises: StorageError."""

    def move(self, file: ObjectInfo, folder: str, suffix: str) -> None:
        """Move a file that is still what it was, to a folder here or elsewhere; one that is not stays.

        Where another file has its name there, `suffix` becomes part of the name. Raises: StorageError.
        """

    def delete(self, file: ObjectInfo) -> None:
        """Delete a file that is still what it was. Raises: StorageError."""


def open_drop_folder(source: str | os.PathLike[str], *, root: str) -> DropFolder:
    """Open the folder or prefix at an address, for a lake with this root. Raises: InvalidInputError."""
    address = canonical_root(source)
    if address == root or address.startswith(f"{root}/"):
        raise InvalidInputError(f"{address}: is inside the lake {root}; drop files into a folder outside of it")
    folder = local_folder(address)
    return _StoreFolder(open_objects(address)) if folder is None else _LocalFolder(str(folder))


def contains_lake(folder: DropFolder, root: str) -> bool:
    """Return whether a lake is somewhere below the folder."""
    return root.startswith(f"{folder.address.rstrip('/')}/")


def file_address(folder: DropFolder, path: str) -> str:
    """Return where a file is."""
    return f"{folder.address.rstrip('/')}/{path}"


def is_passed_over(path: str) -> bool:
    """Return whether a file is hidden, still being written by its name, or one that was moved away after it was taken."""
    parts = path.split("/")
    return (
        any(part.startswith((".", "_")) for part in parts)
        or parts[-1].lower().endswith(_UNFINISHED)
        or (len(parts) > 1 and parts[0] in (DONE_FOLDER, REJECTED_FOLDER))
    )


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return what a pattern such as `*.csv` or `2026/**/*.jsonl` matches: `**/` is any number of folders."""
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise InvalidInputError(f"pattern {pattern!r} must be relative to the folder, e.g. *.jsonl or **/*.csv")
    parts = {"**/": "(?:[^/]+/)*", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*|\?)", pattern)
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces), re.DOTALL)


def _renamed(path: str, suffix: str) -> str:
    stem, extension = os.path.splitext(path)
    return f"{stem}.{suffix}{extension}"


def _copy(chunks: Iterable[bytes], size: int, target: Objects, path: str, suffix: str) -> None:
    """Copy a file; what has its name there, and another size, stays."""
    there = target.info(path)
    target.replace(path if there is None or there.size == size else _renamed(path, suffix), chunks)


def is_same(one: ObjectInfo | None, other: ObjectInfo) -> bool:
    """Return whether two looks at a file show the same content; stores differ in how exactly they give times."""
    return one is not None and (one.path, one.size, one.version) == (other.path, other.size, other.version)


class _LocalFolder:
    """A local folder; links, and what is not a plain file, are passed over."""

    appears_whole = False

    def __init__(self, address: str) -> None:
        self.address = address

    def list_files(self, *, recursive: bool) -> list[ObjectInfo]:
        files: list[ObjectInfo] = []
        pending = [""]
        while pending:
            folder = pending.pop()
            with self._translated(folder), os.scandir(self._full(folder)) as entries:
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file(follow_symlinks=False):
                            files.append(_info(path, entry.stat(follow_symlinks=False)))
                        elif recursive and entry.is_dir(follow_symlinks=False):
                            pending.append(f"{path}/")
        return files

    def changed(self, files: Iterable[ObjectInfo]) -> list[str]:
        return [file.path for file in files if not self._is_same(self._full(file.path), file)]

    def move(self, file: ObjectInfo, folder: str, suffix: str) -> None:
        full = self._full(file.path)
        if not self._is_same(full, file):
            return
        with self._translated(file.path):
            try:
                if "://" in folder:
                    raise OSError(errno.EXDEV, "elsewhere")
                target = os.path.join(self._full(folder), file.path)
                target = _renamed(target, suffix) if os.path.lexists(target) else target
                os.makedirs(os.path.dirname(target), exist_ok=True)
                self._rename(full, target, file)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                chunks = open_objects(self.address).stream(file.path)
                _copy(chunks, file.size, open_objects(self._full(folder)), file.path, suffix)
                self.delete(file)

    def delete(self, file: ObjectInfo) -> None:
        full = self._full(file.path)
        if not self._is_same(full, file):
            return
        with self._translated(file.path):
            # Not in place: what its producer puts there in this moment stays.
            aside = os.path.join(os.path.dirname(full), f".siltstone-{uuid.uuid4().hex}")
            if self._rename(full, aside, file):
                os.unlink(aside)

    def _rename(self, full: str, target: str, file: ObjectInfo) -> bool:
        """Rename a file; False where it is gone, or where another one was there by then, which is put back."""
        try:
            os.rename(full, target)
        except FileNotFoundError:
            return False
        if self._is_same(target, file):
            return True
        with contextlib.suppress(FileExistsError):
            os.link(target, full)
        os.unlink(target)
        return False

    def _is_same(self, full: str, file: ObjectInfo) -> bool:
        try:
            status = os.lstat(full)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(status.st_mode) and is_same(_info(file.path, status), file)

    def _full(self, path: str) -> str:
        return path if "://" in path else os.path.join(self.address, path)

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        where = self._full(path).rstrip("/")
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"{where}: no such folder; create it, or name another one") from error
        except PermissionError as error:
            raise AccessDeniedError(f"{where}: no permission ({error.strerror}); make it accessible") from error
        except OSError as error:
            raise StorageError(f"{where}: {error.strerror or error}") from error


def _info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(path, status.st_size, status.st_mtime_ns // 1_000_000, str(status.st_mtime_ns))


class _StoreFolder:
    """A prefix of an object store, where an object appears whole, or not at all."""

    appears_whole = True

    def __init__(self, objects: Objects) -> None:
        self.address = objects.root
        self._objects = objects

    def list_files(self, *, recursive: bool) -> list[ObjectInfo]:
        return self._objects.list_objects("", recursive=recursive)

    def changed(self, files: Iterable[ObjectInfo]) -> list[str]:
        expected = list(files)
        # One listing is cheaper than a request for each file.
        stored = {file.path: file for file in self.list_files(recursive=any("/" in file.path for file in expected))}
        return [file.path for file in expected if not is_same(stored.get(file.path), file)]

    def move(self, file: ObjectInfo, folder: str, suffix: str) -> None:
        if not is_same(self._objects.info(file.path), file):
            return
        is_elsewhere = "://" in folder or folder.startswith("/")
        target = open_objects(folder) if is_elsewhere else self._objects
        path = file.path if is_elsewhere else f"{folder}/{file.path}"
        with contextlib.suppress(NotFoundError):
            _copy(self._objects.stream(file.path), file.size, target, path, suffix)
            self.delete(file)

    def delete(self, file: ObjectInfo) -> None:
        if is_same(self._objects.info(file.path), file):
            self._objects.delete([file.path])
