"""How a SparkSession is built, and its archive of classes."""

import contextlib
import hashlib
import mmap
import os
import shlex
import shutil
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from siltstone.java import REMOTE, SUBMITTED, require_java
from siltstone.spark import gateway
from siltstone.spark.folders import make_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CACHE_VARIABLE = "SILTSTONE_CACHE"
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
    # Tasks of data frames have it; with it in all others, they use the same workers.
    "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
_without_worker: "WeakSet[SparkSession]" = WeakSet()
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
) -> "SparkSession":
    """Return a session inside this process, lean and quiet: no web page, no Hive, nothing left behind on disk.

    `conf` adds settings or overrides the ones here. A short session, of a command that compacts and ends, compiles in a
    hurry or not at all: it starts sooner, but long work inside the JVM is slower; and it leaves interrupts to the command.
    Where a session runs already, this process was started by spark-submit (as Glue does, too), or SPARK_REMOTE names a
    Spark Connect server, that session is returned, wherever its executors are.

    Raises: NotInstalledError.
    """
    is_elsewhere = SUBMITTED in os.environ or REMOTE in os.environ
    # Else pyspark is imported while Java starts.
    if is_elsewhere or gateway.is_running():
        from pyspark.sql import SparkSession

        existing = SparkSession.getActiveSession()
        if existing is not None:
            return existing
        if is_elsewhere:
            return SparkSession.builder.appName(name).getOrCreate()
    require_java()
    folder = make_folder()
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    # Java's temporary files are in the folder, too, so that they go with it, however Java ends.
    options = [f"-Dlog4j2.configurationFile={logging.as_uri()}", shlex.quote(f"-Djava.io.tmpdir={folder}")]
    options += [*archive_options(), *(["-XX:TieredStopAtLevel=1"] if is_short else _LATE_OPTIMIZATION)]
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(options),
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
    is_local = settings.get("spark.master", "local").startswith("local")
    # Elsewhere, what is installed may come to workers only after they were forked.
    if is_local:
        settings = {"spark.python.daemon.module": "siltstone.spark.daemon", **settings}
    # The workers need what this process has installed, whichever Python comes first on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.master": f"local[{cores}]", "spark.app.name": name, **settings}
    gateway.launch(settings, folder, is_short=is_short)
    if not is_short:
        return _make(settings)
    session = _made_elsewhere(lambda: _make(settings))
    if is_local:
        _without_worker.add(session)
    return session


def _make(settings: Mapping[str, str]) -> "SparkSession":
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextlib.contextmanager
def starting_worker(session: "SparkSession") -> Iterator[None]:
    """Meanwhile, where a short session has no Python worker yet, have Spark start one: that takes as long as to plan a first job."""
    if session not in _without_worker:
        yield
        return
    _without_worker.discard(session)
    thread = threading.Thread(target=_start_worker, args=[session], daemon=True)
    thread.start()
    try:
        yield
    finally:
        # A session that ends while a worker starts complains.
        thread.join()


def _start_worker(session: "SparkSession") -> None:
    with contextlib.suppress(Exception):
        session.sparkContext.parallelize([0], 1).count()


def _made_elsewhere(make: "Callable[[], SparkSession]") -> "SparkSession":
    """Return a session that another thread makes, so that this one can be interrupted meanwhile.

    In the main thread, Spark would also install a handler of interrupts that talks to Java while an answer is awaited.
    """
    made: Future[SparkSession] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            made.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    session = made.result()
    # Spark takes it for that of the thread which made it.
    type(session)._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
    return session


def archive_options() -> list[str]:
    """Return the JVM options that use the archive, or make it; none if there is no folder for it.

    The environment variable SILTSTONE_CACHE names the folder; `off` means no archive.
    """
    try:
        folder = cache_folder()
        if folder is None:
            return []
        archive = archive_file(folder)
        coming = archive.with_suffix(".coming")
        folder.mkdir(parents=True, exist_ok=True)
        _adopt(coming, archive)
        if is_whole(archive):
            # The warnings that are switched off go to the standard output, among them those of an archive that is unfit.
            return ["-Xlog:disable", f"-XX:SharedArchiveFile={archive}"]
        if archive.exists():
            # It is damaged, so that it is made again.
            _discard(archive)
        if _is_ours_to_make(archive.with_suffix(_LOCK)):
            return ["-Xlog:disable", f"-XX:ArchiveClassesAtExit={coming}"]
    except (OSError, RuntimeError):
        # A cache that cannot be written costs time, nothing else; without a home, Python raises a RuntimeError.
        pass
    return []


def cache_folder() -> Path | None:
    """Return the folder for what makes later starts faster; None where it is off. Raises: RuntimeError without a home."""
    chosen = os.environ.get(CACHE_VARIABLE, "")
    if chosen:
        return None if chosen == "off" else Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "siltstone"


def archive_file(folder: Path) -> Path:
    """Return where the archive of classes for the installed Java and Spark is, or will be."""
    return folder / f"spark-{_fingerprint()}.jsa"


def _fingerprint() -> str:
    """Return a hash that identifies the installed Java and Spark."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    parts = []
    for path in (java.resolve(), (gateway.spark_home() / "jars").resolve()):
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


def is_whole(archive: Path) -> bool:
    """Return whether an archive is as it was when it was written."""
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        return archive.with_suffix(_CHECKSUM).read_text() == _checksum(archive)
    return False


def _discard(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.with_suffix(_LOCK).unlink(missing_ok=True)


def _checksum(file: Path) -> str:
    size = file.stat().st_size
    if not size:
        return "0 00000000"
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) as data:
        return f"{size} {zlib.crc32(data):08x}"


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
