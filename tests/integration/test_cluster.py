"""A round on a real cluster of several processes finishes correctly although an executor is killed in the middle."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from dev.cluster import cluster, environment, process

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


def test_a_round_survives_the_death_of_an_executor(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    table = siltstone.open(root).create_table("shop.orders", schema={"id": "int64", "n": "int64"}, primary_keys=["id"])
    rng = np.random.default_rng(7)
    for number in range(6):
        table.write(pa.table({"id": rng.integers(0, ROWS, ROWS // 3), "n": np.full(ROWS // 3, number)}))
    table.write(pa.table({"id": range(0, ROWS, 7)}), type="delete")

    with contextlib.ExitStack() as stack:
        spark = stack.enter_context(cluster(tmp_path))
        may_end = tmp_path / "may_end"
        os.mkfifo(may_end)
        command = [sys.executable, "-c", COMPACT, spark.master, root, str(may_end)]
        session = stack.enter_context(process(tmp_path / "session.log", environment(), *command))
        compacted = Path(root) / "tables"
        wait_for("a merged bucket", lambda: list(compacted.glob("shop/orders/*/compacted/_/*.parquet")))
        alive = spark.executors()
        assert len(alive) == 2
        assert session.poll() is None
        os.kill(alive[0], signal.SIGKILL)
        wait_for("the death of the executor", spark.deaths)
        may_end.write_text("go on\n")
        assert session.wait(LIMIT_SECONDS) == 0, (tmp_path / "session.log").read_text()[-4000:]

    assert (tmp_path / "session.log").read_text().rstrip().endswith("7")
    same_rows(table.to_arrow(), oracle_of(table).rows())
    assert table.fsck(deep=True) == []
    orphans = table.vacuum(orphan_grace_ms=0)
    assert table.fsck(deep=True) == []
    assert orphans.kept_files > 0
