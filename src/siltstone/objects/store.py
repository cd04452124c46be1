"""Objects in anything `obstore` speaks to: S3, Google, Azure, memory."""

import contextlib
import datetime
import io
import os
import random
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, cast

import obstore
from obstore.exceptions import AlreadyExistsError as ObstoreAlreadyExistsError
from obstore.exceptions import BaseError
from obstore.store import LocalStore, MemoryStore, ObjectStore, S3Store, from_url

from siltstone import clock
from siltstone.clock import StoreClock
from siltstone.errors import AlreadyExistsError, InvalidInputError, NotFoundError, StorageError
from siltstone.model.locators import check_path
from siltstone.objects.interface import CHUNK_BYTES, NewObject, ObjectInfo, check_prefix
from siltstone.objects.s3 import S3Settings, is_in_progress, read_answer, store_options, translated

# The first conditional write of a process shows whether the store honours them. It creates this object.
MARKER = ".siltstone/create-if-absent"
# What the store's clock is read from.
CLOCK = ".siltstone/clock"
PART_BYTES = 8 << 20
_CONNECT_SECONDS = 5
_FIRST_BACKOFF = datetime.timedelta(milliseconds=100)
_LONGEST_BACKOFF = datetime.timedelta(seconds=10)
_RETRIES_END_AFTER = datetime.timedelta(seconds=180)
_TAIL_BYTES = 64 << 10
_CONFLICT_ATTEMPTS = 10
_WRITER_ATTRIBUTE = "siltstone-writer"


def open_url(address: str) -> ObjectStore:
    """Open the store of a Google or Azure address by their own environment rules. Raises: InvalidInputError."""
    try:
        return from_url(address)
    except (BaseError, ValueError) as error:
        raise InvalidInputError(f"root {address}: {read_answer(error).text}") from error


def open_s3(address: str, settings: S3Settings) -> ObjectStore:
    """Open the bucket of an `s3://` address.

    Throttling, 5xx answers and broken connections are tried again, each time after a longer pause.
    Raises: InvalidInputError, AccessDeniedError where there are no credentials.
    """
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    try:
        return S3Store(
            bucket,
            prefix=prefix or None,
            client_options={
                "allow_http": (settings.endpoint or "").startswith("http://"),
                "connect_timeout": datetime.timedelta(seconds=_CONNECT_SECONDS),
                "timeout": datetime.timedelta(seconds=settings.timeout_seconds),
            },
            retry_config={
                "max_retries": settings.max_attempts - 1,
                "retry_timeout": _RETRIES_END_AFTER,
                "backoff": {"init_backoff": _FIRST_BACKOFF, "max_backoff": _LONGEST_BACKOFF, "base": 2},
            },
            **store_options(settings),
        )
    except (BaseError, ValueError) as error:
        raise InvalidInputError(f"root {address}: {read_answer(error).text}") from error


class _StoredObject(io.RawIOBase):
    """A seekable reader over range requests; the object's end, where Parquet keeps its footer, is there already."""

    def __init__(self, size: int, tail: bytes, read_range: Callable[[int, int], bytes]) -> None:
        self._size = size
        self._tail = tail
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
        tail_start = self._size - len(self._tail)
        if self._position >= tail_start:
            data = self._tail[self._position - tail_start :][:length]
        else:
            data = self._read_range(self._position, length) if length else b""
        self._position += len(data)
        return data


class StoreObjects:
    """Objects in a store of `obstore`. One that is not trusted has to honour conditional writes before it gets any."""

    def __init__(self, root: str, store: ObjectStore, *, is_trusted: bool = True) -> None:
        if isinstance(store, LocalStore):
            raise InvalidInputError(f"{root}: local folders go through LocalObjects, which syncs to disk")
        self.root = root
        self._store: ObjectStore = store
        self._is_trusted = is_trusted
        self._trust_lock = threading.Lock()
        self._clock = None if isinstance(store, MemoryStore) else StoreClock(self._ask_time)

    def __repr__(self) -> str:
        return f"StoreObjects({self.root!r})"

    def now_ms(self, *, is_asked: bool = False) -> int:
        """Return the store's time: what it gave an object that was just written, and how long ago that was."""
        return clock.now_ms() if self._clock is None else self._clock.now_ms(is_asked=is_asked)

    def skew_ms(self) -> int | None:
        """Return how far this machine's clock was ahead of the store's time when that was asked for."""
        return None if self._clock is None else self._clock.skew_ms()

    def _ask_time(self) -> int:
        self.replace(CLOCK, b"")
        info = self.info(CLOCK)
        if info is None:
            raise StorageError(f"{self.root}/{CLOCK}: it vanished right after it was written; try again")
        return info.modified_ms

    def reopen(self, store: ObjectStore) -> None:
        """Go on with another connection to the same root."""
        self._store = store

    def read(self, path: str) -> bytes:
        """Return the whole object."""
        with translated(self.root, path):
            return bytes(obstore.get(self._store, check_path(path)).bytes())

    def read_start(self, path: str, length: int) -> bytes:
        """Return the first bytes of the object."""
        try:
            with translated(self.root, path):
                return bytes(obstore.get_range(self._store, check_path(path), start=0, length=length))
        except StorageError:
            # A range of an empty object is an error to a store.
            info = self.info(path)
            if info is None or info.size:
                raise
            return b""

    def stream(self, path: str) -> Iterator[bytes]:
        """Yield the object's bytes in chunks."""
        with translated(self.root, path):
            for chunk in obstore.get(self._store, check_path(path)).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def info(self, path: str) -> ObjectInfo | None:
        """Return size and time of one object, or None."""
        try:
            with translated(self.root, path):
                return _object_info(obstore.head(self._store, check_path(path)))
        except NotFoundError:
            return None

    def create(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Create by conditional put; a stream is spooled to disk first, since its put must be one request."""
        self._check_conditions()
        with _spooled(data) as body:
            self._put_new(path, body)

    def _put_new(self, path: str, data: bytes | IO[bytes]) -> None:
        """Put if absent, as often as it takes to know who won.

        Where another put of the same object is under way, nobody has won yet. Where a first answer got lost, the put
        was tried again and found its own object, by an attribute of it.
        """
        attributes = {_WRITER_ATTRIBUTE: uuid.uuid4().hex}
        with translated(self.root, path, creating=True):
            for attempt in range(_CONFLICT_ATTEMPTS):
                try:
                    obstore.put(
                        self._store, check_path(path), data, mode="create", attributes=attributes, use_multipart=False
                    )
                    return
                except BaseError as error:
                    if is_in_progress(error) and attempt < _CONFLICT_ATTEMPTS - 1:
                        clock.sleep(random.uniform(0, min(0.02 * 2**attempt, 1)))
                    elif isinstance(error, ObstoreAlreadyExistsError) and self._is_by(path, attributes):
                        return
                    else:
                        raise
                if not isinstance(data, bytes):
                    data.seek(0)

    def _is_by(self, path: str, attributes: dict[str, str]) -> bool:
        with contextlib.suppress(BaseError, OSError):
            stored = obstore.get(self._store, path, options={"head": True}).attributes
            return stored.get(_WRITER_ATTRIBUTE) == attributes[_WRITER_ATTRIBUTE]
        return False

    def _check_conditions(self) -> None:
        """Refuse a store that creates what is there already: two commits could both believe to have won."""
        with self._trust_lock:
            if self._is_trusted:
                return
            try:
                self._put_new(MARKER, b"")
                self._put_new(MARKER, b"")
            except AlreadyExistsError:
                self._is_trusted = True
                return
        raise InvalidInputError(
            f"{self.root}: the store ignores If-None-Match, so commits could overwrite each other; nothing was written. "
            "Use a store with conditional writes; `siltstone doctor` checks one"
        )

    def replace(self, path: str, data: bytes | Iterable[bytes]) -> None:
        """Put, in parts where the data is large; a stream is spooled, since it may come from the same store."""
        with translated(self.root, path, writing=True), _spooled(data) as body:
            obstore.put(self._store, check_path(path), body)

    def list_objects(self, prefix: str, *, recursive: bool = False) -> list[ObjectInfo]:
        """Return the objects in a folder; the marker of the first write is none of them."""
        folder = check_prefix(prefix) or None
        with translated(self.root, prefix):
            if recursive:
                metas = [meta for page in obstore.list(self._store, folder) for meta in page]
            else:
                metas = list(obstore.list_with_delimiter(self._store, folder)["objects"])
        return [_object_info(meta) for meta in metas if meta["path"] not in (MARKER, CLOCK)]

    def list_folders(self, prefix: str) -> list[str]:
        """Return the names of the folders directly in `prefix`."""
        with translated(self.root, prefix):
            prefixes = obstore.list_with_delimiter(self._store, check_prefix(prefix) or None)["common_prefixes"]
        marked = MARKER.partition("/")[0]
        return [folder.rstrip("/").rpartition("/")[2] for folder in prefixes if folder.rstrip("/") != marked]

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, many in one request where the store can."""
        for path in paths:
            check_path(path)
        if paths:
            with contextlib.suppress(NotFoundError), translated(self.root, paths[0]):
                obstore.delete(self._store, list(paths))

    def open_reader(self, path: str) -> IO[bytes]:
        """Open a reader that asks the store for the ranges it is asked for; opening is one request."""
        with translated(self.root, path):
            try:
                answer = obstore.get(self._store, check_path(path), options={"range": {"suffix": _TAIL_BYTES}})
                size, tail = answer.meta["size"], bytes(answer.bytes())
            except BaseError:
                # An empty object has no last bytes to ask for.
                info = self.info(path)
                if info is None or info.size:
                    raise
                size, tail = 0, b""

        def read_range(start: int, length: int) -> bytes:
            with translated(self.root, path):
                return bytes(obstore.get_range(self._store, path, start=start, length=length))

        return cast("IO[bytes]", _StoredObject(size, tail, read_range))

    def duplicate(self, path: str, new_path: str) -> None:
        """Let the store copy an object to a name that is unique, without a way through here. Raises: NotFoundError."""
        with translated(self.root, path):
            obstore.copy(self._store, check_path(path), check_path(new_path))

    def open_writer(self, path: str) -> IO[bytes]:
        """Open a writer that uploads in parts as they fill, and a small object in one piece."""
        with translated(self.root, path, writing=True):
            upload = obstore.open_writer(self._store, check_path(path), buffer_size=PART_BYTES)

        def write(data: bytes) -> None:
            with translated(self.root, path, writing=True):
                upload.write(data)

        def finish() -> None:
            with translated(self.root, path, writing=True):
                upload.close()

        return cast("IO[bytes]", NewObject(write, finish))


@contextlib.contextmanager
def _spooled(data: bytes | Iterable[bytes]) -> Iterator[bytes | IO[bytes]]:
    """Write chunks to a temporary file; whole bytes, and few chunks, stay in memory."""
    if isinstance(data, bytes):
        yield data
        return
    with tempfile.SpooledTemporaryFile(max_size=CHUNK_BYTES) as spool:
        for chunk in data:
            spool.write(chunk)
        spool.seek(0)
        yield spool


def _object_info(meta: Any) -> ObjectInfo:
    modified: datetime.datetime = meta["last_modified"]
    return ObjectInfo(meta["path"], meta["size"], int(modified.timestamp() * 1000), meta["e_tag"] or "")
