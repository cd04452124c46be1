"""A table that follows another one by its feed, while that one is written to and compacted, and the streaming driver is killed.

`SILTSTONE_CHAOS_MINUTES` says for how long; `make test-chaos` takes ten.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.log.commit import forget_logs
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition, list_rounds, locate_compacted
from siltstone.testing.oracle import comparable, same_rows
from tests.unit.feed_query import Query

pytestmark = pytest.mark.integration
SECONDS = 60 * float(os.environ.get("SILTSTONE_CHAOS_MINUTES", "0"))
LEAST_KILLS = 1
KEYS = 400
SCHEMA = {"zone": "string", "id": "int64", "v": "string", "n": "int64"}
DRIVER = """
import sys
from siltstone.spark import local_session

root, folder, is_last = sys.argv[1], sys.argv[2], sys.argv[3] == "last"
spark = local_session("soak", cores=2, is_short=True, conf={"spark.log.level": "OFF"})
how = {"availableNow": True} if is_last else {"processingTime": "0 seconds"}

def stream(feed, into, select, source, sink):
    reader = spark.readStream.format("siltstone").options(root=root, feed=feed, max_positions="5", **source)
    writer = reader.load("shop.a").selectExpr(*select).writeStream.format("siltstone").options(root=root, **sink)
    return writer.option("checkpointLocation", f"{folder}/{into}").trigger(**how).start(f"shop.{into}")

columns = ["zone", "id", "v", "n"]
op = "if(_change_type = 'delete', 'd', 'u') as op"
queries = [
    stream("changes", "b", [*columns, op], {"images": "after", "snapshot": "true"}, {"op_column": "op"}),
    stream("deltas", "c", [*columns, "_op as op", "_position as at", "_row as place"], {}, {"type": "append"}),
]
for query in queries:
    query.awaitTermination()
"""


class Soak:
    """Table a, which is written to; b, which is to be the same; and c, with every row of every delta of a."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lake = siltstone.open(folder / "lake")
        keys: dict[str, Any] = {"primary_keys": ["zone", "id"], "partition_keys": ["zone"]}
        self.a = lake.create_table("shop.a", schema=SCHEMA, **keys)
        self.b = lake.create_table("shop.b", schema=SCHEMA, **keys)
        self.c = lake.create_table("shop.c", schema={**SCHEMA, "op": "string", "at": "int64", "place": "int64"})
        self.chance = random.Random(31)
        self.done: Counter[str] = Counter()

    @contextlib.contextmanager
    def driver(self, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a driver, which is dead in the end."""
        command = [sys.executable, "-c", DRIVER, self.a.lake.root, str(self.folder), *(more or ("on",))]
        with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as driver:
            try:
                yield driver
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(driver.pid, signal.SIGKILL)

    def step(self) -> None:
        """Do something to a, or compact b."""
        ways = {
            self.write: 50, self.delete: 4, self.overwrite: 2, self.compact: 25, self.rewrite: 4, self.split: 4, self.roll_back: 3,
            self.compact_copy: 2,
        }  # fmt: skip
        (way,) = self.chance.choices(list(ways), list(ways.values()))
        way()
        self.done[way.__name__] += 1

    def rows(self, count: int) -> dict[str, Any]:
        ids = [self.chance.randrange(KEYS) for _ in range(count)]
        zones = [("eu", "us", "asia")[number % 3] for number in ids]
        values = [self.chance.choice("abcde") for _ in ids]
        return {"zone": zones, "id": ids, "v": values, "n": [self.chance.randrange(1000) for _ in ids]}

    def write(self) -> None:
        made = self.rows(self.chance.randint(1, 60))
        operations = [self.chance.choice("uuud") for _ in made["id"]]
        self.a.write(pa.table({**made, "op": operations}), op_column="op")

    def delete(self) -> None:
        value, number = self.chance.choice("abcde"), self.chance.randrange(10)
        self.a.write(pa.table({"v": [value], "n": [number]}), "delete", ["v", "n"])

    def overwrite(self) -> None:
        self.a.write(pa.table(self.rows(30)), mode="overwrite", partitions="present")

    def compact(self) -> None:
        for source in self.a._sources():
            # Partitions that wait make the others wait.
            if self.chance.random() < 0.7:
                self.round(source, Settings(max_dead_fraction=0.5, max_files=4))

    def rewrite(self) -> None:
        for source in self.a._sources():
            self.round(source, Settings(full=True))

    def split(self) -> None:
        for source in self.a._sources():
            self.round(source, Settings(bucket_rows=20))

    def round(self, source: Any, settings: Settings) -> None:
        request = Request(source, compacted_partition(source), ("zone", "id"), self.a.lake.root, settings=settings)
        run_session(request, run_here)

    def roll_back(self) -> None:
        for source in self.a._sources():
            rounds = [int(entry["round_id"]) for entry in list_rounds(locate_compacted(source, root=self.a.lake.root))]
            if len(rounds) > 1:
                self.a.rollback(self.chance.choice(rounds[-4:-1]), partition_values=source.partition_values)

    def compact_copy(self) -> None:
        self.b.compact(engine="local")

    def positions(self) -> tuple[int, int]:
        """Return how far the two copies have come."""
        forget_logs(self.a.lake.root)
        b, c = (max((delta.stream_position for delta in each.deltas()), default=0) for each in (self.b, self.c))
        return b, c

    def soak(self, until: float) -> None:
        """Let a driver follow, and kill it some time after both copies moved on."""
        with self.driver() as driver:
            before, moved_at = self.positions(), None
            wait = self.chance.uniform(0.5, 20 if SECONDS else 3)
            limit = time.monotonic() + 300
            while moved_at is None or time.monotonic() < min(moved_at + wait, max(until, moved_at)):
                self.step()
                time.sleep(self.chance.uniform(0, 0.2))
                assert driver.poll() is None, driver.stderr and driver.stderr.read().decode()
                assert time.monotonic() < limit, "the copies do not move on"
                if moved_at is None and all(new > old for new, old in zip(self.positions(), before, strict=True)):
                    moved_at = time.monotonic()
        self.done["kills"] += 1

    def finish(self) -> None:
        """Compact all there is, and let a driver take what is left."""
        self.a.compact(engine="local")
        with self.driver("last") as driver:
            _, errors = driver.communicate(timeout=300)
        assert driver.returncode == 0, errors.decode()
        forget_logs(self.a.lake.root)


def test_a_table_that_follows_a_feed_is_the_same_in_the_end(tmp_path: Path) -> None:
    soak = Soak(tmp_path)
    for _ in range(10):
        soak.step()
    until = time.monotonic() + SECONDS
    while soak.done["kills"] < LEAST_KILLS or time.monotonic() < until:
        soak.soak(until)
    soak.finish()
    print(
        dict(soak.done),
        "positions of a:",
        len({delta.stream_position for delta in soak.a.deltas()}),
        "b, c:",
        soak.positions(),
    )
    same_rows(soak.b.scan(fresh=True).to_arrow(), soak.a.to_arrow().to_pylist())
    written = Query(soak.a, feed="deltas")
    written.run()
    expected = Counter(
        comparable((row["zone"], row["id"], row["v"], row["n"], row["_op"], row["_position"], row["_row"]))
        for row in written.rows
    )
    found = soak.c.scan(fresh=True).to_arrow().to_pylist()
    assert Counter(comparable(tuple(row.values())) for row in found) == expected
    for table in (soak.a, soak.b, soak.c):
        assert table.fsck(deep=True) == []
