"""Bytes under a root: read, create if absent, list, delete; the one place that meets a real store.

Two implementations of one small protocol: local folders through the operating system, so that what was
acknowledged is on disk (written, synced, linked, directory synced), and everything else through `obstore`.
Errors of the operating system and of `obstore` become errors of ours here and nowhere else.
"""

import contextlib
import datetime
import errno
import io
import os
import re
import tempfile
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

import obstore
from obstore.exceptions import AlreadyExistsError as ObstoreAlreadyExistsError
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from siltstone.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)

CHUNK_BYTES = 4 << 20
MEMORY_SCHEME = "memory://"
_OBJECT_STORE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure")


class ObjectInfo(NamedTuple):
    """One listed object."""

    path: str
    size: int
    modified_ms: int


class Objects(Protocol):
    """A flat set of immutable objects under `root`, addressed by relative paths with `/`."""

    @property
    def root(self) -> str:
        """The canonical address everything lives under."""

    def read(self, path: str) -> bytes:
        """Return the whole object. Raises: NotFoundError."""

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the object's bytes in chunks of a few megabytes. Raises: NotFoundError."""

    def info(self, path: str) -> ObjectInfo | None:
        """Return size and time of one object, or None where there is none."""

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create the object whole and durable, or not at all. Raises: AlreadyExistsError."""

    def replace(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create or atomically replace the object; only for what nobody else writes."""

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Return the objects in the folder `prefix`, unordered; empty where there is no such folder."""

    def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly in `prefix`."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects; one that is gone already is no error."""

    def open_reader(self, path: str) -> IO[bytes]:
        """Open a seekable reader. Raises: NotFoundError."""

    def open_writer(self, path: str) -> IO[bytes]:
        """Open a writer of a new object, durable once closed; its name must be unique."""


def open_objects(root: str | os.PathLike[str]) -> Objects:
    """Open the store at `root`: a local folder, or a URL such as `s3://bucket/prefix`.

    Opening touches nothing; a process opens each root once.
    """
    known = _opened.get(root) if isinstance(root, str) else None
    if known is not None:
        return known
    address = canonical_root(root)
    with _opened_lock:
        objects = _opened.get(address)
        if objects is None:
            objects = _opened[address] = _open(address)
        return objects


def canonical_root(root: str | os.PathLike[str]) -> str:
    """Return one spelling for each root: an absolute local path, or a URL without trailing slash.

    Raises: InvalidInputError.
    """
    text = os.fspath(root)
    if not text or "\0" in text:
        raise InvalidInputError(f"root {text!r} is not a folder or URL; give a path or e.g. s3://bucket/prefix")
    match = re.match(r"^([A-Za-z][A-Za-z0-9+.-]*):(/*)", text)
    if match is None:
        return str(Path(text).expanduser().absolute().resolve())
    scheme = match.group(1).lower()
    if scheme == "file":
        parts = urllib.parse.urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise InvalidInputError(f"root {text!r} names the host {parts.netloc!r}; local roots have none")
        return str(Path(urllib.parse.unquote(parts.path)).resolve())
    if scheme == "memory":
        return MEMORY_SCHEME + text.partition("://")[2].strip("/")
    if scheme not in _OBJECT_STORE_SCHEMES or match.group(2) != "//":
        raise InvalidInputError(
            f"root {text!r} has the unknown scheme {scheme!r}; use a local path, s3://, gs:// or az://"
        )
    rest = text[match.end() :].rstrip("/")
    if not rest.split("/")[0]:
        raise InvalidInputError(f"root {text!r} names no bucket; write {scheme}://bucket/prefix")
    return f"{'s3' if scheme == 's3a' else scheme}://{rest}"


def local_folder(root: str) -> Path | None:
    """Return the folder of a canonical local root, None for any other."""
    return None if "://" in root else Path(root)


@contextlib.contextmanager
def replaced(root: str, objects: Objects) -> Iterator[None]:
    """Let `objects` answer for `root` in this process meanwhile; how faults are injected in tests."""
    address = canonical_root(root)
    with _opened_lock:
        before = _opened.get(address)
        _opened[address] = objects
    try:
        yield
    finally:
        with _opened_lock:
            if before is None:
                del _opened[address]
            else:
                _opened[address] = before


_opened: dict[str, Objects] = {}
_opened_lock = threading.Lock()


def _open(address: str) -> Objects:
    folder = local_folder(address)
    if folder is not None:
        return LocalObjects(folder)
    if address.startswith(MEMORY_SCHEME):
        return StoreObjects(address, MemoryStore())
    options: dict[str, Any] = {}
    if address.startswith("s3://"):
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        if endpoint:
            options["endpoint"] = endpoint
        if endpoint.startswith("http://"):
            options["client_options"] = {"allow_http": True}
    try:
        return StoreObjects(address, from_url(address, **options))
    except (BaseError, ValueError) as error:
        raise InvalidInputError(f"root {address}: {_reason(error)}") from error


def _checked(path: str) -> str:
    if not path or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidInputError(f"object path {path!r} must be relative, without empty, '.' or '..' parts")
    return path


def _chunks(data: bytes | Iterable[bytes]) -> Iterable[bytes]:
    return (data,) if isinstance(data, bytes) else data


class LocalObjects:
    """Objects in a local folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = str(folder)

    def __repr__(self) -> str:
        return f"LocalObjects({self.root!r})"

    def _path(self, path: str) -> str:
        return f"{self.root}/{_checked(path)}"

    def read(self, path: str) -> bytes:
        """Return the whole object."""
        with self._translated(path), Path(self._path(path)).open("rb") as file:
            return file.read()

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the object's bytes in chunks."""
        with self._translated(path), Path(self._path(path)).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def info(self, path: str) -> ObjectInfo | None:
        """Return size and time of one object, or None."""
        try:
            with self._translated(path):
                status = os.stat(self._path(path))
        except NotFoundError:
            return None
        return ObjectInfo(path, status.st_size, status.st_mtime_ns // 1_000_000)

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Write aside, sync, link to the final name: never half there, never over another."""
        self._publish(path, data, os.link)

    def replace(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Write aside, sync, rename over the final name."""
        self._publish(path, data, os.replace)

    def _publish(self, path: str, data: bytes | Iterable[bytes], publish: Any) -> None:
        final = self._path(path)
        parent, name = os.path.split(final)
        aside = f"{parent}/.{name}.{uuid.uuid4().hex}.tmp"
        with self._translated(path):
            try:
                file = self._create_exclusively(aside)
                try:
                    with file:
                        for chunk in _chunks(data):
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
            return Path(path).open("xb")
        except FileNotFoundError:
            self._make_folders(os.path.dirname(path))
            return Path(path).open("xb")

    def _make_folders(self, folder: str) -> None:
        if Path(folder).is_dir():
            return
        parent = os.path.dirname(folder)
        self._make_folders(parent)
        Path(folder).mkdir(exist_ok=True)
        _sync_folder(parent)

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Return the objects in a folder; files being written are not objects yet."""
        found: list[ObjectInfo] = []
        pending = [prefix.strip("/")]
        while pending:
            folder = pending.pop()
            for entry in self._scan(folder):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    if recursive:
                        pending.append(path)
                elif not _is_aside(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append(ObjectInfo(path, status.st_size, status.st_mtime_ns // 1_000_000))
        return found

    def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly in `prefix`."""
        return [entry.name for entry in self._scan(prefix.strip("/")) if entry.is_dir()]

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with self._translated(folder), os.scandir(f"{self.root}/{folder}") as entries:
                return list(entries)
        except NotFoundError:
            return []

    def delete(self, paths: Sequence[str]) -> None:
        """Delete files; folders stay."""
        for path in paths:
            with self._translated(path), contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(path))

    def open_reader(self, path: str) -> IO[bytes]:
        """Open the file for reading."""
        with self._translated(path):
            return Path(self._path(path)).open("rb")

    def open_writer(self, path: str) -> IO[bytes]:
        """Open a new file that is synced when closed."""
        with self._translated(path):
            file = self._create_exclusively(self._path(path))

        def finish() -> None:
            with self._translated(path), file:
                file.flush()
                os.fsync(file.fileno())
                _sync_folder(os.path.dirname(self._path(path)))

        return cast("IO[bytes]", _NewObject(file.write, finish))

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


def _is_aside(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder or "/", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _NewObject(io.RawIOBase):
    """A writer that knows its position, and that finishes the object when closed."""

    def __init__(self, write: Callable[[bytes], object], finish: Callable[[], None]) -> None:
        self._write = write
        self._finish = finish
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._write(data)
        self._position += size
        return size

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._finish()


class _StoredObject(io.RawIOBase):
    """A seekable reader over range requests."""

    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._read_range = read_range
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        data = self._read_range(self._position, length) if length else b""
        self._position += len(data)
        return data


class StoreObjects:
    """Objects in anything `obstore` speaks to: S3, Google, Azure, memory."""

    def __init__(self, root: str, store: ObjectStore) -> None:
        if isinstance(store, LocalStore):
            raise InvalidInputError(f"{root}: local folders go through LocalObjects, which syncs to disk")
        self.root = root
        self._store = store

    def __repr__(self) -> str:
        return f"StoreObjects({self.root!r})"

    def read(self, path: str) -> bytes:
        """Return the whole object."""
        with self._translated(path):
            return bytes(obstore.get(self._store, _checked(path)).bytes())

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the object's bytes in chunks."""
        with self._translated(path):
            for chunk in obstore.get(self._store, _checked(path)).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def info(self, path: str) -> ObjectInfo | None:
        """Return size and time of one object, or None."""
        try:
            with self._translated(path):
                return _object_info(obstore.head(self._store, _checked(path)))
        except NotFoundError:
            return None

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create by conditional put; a stream is spooled to disk first, since its put must be one request."""
        with self._translated(path):
            if isinstance(data, bytes):
                obstore.put(self._store, _checked(path), data, mode="create", use_multipart=False)
                return
            with _spooled(data) as spool:
                obstore.put(self._store, _checked(path), spool, mode="create", use_multipart=False)

    def replace(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Put, in parts where the data is large; a stream is spooled, since it may come from the same store."""
        with self._translated(path):
            if isinstance(data, bytes):
                obstore.put(self._store, _checked(path), data)
                return
            with _spooled(data) as spool:
                obstore.put(self._store, _checked(path), spool)

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Return the objects in a folder."""
        folder = prefix.strip("/") or None
        with self._translated(prefix):
            if recursive:
                return [_object_info(meta) for page in obstore.list(self._store, folder) for meta in page]
            return [_object_info(meta) for meta in obstore.list_with_delimiter(self._store, folder)["objects"]]

    def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly in `prefix`."""
        with self._translated(prefix):
            found = obstore.list_with_delimiter(self._store, prefix.strip("/") or None)["common_prefixes"]
        return [folder.rstrip("/").rpartition("/")[2] for folder in found]

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, many in one request where the store can."""
        for path in paths:
            _checked(path)
        if paths:
            with self._translated(paths[0]), contextlib.suppress(FileNotFoundError):
                obstore.delete(self._store, list(paths))

    def open_reader(self, path: str) -> IO[bytes]:
        """Open a reader that asks the store for the ranges it is asked for."""
        found = self.info(path)
        if found is None:
            raise NotFoundError(f"{self.root}/{path}: no such object")

        def read_range(start: int, length: int) -> bytes:
            with self._translated(path):
                return bytes(obstore.get_range(self._store, path, start=start, length=length))

        return cast("IO[bytes]", _StoredObject(found.size, read_range))

    def open_writer(self, path: str) -> IO[bytes]:
        """Open a writer that uploads in parts."""
        with self._translated(path):
            upload = obstore.open_writer(self._store, _checked(path))

        def write(data: bytes) -> None:
            with self._translated(path):
                upload.write(data)

        def finish() -> None:
            with self._translated(path):
                upload.close()

        return cast("IO[bytes]", _NewObject(write, finish))

    def _check_bucket(self, error: Exception) -> None:
        if "NoSuchBucket" in str(error):
            raise StorageError(f"{self.root}: the bucket does not exist; create it or fix the root") from error

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        where = f"{self.root}/{path}"
        try:
            yield
        except FileNotFoundError as error:
            self._check_bucket(error)
            raise NotFoundError(f"{where}: no such object") from error
        except ObstoreAlreadyExistsError as error:
            raise AlreadyExistsError(f"{where}: exists already") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise AccessDeniedError(
                f"{where}: access denied; check credentials and policy ({_reason(error)})"
            ) from error
        except (BaseError, OSError) as error:
            self._check_bucket(error)
            raise StorageError(f"{where}: {_reason(error)}") from error


@contextlib.contextmanager
def _spooled(data: Iterable[bytes]) -> Iterator[IO[bytes]]:
    """Write chunks to a temporary file; small ones stay in memory."""
    with tempfile.SpooledTemporaryFile(max_size=CHUNK_BYTES) as spool:
        for chunk in data:
            spool.write(chunk)
        spool.seek(0)
        yield spool


def _object_info(meta: Any) -> ObjectInfo:
    modified: datetime.datetime = meta["last_modified"]
    return ObjectInfo(meta["path"], meta["size"], int(modified.timestamp() * 1000))


def _reason(error: Exception) -> str:
    return str(error).split("\n\nDebug source")[0].strip()
