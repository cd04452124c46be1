"""What lies in a folder of a local root beside its objects: half-written files, and links to elsewhere."""

import os
from pathlib import Path
from typing import NamedTuple

from siltstone.errors import StorageError
from siltstone.objects import ObjectInfo, local_folder


class Leftovers(NamedTuple):
    """Files that writers began and nobody sees, and symbolic links, through which nothing is ever deleted."""

    half_written: list[ObjectInfo]
    links: list[str]

    def are_beyond_a_link(self, path: str) -> bool:
        """Tell whether a path is a link, or leads through one."""
        return any(path == link or path.startswith(f"{link}/") for link in self.links)


def find_leftovers(root: str, folder: str) -> Leftovers:
    """Look through a folder, following no link; files that vanish meanwhile are left out. Raises: StorageError."""
    found = Leftovers([], [])
    base = local_folder(root)
    if base is None:
        return found
    parts = folder.split("/")
    for count in range(1, len(parts) + 1):
        above = "/".join(parts[:count])
        if (base / above).is_symlink():
            found.links.append(above)
            return found
    pending = [folder]
    while pending:
        _look(base, pending, found)
    return found


def _look(base: Path, pending: list[str], found: Leftovers) -> None:
    folder = pending.pop()
    try:
        with os.scandir(base / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                if entry.is_symlink():
                    found.links.append(path)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif entry.name.startswith(".") and entry.name.endswith(".tmp"):
                    _add(found, path, entry)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{base}/{folder}: {error.strerror or error}") from error


def _add(found: Leftovers, path: str, entry: os.DirEntry[str]) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        # A writer is done with it.
        return
    found.half_written.append(ObjectInfo(path, status.st_size, status.st_mtime_ns // 1_000_000))
