"""An archive of the JVM's classes in a cache folder: with it, Spark starts in about two thirds of the time.

The first session writes the archive when its JVM ends; later ones map it. The JVM itself checks that an archive fits its
version and its class path, and starts without it where it does not. It does not notice that an archive was cut short, but
dies when it touches what is missing: so an archive is used only if it still has the checksum that it was taken over with.
"""

import hashlib
import os
import shutil
import time
import uuid
import zlib
from pathlib import Path

import pyspark

_SWITCH = "SILTSTONE_CACHE"
_OFF = "off"
_STALE_SECONDS = 600
_SETTLED_SECONDS = 10
_LOCK = ".lock"
_CHECKSUM = ".checksum"
# How an archive of classes that were loaded beside those of Java itself begins, in either byte order.
_MAGIC = bytes.fromhex("f00baba8")


def archive_options() -> list[str]:
    """Return the JVM options that use the archive, or make it; none where there is no place for it.

    The environment variable SILTSTONE_CACHE names the folder; `off` means that there is to be none.
    """
    folder = _folder()
    if folder is None:
        return []
    archive = folder / f"spark-{_fingerprint()}.jsa"
    coming = archive.with_suffix(".coming")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _adopt(coming, archive)
        if _is_whole(archive):
            # The warnings that are switched off go to the standard output, among them those of an archive that is unfit.
            return ["-Xlog:disable", f"-XX:SharedArchiveFile={archive}"]
        if _is_ours_to_make(archive.with_suffix(_LOCK)):
            return ["-Xlog:disable", f"-XX:ArchiveClassesAtExit={coming}"]
    except OSError:
        # A cache that cannot be written costs time, nothing else.
        return []
    return []


def _folder() -> Path | None:
    chosen = os.environ.get(_SWITCH, "")
    if chosen == _OFF:
        return None
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "siltstone"
    except RuntimeError:
        return None


def _fingerprint() -> str:
    """Tell one pair of Java and Spark from another by what is installed where."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    parts = [pyspark.__version__]
    for path in (java.resolve(), jars.resolve()):
        parts += [str(path), str(path.stat().st_mtime_ns) if path.exists() else ""]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _adopt(coming: Path, archive: Path) -> None:
    """Take over what an earlier JVM has written, once it is surely complete: the JVM writes the beginning last."""
    if not coming.exists() or time.time() - coming.stat().st_mtime <= _SETTLED_SECONDS:
        return
    with coming.open("rb") as file:
        is_complete = file.read(len(_MAGIC)) in (_MAGIC, _MAGIC[::-1])
    if not is_complete:
        _discard(coming)
        return
    checksum = archive.with_suffix(_CHECKSUM)
    aside = checksum.with_suffix(f".{uuid.uuid4().hex}")
    aside.write_text(_checksum(coming))
    aside.replace(checksum)
    coming.replace(archive)


def _is_whole(archive: Path) -> bool:
    """Say whether an archive is there and as it was; one that is not is removed, so that it is made again."""
    if not archive.exists():
        return False
    try:
        if archive.with_suffix(_CHECKSUM).read_text() == _checksum(archive):
            return True
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    _discard(archive)
    return False


def _discard(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.with_suffix(_LOCK).unlink(missing_ok=True)


def _checksum(file: Path) -> str:
    checksum = size = 0
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
            size += len(chunk)
    return f"{size} {checksum:08x}"


def _is_ours_to_make(lock: Path) -> bool:
    """Let one process at a time make the archive; one that died is forgotten after a while."""
    try:
        if time.time() - lock.stat().st_mtime > _STALE_SECONDS:
            lock.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
