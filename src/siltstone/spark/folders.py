"""Folders for what Spark writes beside the data: gone with their process, or swept after it when it was killed."""

import atexit
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "siltstone-spark-"
_OWNER = "owner.json"


def make_folder() -> Path:
    """Make a folder for this process, and remove those of processes that died without removing theirs."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    owner = _identity(os.getpid())
    if owner is not None:
        (folder / _OWNER).write_text(json.dumps(owner))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Say whether the process that made a folder surely lives no more; in doubt, it does."""
    try:
        owner = json.loads((folder / _OWNER).read_text())
        pid = int(owner["pid"])
        here = _identity(os.getpid())
    except (OSError, ValueError, TypeError, KeyError):
        return False
    if here is None or any(owner.get(name) != here[name] for name in ("boot", "namespace")):
        # Of another machine or container that shares the folder, whose processes cannot be seen from here.
        return False
    return bool(_identity(pid) != owner)


def _identity(pid: int) -> dict[str, object] | None:
    """Return what no other process ever has in common with this one, None where it is not running or cannot be told."""
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
