"""A Spark job that hangs is cancelled once its worker has lost the claim, and commits nothing."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession
from tests.unit.rounds.compaction import make_table, rows
from tests.unit.service.cycling import Clock
from tests.waiting import LIMIT_SECONDS, wait_for

import siltstone
from siltstone.errors import LeaseLostError
from siltstone.rounds.events import Event, JobAwaited
from siltstone.service.claims import claim_table
from siltstone.service.database import Database, open_database
from siltstone.service.history import cycle_details
from siltstone.service.lake_tables import LakeTables
from siltstone.service.leader import Leader, Tick
from siltstone.service.settings import ServiceSettings
from siltstone.service.worker import Worker
from siltstone.spark.tasks import collect
from siltstone.testing.oracle import oracle_of, same_rows

# The claim itself never runs out here, however late a heartbeat of this process comes.
SETTINGS = ServiceSettings(
    heartbeat_seconds=0.05, claim_lease_seconds=1_000_000, retry_pause_seconds=0, backlog_bytes=None
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path, clock: Clock) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path}/service.db", clock=clock)
    yield opened
    opened.close()


def hang(path: Path) -> Callable[[], None]:
    """Make whoever opens a file wait for ever, as on a file system that is gone; return what ends that."""
    data = path.read_bytes()
    path.unlink()
    os.mkfifo(path)

    def heal() -> None:
        path.unlink()
        path.write_bytes(data)

    return heal


def data_file(table: siltstone.Table) -> Path:
    """Return the one file of a table's one delta."""
    (delta,) = table.deltas()
    (entry,) = delta.manifest.entries
    return Path(table.lake.root, urlparse(entry.uri).path)


def tick_later(leader: Leader, clock: Clock) -> Tick:
    """Tick after longer than a compaction may stand still."""
    clock.advance(SETTINGS.stuck_seconds + 1)
    return leader.tick()


def running_jobs(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


# Over Spark Connect nobody says which jobs run.
@pytest.mark.jvm
def test_a_hanging_compaction_is_cancelled_when_its_claim_is_taken(
    spark: SparkSession, database: Database, clock: Clock, local_root: str
) -> None:
    table = make_table(local_root)
    table.write(rows(range(100)))
    heal = hang(data_file(table))
    tables = LakeTables(siltstone.open(local_root), session=lambda: spark)
    leader = Leader(database, tables, SETTINGS, owner="n#1", name="n", monotonic=clock.monotonic)
    leader.tick()
    clock.advance(SETTINGS.interval_seconds + 1)
    assert leader.tick().action == "begun"
    claim = claim_table(database, "n#1", SETTINGS)
    assert claim is not None
    outcomes: list[bool] = []
    worker = Worker(database, tables, SETTINGS, owner="n#1")
    thread = threading.Thread(target=lambda: outcomes.append(worker.work(claim)), daemon=True)
    thread.start()
    wait_for("a job", lambda: running_jobs(spark))
    wait_for("an eviction", lambda: tick_later(leader, clock).evicted)
    thread.join(LIMIT_SECONDS)
    assert outcomes == [False]
    assert not running_jobs(spark)
    assert table.to_arrow().num_rows == 0
    heal()
    assert worker.step()
    assert leader.tick().action == "finished"
    same_rows(table.to_arrow().to_pylist(), oracle_of(table).rows())
    timeline = cycle_details(database, 1).timeline
    assert [(each.status, each.attempt) for each in timeline] == [("EXPIRED", 1), ("COMPLETED", 2)]
    assert "made no progress" in str(timeline[0].error)


def test_a_hanging_job_is_cancelled_however_early_its_progress_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    os.mkfifo(silent)

    def wait_for_ever(batches: Iterator[Any]) -> Iterator[Any]:
        silent.read_bytes()
        yield from batches

    told: list[Event] = []

    def refuse(event: Event) -> None:
        told.append(event)
        raise LeaseLostError("the claim is lost")

    with pytest.raises(LeaseLostError, match="the claim is lost"):
        collect(spark, spark.range(2).mapInArrow(wait_for_ever, "id long"), ["read"], refuse)
    assert told == [JobAwaited()]
    if isinstance(spark, SparkSession):
        assert not running_jobs(spark)
