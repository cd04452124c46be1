"""A table that grows on a real cluster while its executors are killed: what is in it at the end, and what a kill costs.

`python -m benchmarks.lost_executors [--minutes 30] [--inserts 2000000] [--kill-every 3]` starts a master and two workers of
Spark's, and writes and compacts round after round: new keys, updates, deletes, and updates of some that were deleted. In
every third round an executor is killed with -9, at a random moment. It ends when time or 60 % of the free disk is used up. Then
every value of every row is compared with a ledger that the rounds were drawn from, and `fsck` reads all files. What a kill
costs is how much longer its round took than those next to it that did the same kind of work. It writes
benchmarks/results/lost_executors.json, and ends with 1 if a row is lost, doubled or wrong.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from dev.cluster import Cluster, cluster, environment
from pyspark.sql import SparkSession
from rich.console import Console

import siltstone
from benchmarks.versions import SCHEMA, Integers, Ledger, rows_of
from siltstone.storage import object_store as storage

RESULTS = Path(__file__).parent / "results/lost_executors.json"
PART_OF_DISK = 0.6
BATCH_ROWS = 500_000
ROUNDS_TO_VACUUM = 8
# Before that many rounds there is no telling how long one takes.
FIRST_KILL = 3

console = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Round:
    """What a round took, when an executor was killed in it, and whether it rewrote most of what it touched."""

    seconds: float
    killed_at: float | None
    is_rewrite: bool
    attempts: int


class Killer:
    """Kills one executor some time after it was started, unless the work has ended by then."""

    def __init__(self, spark: Cluster, draw: random.Random, delay: float) -> None:
        self.killed_at: float | None = None
        self._spark, self._draw = spark, draw
        self._started = time.monotonic()
        self._timer = threading.Timer(delay, self._kill)
        self._timer.start()

    def _kill(self) -> None:
        executors = self._spark.executors()
        if executors:
            os.kill(self._draw.choice(executors), signal.SIGKILL)
            self.killed_at = time.monotonic() - self._started

    def stop(self) -> None:
        self._timer.cancel()
        self._timer.join()


class Growth:
    """A table and the ledger of what was written to it."""

    def __init__(self, spark: SparkSession, machines: Cluster, root: Path, seed: int) -> None:
        self._spark, self._machines = spark, machines
        self.table = siltstone.open(root).create_table("shop.orders", schema=SCHEMA, primary_keys=["order_id"])
        self.ledger = Ledger()
        self.rounds: list[Round] = []
        self._draw = random.Random(seed)
        self._numbers = np.random.default_rng(seed)

    def write(self, inserts: int, updates: int) -> None:
        """Write new keys and updates, then deletes, then updates of which some bring deleted keys back."""
        version = 2 * len(self.rounds)
        old = self._keys(updates)
        new = self.ledger.insert(inserts, version)
        self.ledger.update(old, version)
        self._upsert(np.concatenate([old, new]), version)
        gone = self._keys(updates // 4)
        self.ledger.delete(gone)
        self.table.write(pa.table({"order_id": gone}), type="delete")
        back = np.concatenate([gone[: len(gone) // 2], self._keys(updates // 4)])
        self.ledger.update(back, version + 1)
        self._upsert(back, version + 1)

    def _keys(self, count: int) -> Integers:
        return np.unique(self._numbers.integers(0, max(self.ledger.keys, 1), count if self.ledger.keys else 0))

    def _upsert(self, keys: Integers, version: int) -> None:
        parts = (keys[start : start + BATCH_ROWS] for start in range(0, len(keys), BATCH_ROWS))
        batches = (rows_of(part, np.full(len(part), version)).to_batches() for part in parts)
        self.table.write(batch for each in batches for batch in each)

    def compact(self, *, is_to_kill: bool) -> Round:
        """Compact on the cluster, and kill an executor meanwhile; a session that fails is begun again."""
        # A round may be rewriting, and take several times as long: a late moment is as good as an early one.
        delay = self._draw.uniform(0, 1.2) * statistics.median(each.seconds for each in self.rounds[-9:] or [_NO_ROUND])
        started, attempts = time.monotonic(), 0
        killer = Killer(self._machines, self._draw, delay) if is_to_kill else None
        try:
            while True:
                attempts += 1
                try:
                    self.table.compact(spark=self._spark)
                    break
                except Exception as error:
                    console.print(f"  a session failed: {str(error).splitlines()[0]}")
                    if attempts == 3:
                        raise
        finally:
            if killer is not None:
                killer.stop()
        (current,) = self.table.current_rounds()
        actions = current.bucket_actions
        is_rewrite = actions.get("major", 0) > actions.get("minor", 0)
        done = Round(time.monotonic() - started, killer.killed_at if killer else None, is_rewrite, attempts)
        self.rounds.append(done)
        return done

    def clean_up(self) -> None:
        """Forget what was compacted and which rounds were before, and remove files that nothing names."""
        (source,) = self.table._sources()
        (current,) = self.table.current_rounds()
        root = self.table.lake.root
        storage.delete_deltas(source, last_stream_position=current.high_watermark, root=root)
        self.table.vacuum(retention_ms=0, orphan_grace_ms=0)


_NO_ROUND = Round(0, None, False, 0)


def seconds_lost(rounds: list[Round]) -> list[float]:
    """Return for each killed round how much longer it took than the nearest ones before and after that were of its kind."""
    lost = []
    for number, killed in enumerate(rounds):
        if killed.killed_at is None:
            continue

        def alike(each: Round, kind: bool = killed.is_rewrite) -> bool:
            return each.killed_at is None and each.is_rewrite == kind

        before = next((each.seconds for each in reversed(rounds[:number]) if alike(each)), None)
        after = next((each.seconds for each in rounds[number + 1 :] if alike(each)), None)
        beside = [each for each in (before, after) if each is not None]
        if beside:
            lost.append(killed.seconds - statistics.mean(beside))
    return lost


@contextlib.contextmanager
def session(machines: Cluster) -> Iterator[SparkSession]:
    os.environ.update(environment({}))
    options: dict[str, bool | float | int | str | None] = {
        "spark.executor.memory": "1500m", "spark.executor.cores": "1", "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false", "spark.task.maxFailures": "8", "spark.log.level": "FATAL",
    }  # fmt: skip
    spark = SparkSession.builder.master(machines.master).config(map=options).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def grow(growth: Growth, options: argparse.Namespace, folder: Path) -> str:
    """Write and compact until something is used up, and return what that was."""
    free = shutil.disk_usage(folder).free
    until = time.monotonic() + 60 * options.minutes
    while True:
        number = len(growth.rounds)
        growth.write(options.inserts, options.updates)
        done = growth.compact(is_to_kill=number >= FIRST_KILL and number % options.kill_every == 0)
        killed = f", an executor killed after {done.killed_at:.1f} s" if done.killed_at is not None else ""
        kind = "rewritten" if done.is_rewrite else "minor"
        console.print(f"round {number + 1}: {growth.ledger.live_rows:,} rows, {kind}, {done.seconds:.1f} s{killed}")
        if number % ROUNDS_TO_VACUUM == ROUNDS_TO_VACUUM - 1:
            growth.clean_up()
        kills = sum(each.killed_at is not None for each in growth.rounds)
        if options.kills and kills >= options.kills:
            return "kills"
        if time.monotonic() > until:
            return "minutes"
        if free - shutil.disk_usage(folder).free > PART_OF_DISK * free:
            return "bytes of disk"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with cluster(folder, memory="2g") as machines, session(machines) as spark:
        growth = Growth(spark, machines, folder / "lake", options.seed)
        started = time.monotonic()
        ended_by = grow(growth, options, folder)
        minutes = (time.monotonic() - started) / 60
        deaths = machines.deaths()
    table, rounds = growth.table, growth.rounds
    console.print("comparing all rows, and reading all files")
    wrong = growth.ledger.check(table.to_batches())
    wrong += [str(finding) for finding in table.fsck(deep=True)]
    vacuumed = table.vacuum(retention_ms=0, orphan_grace_ms=0)
    wrong += [f"after a vacuum: {finding}" for finding in table.fsck()]
    (current,) = table.current_rounds()
    lost = seconds_lost(rounds)
    return {
        "wrong": wrong,
        "rows": growth.ledger.live_rows,
        "keys ever": growth.ledger.keys,
        "bytes of data": sum(file.content_length for file in current.files),
        "bytes of key index": sum(file.index_length or 0 for file in current.files),
        "buckets": len(current.buckets),
        "files": len(current.files),
        "ended by": ended_by,
        "minutes": round(minutes, 1),
        "rounds": len(rounds),
        "rounds that rewrote": sum(each.is_rewrite for each in rounds),
        "sessions that failed": sum(each.attempts - 1 for each in rounds),
        "kills": sum(each.killed_at is not None for each in rounds),
        "deaths that workers saw": deaths,
        "seconds of a round": {
            "with a kill": middle([each.seconds for each in rounds if each.killed_at is not None]),
            "without": middle([each.seconds for each in rounds if each.killed_at is None]),
        },
        "seconds lost per kill": {
            "median": middle(lost),
            "most": round(max(lost), 2) if lost else None,
            "kills": len(lost),
        },
        "files removed afterwards that nothing names": len(vacuumed.removed_files),
    }


def middle(seconds: list[float]) -> float | None:
    return round(statistics.median(seconds), 2) if seconds else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--inserts", type=int, default=2_000_000, help="new keys of a round")
    parser.add_argument("--updates", type=int, default=200_000, help="updates of a round; a quarter as many deletes")
    parser.add_argument("--kill-every", type=int, default=3, help="kill an executor in every n-th round")
    parser.add_argument("--kills", type=int, default=0, help="end after so many kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where table and cluster are kept, by default a temporary folder")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, and keep no file of them")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="siltstone-growing-", dir=options.folder))
    # Whoever ends this early wants no cluster and no table left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        result = measure(options, folder)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(result))
    else:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        console.print_json(json.dumps(result))
    sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
