"""A standalone cluster of Spark's on this machine: a master, and workers of one core whose executors may be killed."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark
from tests.waiting import LIMIT_SECONDS, wait_for

HOME = Path(pyspark.__file__).parent
_SPARK_CLASS = str(HOME / "bin/spark-class")
_DEPLOY = "org.apache.spark.deploy"
_ADDRESS = ("--host", "127.0.0.1", "--webui-port", "0")


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what master, workers and sessions need beside `base`."""
    return {**base, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@contextlib.contextmanager
def process(log: Path, variables: Mapping[str, str], *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for as long as the block lasts; what it prints goes to `log`, and it works in the log's folder."""
    with log.open("wb") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output, env=dict(variables), cwd=log.parent)  # noqa: S603
    try:
        yield started
    finally:
        started.terminate()
        started.wait(LIMIT_SECONDS)


@dataclass(frozen=True)
class Cluster:
    """Where the master listens, and the processes and logs of its workers."""

    master: str
    workers: tuple[int, ...]
    logs: tuple[Path, ...]

    def executors(self) -> list[int]:
        """Return the executor processes that run now."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                if parent in self.workers and "CoarseGrainedExecutorBackend" in (status.parent / "cmdline").read_text():
                    found.append(int(status.parent.name))
        return found

    def deaths(self) -> int:
        """Return how many executors the workers saw end by `kill -9`."""
        return sum(log.read_text(errors="replace").count("exitStatus 137") for log in self.logs)


@contextlib.contextmanager
def cluster(
    folder: Path, *, workers: int = 2, memory: str = "1g", variables: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Start a master and workers of one core each, whose logs are in `folder`, and end them with the block."""
    variables = environment() if variables is None else variables
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(process(log, variables, _SPARK_CLASS, f"{_DEPLOY}.master.Master", *_ADDRESS, "--port", "0"))
        says = r"Starting Spark master at (spark://\S+:\d+)"
        master = wait_for("the master", lambda: re.search(says, log.read_text()))[1]
        logs = tuple(folder / f"worker{number}.log" for number in range(workers))
        started = []
        for number, log in enumerate(logs):
            size = ["--cores", "1", "--memory", memory, "--work-dir", str(folder / f"work{number}")]
            worker = [_SPARK_CLASS, f"{_DEPLOY}.worker.Worker", *_ADDRESS, *size, master]
            started.append(stack.enter_context(process(log, variables, *worker)).pid)
        yield Cluster(master, tuple(started), logs)
