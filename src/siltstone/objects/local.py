"""Objects in a local folder: what was acknowledged is on disk (written, synced, linked, directory synced)."""

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from siltstone import clock
from siltstone.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CorruptionError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from siltstone.model.locators import check_path
from siltstone.objects.interface import CHUNK_BYTES, NewObject, ObjectInfo, as_chunks, check_prefix

OWN_FOLDER = ".siltstone"
"""What is in here is not listed."""
_PLAIN_FOLDERS = 10_000


class LocalObjects:
    """Objects in a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = str(folder)
        # Folders to which no link leads. They are not checked each time, which takes longer than reading a small file.
        self._plain_folders: set[str] = set()

    def __repr__(self) -> str:
        return f"LocalObjects({self.root!r})"

    def now_ms(self, *, is_asked: bool = False) -> int:
        """Return the time of this machine."""
        return clock.now_ms()

    def skew_ms(self) -> None:
        """Return None: the disk has no clock of its own."""

    def locate(self, path: str) -> str:
        """Return where an object is on the disk. Raises: InvalidInputError, CorruptionError where it leads out of the root."""
        full = f"{self.root}/{check_path(path)}"
        self._refuse_way_out(full)
        return full

    def _locate_name(self, path: str) -> str:
        """Return where a name is that is made or removed: of itself, it may be a link, since that is not followed."""
        full = f"{self.root}/{check_path(path)}"
        self._refuse_way_out(os.path.dirname(full))
        return full

    def _refuse_way_out(self, full: str) -> None:
        """Refuse what leads out of the root through a symbolic link: what lies there is not of this lake."""
        parent = full.rpartition("/")[0]
        end = len(parent) if self._is_in_plain_folder(full) else len(self.root)
        has_links = False
        while end >= 0:
            end = full.find("/", end + 1)
            part = full if end < 0 else full[:end]
            try:
                is_link = stat.S_ISLNK(os.lstat(part).st_mode)
            except OSError:
                # Whoever opens it reports what is missing or not accessible.
                return
            has_links |= is_link
            if is_link and not self._has(os.path.realpath(full)):
                raise CorruptionError(
                    f"{full}: leads out of the root through the symbolic link {part}, which is not followed; put what "
                    "belongs to the lake into its root"
                )
        if not has_links:
            if len(self._plain_folders) >= _PLAIN_FOLDERS:
                self._plain_folders.clear()
            self._plain_folders.add(parent)

    def _is_in_plain_folder(self, full: str) -> bool:
        """Return whether it is known that no link leads to the folder of an object, so that only the object may be one."""
        return full.rpartition("/")[0] in self._plain_folders

    def _has(self, real: str) -> bool:
        root = os.path.realpath(self.root)
        return real == root or real.startswith(f"{root.rstrip('/')}/")

    def read(self, path: str) -> bytes:
        """Return the whole object."""
        with self._translated(path), self._open(path) as file:
            return file.read()

    def _open(self, path: str) -> IO[bytes]:
        full = f"{self.root}/{check_path(path)}"
        if not self._is_in_plain_folder(full):
            return open(self.locate(path), "rb", buffering=0)
        try:
            return open(full, "rb", buffering=0, opener=_open_unless_link)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return open(self.locate(path), "rb", buffering=0)

    def read_start(self, path: str, length: int) -> bytes:
        """Return the first bytes of the object."""
        with self._translated(path), self._open(path) as file:
            return file.read(length)

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the object's bytes in chunks."""
        with self._translated(path), open(self.locate(path), "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def info(self, path: str) -> ObjectInfo | None:
        """Return size and time of one object, or None."""
        try:
            with self._translated(path):
                full = f"{self.root}/{check_path(path)}"
                status = os.lstat(full) if self._is_in_plain_folder(full) else None
                if status is None or stat.S_ISLNK(status.st_mode):
                    status = os.stat(self.locate(path))
                return _object_info(path, status)
        except NotFoundError:
            return None

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Write aside, sync, link to the final name: never half there, never over another."""
        self._publish(path, data, os.link)

    def link(self, path: str, file: str) -> bool:
        """Let a file of this machine have a second name here, without copying it; return whether its disk can."""
        final = self._locate_name(path)
        with self._translated(path):
            self._make_folders(os.path.dirname(final))
            try:
                os.link(file, final)
            except OSError as error:
                if error.errno in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                    return False
                raise
            _sync_folder(os.path.dirname(final))
        return True

    def replace(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Write aside, sync, rename over the final name."""
        self._publish(path, data, os.replace)

    def _publish(self, path: str, data: bytes | Iterable[bytes], publish: Any) -> None:
        final = self._locate_name(path)
        parent, name = os.path.split(final)
        aside = f"{parent}/.{name}.{os.urandom(16).hex()}.tmp"
        with self._translated(path):
            try:
                file = self._create_exclusively(aside)
                try:
                    with file:
                        for chunk in as_chunks(data):
                            file.write(chunk)
                        file.flush()
                        os.fsync(file.fileno())
                    publish(aside, final)
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(aside)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP) and Path(aside).parent.exists():
                    raise StorageError(
                        f"{self.root}: this file system has no hard links ({error}), so create-if-absent is not "
                        "safe on it; use another folder"
                    ) from error
                raise
            _sync_folder(parent)

    def _create_exclusively(self, path: str) -> IO[bytes]:
        try:
            return open(path, "xb")
        except FileNotFoundError:
            self._make_folders(os.path.dirname(path))
            return open(path, "xb")

    def _make_folders(self, folder: str) -> None:
        if Path(folder).is_dir():
            return
        parent = os.path.dirname(folder)
        self._make_folders(parent)
        Path(folder).mkdir(exist_ok=True)
        _sync_folder(parent)

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Return the objects in a folder; files being written are not objects yet, linked folders are not gone into."""
        objects: list[ObjectInfo] = []
        pending = [check_prefix(prefix)]
        while pending:
            folder = pending.pop()
            for entry in self._scan(folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if path == OWN_FOLDER:
                    continue
                if entry.is_dir():
                    if recursive and not entry.is_symlink():
                        pending.append(path)
                elif not _is_aside(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        objects.append(_object_info(path, entry.stat()))
        return objects

    def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly in `prefix`; one that is a link out of the root is none of them."""
        folder = check_prefix(prefix)
        return [
            entry.name
            for entry in self._scan(folder)
            if entry.is_dir()
            and (not entry.is_symlink() or self._has(os.path.realpath(entry.path)))
            and (folder or entry.name != OWN_FOLDER)
        ]

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        full = f"{self.root}/{folder}" if folder else self.root
        self._refuse_way_out(full)
        try:
            with self._translated(folder), os.scandir(full) as entries:
                return list(entries)
        except NotFoundError:
            return []

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; folders stay."""
        for path in paths:
            with self._translated(path), contextlib.suppress(FileNotFoundError):
                os.unlink(self._locate_name(path))

    def open_reader(self, path: str) -> IO[bytes]:
        """Open the file for reading."""
        with self._translated(path):
            return Path(self.locate(path)).open("rb")

    def open_writer(self, path: str) -> IO[bytes]:
        """Open a new file that is synced when closed."""
        with self._translated(path):
            full = self._locate_name(path)
            file = self._create_exclusively(full)

        def finish() -> None:
            with self._translated(path), file:
                file.flush()
                os.fsync(file.fileno())
                _sync_folder(os.path.dirname(full))

        return cast("IO[bytes]", NewObject(file.write, finish))

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        where = f"{self.root}/{path}"
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(f"{where}: no such object") from error
        except FileExistsError as error:
            raise AlreadyExistsError(f"{where}: exists already") from error
        except NotADirectoryError as error:
            raise InvalidInputError(f"{where}: a part of this path is a file, not a folder") from error
        except PermissionError as error:
            raise AccessDeniedError(
                f"{where}: no permission ({error.strerror}); make the folder accessible or choose another root"
            ) from error
        except OSError as error:
            if error.errno == errno.EROFS:
                raise AccessDeniedError(f"{where}: the file system is read-only; choose another root") from error
            raise StorageError(f"{where}: {error.strerror or error}") from error


def _open_unless_link(full: str, flags: int) -> int:
    return os.open(full, flags | os.O_NOFOLLOW)


def _object_info(path: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(path, status.st_size, status.st_mtime_ns // 1_000_000, str(status.st_mtime_ns))


def _is_aside(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder or "/", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def local_folder(root: str) -> Path | None:
    """Return the folder of a canonical local root, None for any other."""
    return None if "://" in root else Path(root)


class Leftovers(NamedTuple):
    """Files that writers began and nobody sees, and symbolic links, through which nothing is ever deleted."""

    half_written: list[ObjectInfo]
    links: list[str]

    def are_beyond_a_link(self, path: str) -> bool:
        """Return whether a path is a link, or leads through one."""
        return any(path == link or path.startswith(f"{link}/") for link in self.links)


def find_leftovers(root: str, folder: str) -> Leftovers:
    """Return the leftovers in a folder, following no links; files that vanish meanwhile are left out. Raises: StorageError."""
    leftovers = Leftovers([], [])
    base = local_folder(root)
    if base is None:
        return leftovers
    for above in itertools.accumulate(folder.split("/"), "{}/{}".format):
        if (base / above).is_symlink():
            leftovers.links.append(above)
            return leftovers
    pending = [folder]
    while pending:
        parent = pending.pop()
        try:
            with os.scandir(base / parent) as entries:
                for entry in entries:
                    path = f"{parent}/{entry.name}"
                    if entry.is_symlink():
                        leftovers.links.append(path)
                    elif entry.is_dir(follow_symlinks=False):
                        pending.append(path)
                    elif _is_aside(entry.name):
                        # It is gone where its writer is done with it.
                        with contextlib.suppress(FileNotFoundError):
                            leftovers.half_written.append(_object_info(path, entry.stat(follow_symlinks=False)))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StorageError(f"{base}/{parent}: {error.strerror or error}") from error
    return leftovers
