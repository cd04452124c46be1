"""Roots and what opens them: a process opens each root once, the way its environment says."""

import contextlib
import os
import re
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

from obstore.store import MemoryStore

from siltstone.errors import InvalidInputError, SiltstoneError
from siltstone.objects.interface import Objects
from siltstone.objects.local import OWN_FOLDER, LocalObjects, local_folder
from siltstone.objects.s3 import S3Settings, completed, find_settings, shared
from siltstone.objects.store import StoreObjects, open_s3, open_url

MEMORY_SCHEME = "memory://"
_OBJECT_STORE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure")
_RESERVE = f"{OWN_FOLDER}/reserve"
_RESERVE_BYTES = 64 << 10
_opened: dict[str, Objects] = {}
_received: dict[str, S3Settings] = {}
_opened_lock = threading.Lock()


def open_objects(root: str | os.PathLike[str]) -> Objects:
    """Open the store at `root`, a folder or a URL such as `s3://bucket/prefix`, once per process; it touches nothing."""
    opened = _opened.get(root) if isinstance(root, str) else None
    if opened is not None:
        return opened
    address = canonical_root(root)
    with _opened_lock:
        objects = _opened.get(address)
        if objects is None:
            objects = _opened[address] = _open(address)
        return objects


def canonical_root(root: str | os.PathLike[str]) -> str:
    """Return the one form of a root: an absolute path, or a URL without trailing slash. Raises: InvalidInputError."""
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


def local_path(root: str, path: str) -> str | None:
    """Return where an object of a canonical local root is on the disk, or None for any other root.

    Raises: InvalidInputError, CorruptionError where it is not in the root.
    """
    objects = _local_objects(root)
    return None if objects is None else objects.locate(path)


@lru_cache(16)
def _local_objects(root: str) -> LocalObjects | None:
    """Return what finds objects of a local root; it remembers the folders that it has found to be no links."""
    folder = local_folder(root)
    return None if folder is None else LocalObjects(folder)


def close_together(root: str, writers: Sequence[IO[bytes]]) -> None:
    """Close writers of new objects: all at once, as each waits for its disk or its store. All are durable then.

    A store that stands in for another one may not take calls from several threads; it gets them one after another.
    """
    if len(writers) < 2 or not isinstance(open_objects(root), LocalObjects | StoreObjects):
        for writer in writers:
            writer.close()
        return
    with ThreadPoolExecutor(len(writers)) as pool:
        for done in [pool.submit(writer.close) for writer in writers]:
            done.result()


def keep_reserve(root: str) -> None:
    """Set some bytes of a local root aside, if there is room for it: on a full disk, a vacuum can free them to begin."""
    if local_folder(root) is None:
        return
    with contextlib.suppress(SiltstoneError):
        objects = open_objects(root)
        if objects.info(_RESERVE) is None:
            objects.replace(_RESERVE, bytes(_RESERVE_BYTES))


def give_up_reserve(root: str) -> bool:
    """Free the reserve; return whether there was one."""
    objects = open_objects(root)
    if local_folder(root) is None or objects.info(_RESERVE) is None:
        return False
    objects.delete([_RESERVE])
    return True


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


@dataclass(frozen=True)
class Access:
    """How a root is reached, as the process that shares it does; it travels to where tasks run."""

    root: str
    settings: S3Settings | None

    def use(self) -> None:
        """Reach the root this way from now on in this process.

        An environment that the executors do not have is no obstacle then, and keys that were renewed are renewed here.
        """
        if self.settings is None or _received.get(self.root) == self.settings:
            return
        with _opened_lock:
            _received[self.root] = self.settings
            objects = _opened.get(self.root)
            if isinstance(objects, StoreObjects):
                objects.reopen(open_s3(self.root, completed(self.settings)))


def share_access(root: str) -> Access:
    """Return how this process reaches a root; for S3, what its environment and profile say, keys included.

    Raises: InvalidInputError, AccessDeniedError where a profile gives no keys.
    """
    address = canonical_root(root)
    if not address.startswith("s3://"):
        return Access(address, None)
    return Access(address, shared(_received.get(address) or find_settings()))


def _open(address: str) -> Objects:
    folder = local_folder(address)
    if folder is not None:
        return LocalObjects(folder)
    if address.startswith(MEMORY_SCHEME):
        return StoreObjects(address, MemoryStore())
    if address.startswith("s3://"):
        received = _received.get(address)
        settings = find_settings() if received is None else completed(received)
        return StoreObjects(address, open_s3(address, settings), is_trusted=settings.is_aws)
    return StoreObjects(address, open_url(address))
