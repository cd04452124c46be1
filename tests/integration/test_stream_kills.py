"""A streaming query whose driver is killed again and again, and whose tasks fail: each batch is there once.

`SILTSTONE_CHAOS_KILLS` says how many drivers are killed; `make test-chaos` kills a hundred.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import siltstone
from siltstone.log.commit import forget_logs

pytestmark = pytest.mark.integration
KILLS = int(os.environ.get("SILTSTONE_CHAOS_KILLS", "4"))
# Where a driver dies: before it commits what tasks staged, after that and before Spark notes it, before it discards what
# they staged, and after that.
POINTS = ("staged", "committed", "aborting", "aborted")
ROWS = 5
DRIVER = """
import os, signal, sys
from pyspark import TaskContext
from pyspark_siltstone import DefaultSource
from siltstone.spark import local_session
from siltstone.spark.sink import SiltstoneStreamWriter

root, folder, point, batch_id = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
driver = os.getpid()

class DyingWriter(SiltstoneStreamWriter):
    def write(self, iterator):
        number = TaskContext.get().partitionId()
        if point.startswith("abort") and number == 1:
            raise OSError("this task fails whenever it is tried")
        staged = super().write(iterator)
        marker = f"{folder}/failed-{number}"
        if point == "retried" and not os.path.exists(marker):
            open(marker, "w").close()
            raise OSError("this task fails when it is tried first, after it wrote its files")
        return staged

    def commit(self, messages, batchId):
        die("staged", batchId)
        super().commit(messages, batchId)
        die("committed", batchId)

    def abort(self, messages, batchId):
        die("aborting", batchId)
        super().abort(messages, batchId)
        die("aborted", batchId)

def die(at, batch):
    if at == point and batch >= batch_id:
        os.killpg(driver, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

class Dying(DefaultSource):
    def streamWriter(self, schema, overwrite):
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = DyingWriter
        return writer

cores = "2,3" if point == "retried" else 2
spark = local_session("dying", cores=cores, is_short=True, conf={
    "spark.speculation": "true", "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.1",
    "spark.log.level": "OFF",
})
spark.dataSource.register(Dying)
frame = spark.readStream.schema("id long, file long").option("maxFilesPerTrigger", 1).json(folder + "/source")
query = frame.repartition(2).writeStream.format("siltstone").option("root", root)
query = query.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start("shop.orders")
query.awaitTermination()
"""


class Stream:
    """A table without a key, and a folder of files that a driver streams into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = str(folder / "lake")
        self.table = siltstone.open(self.root).create_table("shop.orders", schema={"id": "int64", "file": "int64"})
        (folder / "source").mkdir()
        self.count = 0

    def add(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            aside = self.folder / "aside"
            aside.write_text("\n".join(json.dumps({"id": row, "file": number}) for row in range(ROWS)))
            aside.rename(self.folder / "source" / f"{number:05}.json")
        self.count += count

    def drive(self, point: str, batch_id: int = 0) -> int:
        """Run a driver until it ends, or dies; return its exit code."""
        command = [sys.executable, "-c", DRIVER, self.root, str(self.folder), point, str(batch_id)]
        with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as driver:
            try:
                _, errors = driver.communicate(timeout=300)
            except BaseException:
                os.killpg(driver.pid, signal.SIGKILL)
                raise
        assert driver.returncode in (0, -signal.SIGKILL), errors.decode()
        return driver.returncode

    def positions(self) -> list[int]:
        forget_logs(self.root)
        return [delta.stream_position for delta in self.table.deltas()]

    def check(self) -> None:
        """Check that every file is there, each once, in a batch of its own."""
        assert self.positions() == list(range(1, self.count + 1))
        found = self.table.scan(fresh=True).to_arrow().to_pylist()
        assert sorted((row["file"], row["id"]) for row in found) == [
            (file, row) for file in range(self.count) for row in range(ROWS)
        ]
        assert self.table.fsck(deep=True) == []


def test_a_stream_whose_driver_is_killed_again_and_again_has_each_batch_once(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    chance = random.Random(14)
    for kill, point in zip(range(KILLS), itertools.cycle(POINTS), strict=False):
        stream.add(chance.randint(1, 3))
        done = len(stream.positions())
        # Where a task fails, that is in the first batch, which may be one that is committed; others may finish some before.
        batch_id = 0 if point.startswith("abort") else chance.randint(done, stream.count - 1)
        assert stream.drive(point, batch_id) == -signal.SIGKILL, f"kill {kill}"
        known = len(stream.positions())
        assert known == {"staged": batch_id, "committed": batch_id + 1}.get(point, done), f"kill {kill}, {point}"
    stream.add(1)
    assert stream.drive("none") == 0
    stream.check()


def test_tasks_that_are_tried_again_or_twice_double_nothing(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.add(3)
    assert stream.drive("retried") == 0
    assert len(list(tmp_path.glob("failed-*"))) == 2, "each of the two tasks must have failed once"
    stream.check()
