"""How a SparkSession is built, with its folders and its archive of classes."""

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from siltstone.java import SUBMITTED, require_java

_PREFIX = "siltstone-spark-"
_OWNER = "owner.json"
_CACHE_VARIABLE = "SILTSTONE_CACHE"
_STALE_SECONDS = 600
_COMPLETE_SECONDS = 10
_LOCK = ".lock"
_CHECKSUM = ".checksum"
# How an archive of classes that were loaded beside those of Java itself begins, in either byte order.
_MAGIC = bytes.fromhex("f00baba8")
# A method or a loop is optimized when it has run ten times as often as Java would have it: rounds run a lot of Spark's code a few
# thousand times, and optimizing that takes Java longer than it saves. Loops over rows get there within milliseconds.
_LATE_OPTIMIZATION = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
]
# What rounds have Spark do is done before it would have compiled anything for it, or planned it anew.
_SHORT_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def local_session(
    name: str = "siltstone",
    *,
    cores: int | str = "*",
    conf: Mapping[str, str] | None = None,
    is_short: bool = False,
) -> SparkSession:
    """Return a session inside this process, lean and quiet: no web page, no Hive, nothing left behind on disk.

    `conf` adds settings or overrides the ones here. A short session, of a command that compacts and ends, compiles in a
    hurry or not at all: it starts sooner, but long work inside the JVM is slower. Where a session runs already, or this process was started by
    spark-submit (as Glue does, too), that session is returned, wherever its executors are.

    Raises: NotInstalledError.
    """
    existing = SparkSession.getActiveSession()
    if existing is not None:
        return existing
    if SUBMITTED in os.environ:
        return SparkSession.builder.appName(name).getOrCreate()
    require_java()
    folder = make_folder()
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    options = [*archive_options(), *(["-XX:TieredStopAtLevel=1"] if is_short else _LATE_OPTIMIZATION)]
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join([f"-Dlog4j2.configurationFile={logging.as_uri()}", *options]),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(_SHORT_SETTINGS if is_short else {}),
        **(conf or {}),
    }
    # Elsewhere, what is installed may come to workers only after they were forked.
    if settings.get("spark.master", "local").startswith("local"):
        settings.setdefault("spark.python.daemon.module", "siltstone.spark.daemon")
    # The workers need what this process has installed, whichever Python comes first on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    threading.Thread(target=_import_pandas, daemon=True).start()
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _import_pandas() -> None:
    """Import what Spark imports for every session, if it is there, but only when Java has started."""
    with contextlib.suppress(Exception):
        import pandas  # noqa: F401


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
    """Return whether the process that made a folder has surely ended; where that is uncertain, it has not."""
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


def archive_options() -> list[str]:
    """Return the JVM options that use the archive, or make it; none if there is no folder for it.

    The environment variable SILTSTONE_CACHE names the folder; `off` means no archive.
    """
    try:
        folder = _cache_folder()
        if folder is None:
            return []
        archive = folder / f"spark-{_fingerprint()}.jsa"
        coming = archive.with_suffix(".coming")
        folder.mkdir(parents=True, exist_ok=True)
        _adopt(coming, archive)
        if _is_whole(archive):
            # The warnings that are switched off go to the standard output, among them those of an archive that is unfit.
            return ["-Xlog:disable", f"-XX:SharedArchiveFile={archive}"]
        if _is_ours_to_make(archive.with_suffix(_LOCK)):
            return ["-Xlog:disable", f"-XX:ArchiveClassesAtExit={coming}"]
    except (OSError, RuntimeError):
        # A cache that cannot be written costs time, nothing else; without a home, Python raises a RuntimeError.
        pass
    return []


def _cache_folder() -> Path | None:
    chosen = os.environ.get(_CACHE_VARIABLE, "")
    if chosen:
        return None if chosen == "off" else Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "siltstone"


def _fingerprint() -> str:
    """Return a hash that identifies the installed Java and Spark."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"
    parts = [pyspark.__version__]
    for path in (java.resolve(), jars.resolve()):
        parts += [str(path), str(path.stat().st_mtime_ns) if path.exists() else ""]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _adopt(coming: Path, archive: Path) -> None:
    """Take over what an earlier JVM has written, once it is surely complete: the JVM writes the beginning last."""
    if not coming.exists() or time.time() - coming.stat().st_mtime <= _COMPLETE_SECONDS:
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
    """Return whether an archive is there and as it was; one that is not is removed, so that it is made again."""
    if not archive.exists():
        return False
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        if archive.with_suffix(_CHECKSUM).read_text() == _checksum(archive):
            return True
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
    """Return whether this process may make the archive: one at a time; the lock of one that died expires."""
    with contextlib.suppress(FileNotFoundError):
        if time.time() - lock.stat().st_mtime > _STALE_SECONDS:
            lock.unlink(missing_ok=True)
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
