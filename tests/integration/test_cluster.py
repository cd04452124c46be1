"""A round on a real cluster of several processes finishes correctly although an executor is killed in the middle."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyspark
import pytest

import siltstone
from siltstone.testing.oracle import oracle_of, same_rows
from tests.waiting import LIMIT_SECONDS, wait_for

pytestmark = pytest.mark.integration

ROWS = 60_000
# Its tasks begin when both executors are there, and it does not end before it is told to.
COMPACT = """
import sys, siltstone
from pyspark.sql import SparkSession
from siltstone.rounds.events import JobAwaited
from siltstone.rows.job import Settings
from siltstone.table.completion import compacted_partition, source_partitions
from siltstone.spark.compaction import compact_partition
master, root, may_end = sys.argv[1:]
told = []
def wait(event):
    if event == JobAwaited() and not told:
        with open(may_end) as file:
            told.append(file.readline())
spark = (SparkSession.builder.master(master).config("spark.executor.memory", "600m").config("spark.executor.cores", "1")
         .config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
         .config("spark.driver.bindAddress", "127.0.0.1").config("spark.task.maxFailures", "8")
         .config("spark.cores.max", "2").config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
         .config("spark.scheduler.maxRegisteredResourcesWaitingTime", "300s").getOrCreate())
(source,) = source_partitions("shop.orders", root=root)
done = compact_partition(source, compacted_partition(source), ["id"], compaction_artifact_path=root, spark=spark,
                         settings=Settings(bucket_rows=500), progress=wait)
print(done.rounds[-1].high_watermark)
"""


def environment() -> dict[str, str]:
    home = str(Path(pyspark.__file__).parent)
    return {**os.environ, "SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@contextlib.contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output, env=environment(), cwd=log.parent)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(LIMIT_SECONDS)


def master_address(log: Path) -> str:
    """Return where a master listens, once it has said so."""
    return wait_for("the master", lambda: re.search(r"Starting Spark master at (spark://\S+:\d+)", log.read_text()))[1]


def executors(workers: list[int]) -> list[int]:
    """Return the executor processes that these workers started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if parent in workers and "CoarseGrainedExecutorBackend" in (status.parent / "cmdline").read_text():
                found.append(int(status.parent.name))
    return found


def test_a_round_survives_the_death_of_an_executor(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    table = siltstone.open(root).create_table("shop.orders", schema={"id": "int64", "n": "int64"}, primary_keys=["id"])
    rng = np.random.default_rng(7)
    for number in range(6):
        table.write(pa.table({"id": rng.integers(0, ROWS, ROWS // 3), "n": np.full(ROWS // 3, number)}))
    table.write(pa.table({"id": range(0, ROWS, 7)}), type="delete")

    spark_class = str(Path(pyspark.__file__).parent / "bin/spark-class")
    deploy = "org.apache.spark.deploy"
    with contextlib.ExitStack() as stack:
        address = ["--host", "127.0.0.1", "--webui-port", "0"]
        stack.enter_context(
            process(tmp_path / "master.log", spark_class, f"{deploy}.master.Master", *address, "--port", "0")
        )
        master = master_address(tmp_path / "master.log")
        workers = [
            stack.enter_context(
                process(
                    tmp_path / f"worker{number}.log",
                    spark_class,
                    f"{deploy}.worker.Worker",
                    *address,
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--work-dir",
                    str(tmp_path / f"work{number}"),
                    master,
                )
            ).pid
            for number in range(2)
        ]
        may_end = tmp_path / "may_end"
        os.mkfifo(may_end)
        session = stack.enter_context(
            process(tmp_path / "session.log", sys.executable, "-c", COMPACT, master, root, str(may_end))
        )
        compacted = Path(root) / "tables"
        wait_for("a merged bucket", lambda: list(compacted.glob("shop/orders/*/compacted/_/*.parquet")))
        alive = executors(workers)
        assert len(alive) == 2
        assert session.poll() is None
        os.kill(alive[0], signal.SIGKILL)
        logs = [tmp_path / f"worker{number}.log" for number in range(2)]
        wait_for("the death of the executor", lambda: any("exitStatus 137" in log.read_text() for log in logs))
        may_end.write_text("go on\n")
        assert session.wait(LIMIT_SECONDS) == 0, (tmp_path / "session.log").read_text()[-4000:]

    assert (tmp_path / "session.log").read_text().rstrip().endswith("7")
    same_rows(table.to_arrow(), oracle_of(table).rows())
    assert table.fsck(deep=True) == []
    orphans = table.vacuum(orphan_grace_ms=0)
    assert table.fsck(deep=True) == []
    assert orphans.kept_files > 0
