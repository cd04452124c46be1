"""Folders of Spark sessions: one for each process, removed when it ends; and those that processes left when they died."""

import atexit
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

PREFIX = "siltstone-spark-"
_OWNER = "owner.json"

Owner = Literal["alive", "dead", "unknown"]


def make_folder() -> Path:
    """Make a folder for this process, and remove those of processes that died without removing theirs."""
    for folder, owner in own_folders():
        if owner == "dead":
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    identity = _identity(os.getpid())
    if identity is not None:
        (folder / _OWNER).write_text(json.dumps(identity))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def own_folders() -> Iterator[tuple[Path, Owner]]:
    """Yield this user's folders of Spark sessions, and whether the process that made each is alive."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                yield folder, _owner(folder)


def _owner(folder: Path) -> Owner:
    """Return whether the process that made a folder is alive; one is dead only where that is certain."""
    try:
        owner = json.loads((folder / _OWNER).read_text())
        pid = int(owner["pid"])
        here = _identity(os.getpid())
    except (OSError, ValueError, TypeError, KeyError):
        return "unknown"
    if here is None or any(owner.get(name) != here[name] for name in ("boot", "namespace")):
        # Of another machine or container that shares the folder, whose processes cannot be seen from here.
        return "unknown"
    return "alive" if _identity(pid) == owner else "dead"


def _identity(pid: int) -> dict[str, object] | None:
    """Return what identifies a process among all there ever were, or None if it is not running or unknown."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    # The name, which comes second, may hold anything; the start is the 20th field after it, the state the first.
    fields = status.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return {"pid": pid, "started": int(fields[19]), "boot": boot, "namespace": namespace}
