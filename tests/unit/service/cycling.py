"""A small world for cycles: a clock that tests move, tables in memory, a database that fails on demand."""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from sqlalchemy import Connection, event, func, select
from sqlalchemy.exc import OperationalError

from siltstone.errors import SiltstoneError
from siltstone.model import PartitionLocator, PartitionValue
from siltstone.model.rounds import Accounting
from siltstone.publish.outcomes import Published, PublishFailure
from siltstone.rounds.events import BucketMerged, Progress, RoundStarted
from siltstone.rows.job import LASTING_ERRORS
from siltstone.service.claims import Claim, Outcome, OutcomeStatus, claim_table, release_partitions
from siltstone.service.database import Database, Transaction, open_database
from siltstone.service.history import service_status
from siltstone.service.leader import Leader, Tick
from siltstone.service.results import (
    Checkpointed,
    CheckpointResult,
    KeepAlive,
    PendingPartition,
    ServiceStatus,
    Tables,
    Trimmed,
)
from siltstone.service.schema import checkpoint_status, cycle_history, leader_lease, manager, metadata, schema
from siltstone.service.settings import ServiceSettings
from siltstone.service.worker import Worker
from siltstone.testing import Killed

T = TypeVar("T")
Fault = Literal["fail", "lose", "kill", "kill_after"]
START_MS = 1_800_000_000_000


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.passed_ms = START_MS

    def __call__(self, connection: Connection) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.passed_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ms += round(seconds * 1000)
        self.passed_ms += round(seconds * 1000)

    def step(self, seconds: float) -> None:
        """Set the clock forward or back; no time passes."""
        self.now_ms += round(seconds * 1000)


class FaultyDatabase(Database):
    """A database whose next transactions go wrong as listed, or whose process dies with them."""

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database.engine, clock=clock, sleep=lambda seconds: None)
        self.faults: list[Fault | None] = []
        self.transactions = 0

    def _once(self, do: Callable[[Transaction], T], *, reads: bool) -> T:
        self.transactions += 1
        fault = self.faults.pop(0) if self.faults else None

        def work(transaction: Transaction) -> T:
            result = do(transaction)
            if fault == "fail":
                raise OperationalError("injected", None, Exception("injected failure before the commit"))
            if fault == "kill":
                raise Killed("before the commit")
            return result

        result = super()._once(work, reads=reads)
        if fault == "lose":
            raise OperationalError("injected", None, Exception("injected loss of the answer to the commit"))
        if fault == "kill_after":
            raise Killed("after the commit")
        return result


@dataclass
class FakePartition:
    """A partition in memory: positions only."""

    position: int = 1
    watermark: int = 0
    trimmed: int = 0
    bytes_each: int = 100
    oldest_at: int = START_MS


@dataclass
class FakeTables:
    """Tables in memory, by the names of their partitions: `a` is the only one of a table, `t/1` one of several.

    `errors` are those of the next compactions of a partition, one each: those that last fail it alone. Hooks see what
    goes on.
    """

    partitions: dict[str, FakePartition] = field(default_factory=dict)
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    priorities: dict[str, int] = field(default_factory=dict)
    compactions: list[str] = field(default_factory=list)
    # How many partitions were compacted together each time.
    jobs: list[int] = field(default_factory=list)
    while_finding: Callable[[], object] | None = None
    while_compacting: Callable[[], object] | None = None
    listing_error: Exception | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find_work(self, keep_alive: KeepAlive) -> Sequence[PendingPartition]:
        if self.listing_error is not None:
            raise self.listing_error
        found = [
            PendingPartition(
                name=str(locator(name)),
                table=f"fake.{locator(name).table}",
                locator=locator(name),
                deltas=each.position - each.watermark,
                bytes=(each.position - each.watermark) * each.bytes_each,
                oldest_at=each.oldest_at,
                priority=self.priorities.get(name, 0),
            )
            for name, each in self.partitions.items()
            if each.position > each.watermark
        ]
        found += [
            PendingPartition(f"fake.{name}", f"fake.{name}", None, problem=why) for name, why in self.problems.items()
        ]
        if self.while_finding is not None:
            hook, self.while_finding = self.while_finding, None
            hook()
        keep_alive()
        return found

    def compact(self, partitions: Sequence[PartitionLocator], progress: Progress) -> Iterator[Checkpointed]:
        self.jobs.append(len(partitions))
        for partition in partitions:
            try:
                yield partition, self._compact(name_of(partition), progress)
            except LASTING_ERRORS as error:
                yield partition, error

    def _compact(self, name: str, progress: Progress) -> CheckpointResult:
        progress(RoundStarted((), 1, deltas=1, bytes=1, buckets=2, high_watermark=1))
        if self.errors.get(name):
            raise self.errors[name].pop(0)
        if name not in self.partitions:
            return CheckpointResult(None)
        position = self.partitions[name].position
        progress(BucketMerged(1, "minor", Accounting()))
        if self.while_compacting is not None:
            self.while_compacting()
        progress(BucketMerged(1, "minor", Accounting()))
        with self.lock:
            self.compactions.append(name)
            known = self.partitions[name]
            rows = position - known.watermark
            known.watermark = max(known.watermark, position)
        return CheckpointResult(known.watermark, 1, rows, rows * known.bytes_each, rows * 10)

    def trim(self, marks: Mapping[PartitionLocator, int], keep_alive: KeepAlive) -> Iterator[Trimmed]:
        assert len({partition.table for partition in marks}) == 1
        for partition, high_watermark in marks.items():
            keep_alive()
            known = self.partitions.get(name_of(partition))
            if known is None:
                yield partition, None
                continue
            assert high_watermark <= known.watermark, f"{partition}: would lose what is not compacted"
            count = max(high_watermark - known.trimmed, 0)
            known.trimmed += count
            yield partition, count

    def publish(self, keep_alive: KeepAlive) -> Iterator[Published | PublishFailure]:
        keep_alive()
        yield from ()

    def write(self, name: str, count: int = 1) -> None:
        self.partitions.setdefault(name, FakePartition(position=0)).position += count


def locator(name: str) -> PartitionLocator:
    table, _, value = name.partition("/")
    values: list[PartitionValue] = [value] if value else []
    return PartitionLocator(namespace="fake", table=table, table_version="1", stream="deltas", partition_values=values)


def name_of(partition: PartitionLocator) -> str:
    return "/".join([partition.table, *map(str, partition.partition_values)])


def names_of(claim: Claim) -> list[str]:
    """The names of the partitions of a claim, in its order."""
    return [name_of(partition.locator) for partition in claim.partitions]


class World:
    """A database, tables and a clock, and actors on them."""

    def __init__(self, address: str, settings: ServiceSettings | None = None, *, tables: str = "abc") -> None:
        self.clock = Clock()
        self.settings = settings or ServiceSettings(retry_pause_seconds=0, backlog_bytes=None)
        opened = open_database(address, clock=self.clock)
        if opened.engine.dialect.name == "sqlite":
            # Test databases need not survive a power cut.
            event.listen(opened.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
            opened.engine.dispose()
        self.database = FaultyDatabase(opened, self.clock)
        self.tables = FakeTables()
        for number, name in enumerate(tables, 1):
            self.tables.write(name, number)
        self.numbers = itertools.count(1)

    def leader(self, name: str = "", database: Database | None = None) -> Leader:
        name = name or f"leader{next(self.numbers)}"
        return Leader(
            database or self.database,
            self.tables,
            self.settings,
            owner=f"{name}#1",
            name=name,
            monotonic=self.clock.monotonic,
        )

    def worker(self, name: str = "", database: Database | None = None) -> Worker:
        name = name or f"worker{next(self.numbers)}"
        return Worker(database or self.database, self.tables, self.settings, owner=f"{name}#1")

    def claim(self, name: str = "someone") -> Claim:
        claim = claim_table(self.database, f"{name}#1", self.settings)
        assert claim is not None
        return claim

    def release(
        self,
        claim: Claim,
        status: OutcomeStatus = "COMPLETED",
        *,
        only: Sequence[str] | None = None,
        result: CheckpointResult | None = None,
        error: str | None = None,
        may_retry: bool = False,
    ) -> bool:
        """Hand all partitions of a claim back, or only some, by their names."""
        result = result or (CheckpointResult(1) if status == "COMPLETED" else None)
        names = names_of(claim) if only is None else only
        outcomes = [Outcome(str(locator(name)), status, result, error, may_retry) for name in names]
        return release_partitions(self.database, claim, outcomes, self.settings)

    def due(self) -> None:
        """Let the interval pass."""
        self.clock.advance(self.settings.interval_seconds + 1)

    def begin(self, leader: Leader | None = None) -> Leader:
        """Begin a cycle, and return its leader."""
        leader = leader or self.leader()
        leader.tick()
        self.due()
        assert leader.tick().action == "begun"
        return leader

    def watch(self, leader: Leader, seconds: float) -> Tick:
        """Let time pass while a leader ticks, and return its last tick."""
        while seconds > 20:
            self.clock.advance(20)
            seconds -= 20
            assert leader.tick().action == "watches"
        self.clock.advance(seconds)
        return leader.tick()

    def run_cycle(self, leader: Leader, worker: Worker) -> Tick:
        """Let an interval pass and a cycle run from beginning to end."""
        self.due()
        begun = leader.tick()
        assert begun.action == "begun", begun
        while worker.step():
            pass
        finished = leader.tick()
        assert finished.action == "finished", finished
        return finished

    @property
    def status(self) -> str | None:
        return service_status(self.database, self.settings).status

    @property
    def rows(self) -> dict[str, str]:
        """The status of each partition, by its name."""
        found = service_status(self.database, self.settings).checkpoints
        short = {str(locator(name)): name for name in self.tables.partitions}
        return {short.get(each.partition, each.table.removeprefix("fake.")): each.status for each in found}

    def kept(self) -> list[int]:
        """The numbers of all cycles that are stored, oldest first."""
        numbers = select(cycle_history.c.cycle_count).order_by(cycle_history.c.cycle_count)
        return self.database.read("test", lambda transaction: list(transaction.execute(numbers).scalars()))

    def close(self) -> None:
        """Leave the database as it was found, for the next test."""
        with self.database.engine.begin() as connection:
            for table in metadata.sorted_tables:
                if table is not schema and table is not leader_lease:
                    connection.execute(table.delete())
            connection.execute(
                leader_lease.update().values(term=0, holder=None, acquired_at=0, renewed_at=0, lease_until=0)
            )
        self.database.close()


def compact_one(
    tables: Tables, partition: PartitionLocator, progress: Progress = lambda event: None
) -> CheckpointResult:
    """Compact one partition, and return what that did, or raise why it failed."""
    ((found, result),) = tables.compact([partition], progress)
    assert found == partition
    if isinstance(result, SiltstoneError):
        raise result
    return result


def trim_one(tables: Tables, partition: PartitionLocator, high_watermark: int) -> int | None:
    """Trim one partition, and return how many deltas that were, None where it is gone, or raise why it failed."""
    ((found, count),) = tables.trim({partition: high_watermark}, lambda: None)
    assert found == partition
    if isinstance(count, SiltstoneError):
        raise count
    return count


def count_rows(database: Database) -> tuple[int, int]:
    """Return how many manager and checkpoint rows there are."""

    def read(transaction: Transaction) -> tuple[int, int]:
        return (
            transaction.execute(select(func.count()).select_from(manager)).scalar_one(),
            transaction.execute(select(func.count()).select_from(checkpoint_status)).scalar_one(),
        )

    return database.read("count rows", read)


def status_of(world: World) -> ServiceStatus:
    """Return what the service shows of itself."""
    return service_status(world.database, world.settings)
