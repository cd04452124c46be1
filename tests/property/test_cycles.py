"""Any interleaving of leaders, workers, crashes, pauses, set clocks, database failures and operators keeps the database right."""

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import Row, insert, select

from siltstone.errors import StorageError
from siltstone.service import controls
from siltstone.service.claims import (
    Beat,
    Claim,
    Outcome,
    OutcomeStatus,
    claim_table,
    release_partitions,
    send_heartbeat,
)
from siltstone.service.database import Transaction
from siltstone.service.history import service_status
from siltstone.service.leader import Leader
from siltstone.service.results import CheckpointResult
from siltstone.service.schema import (
    active_checkpoints,
    checkpoint_detail,
    checkpoint_status,
    cycle_history,
    leader_lease,
    manager,
)
from siltstone.service.settings import ServiceSettings
from siltstone.testing import Killed
from tests.unit.service.cycling import Fault, World, locator, names_of

R = TypeVar("R")
# One table with several partitions, of which not all fit one claim, and two with one each.
NAMES = ("a", "b", "t/1", "t/2", "t/3", "t/4")
SETTINGS = ServiceSettings(retry_pause_seconds=0, backlog_bytes=None, claim_partitions=3)
SECONDS = st.sampled_from([0.5, 5, 20, 50, 70, 200, 400, 1000, 8000])
# -1 is whoever leads, so that something happens.
LEADERS = st.sampled_from([-1, -1, 0, 1, 2])
WORKERS = st.integers(0, 2)
NO_FAULTS: list[Fault | None] = []
FAULTS: st.SearchStrategy[list[Fault | None]] = st.builds(
    lambda skipped, kind, count: [*[None] * skipped, *[kind] * count],
    # Most ticks begin or finish in their third transaction, where it matters most.
    st.sampled_from([2, 2, 2, 0, 1, 3, 4]),
    st.sampled_from(["lose", "lose", "fail", "kill_after", "kill"]),
    st.sampled_from([1, 2, 6]),
)
STEPS = [
    *["worker_takes_its_next_step"] * 6,
    *["a_cycle_is_asked_for_and_begins"] * 3,
    *["leader_ticks"] * 3,
    *["leader_ticks_while_the_database_fails"] * 4,
    *["leader_sleeps_within_a_tick"] * 2,
    *["claims_without_heartbeats_expire"] * 2,
    *["all_workers_do_all_there_is"] * 2,
    "the_lead_passes_on",
    "worker_gives_up",
    *["worker_hands_some_back"] * 2,
    "worker_sends_a_heartbeat",
    "worker_dies",
    "time_passes",
    *["the_clock_is_set"] * 2,
    "operator_asks_for_a_trim",
    "operator_intervenes",
]
KEPT_BEFORE = 97


@dataclass(frozen=True)
class With:
    """What a step is done with: each takes what it needs."""

    leader: int
    worker: int
    faults: list[Fault | None]
    is_faulty: bool
    seconds: float
    writes: list[str]
    flag: bool

    @property
    def maybe_faults(self) -> list[Fault | None]:
        return self.faults if self.is_faulty else NO_FAULTS


WITH = st.builds(
    With,
    leader=LEADERS,
    worker=WORKERS,
    faults=FAULTS,
    is_faulty=st.booleans(),
    seconds=SECONDS,
    writes=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
    flag=st.booleans(),
)


@dataclass
class Job:
    """What a worker holds: its claim, the rounds it planned on with their positions, and what it has committed."""

    claim: Claim
    planned: dict[str, tuple[int, int]]
    unsent: dict[str, CheckpointResult] = field(default_factory=dict)


@dataclass
class Stored:
    """All that is stored, of one moment."""

    manager: Row[tuple[object, ...]] | None
    kept: list[int]
    claims: set[str]
    rows: Sequence[Row[tuple[object, ...]]]
    completed: list[tuple[int, str]]
    term: int
    holder: str | None
    is_blocked: bool


def _read_stored(transaction: Transaction) -> Stored:
    results = select(checkpoint_detail).where(checkpoint_detail.c.status == "COMPLETED")
    kept = select(cycle_history.c.cycle_count).order_by(cycle_history.c.cycle_count)
    return Stored(
        manager=transaction.execute(select(manager)).first(),
        kept=list(transaction.execute(kept).scalars()),
        claims=set(transaction.execute(select(active_checkpoints.c.claim_id)).scalars()),
        rows=transaction.execute(select(checkpoint_status)).all(),
        completed=[(each.cycle, each.partition) for each in transaction.execute(results)],
        term=transaction.execute(select(leader_lease.c.term)).scalar_one(),
        holder=transaction.execute(select(leader_lease.c.holder)).scalar_one(),
        is_blocked=bool(controls.current_controls(transaction, transaction.now_ms())),
    )


class CycleMachine(RuleBasedStateMachine):
    """Three leaders and three workers on one database, and what must be true of it whatever they do."""

    @initialize(is_old=st.booleans(), writes=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6))
    def start(self, is_old: bool, writes: list[str]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(f"sqlite:///{Path(self.folder.name)}/service.db", SETTINGS, tables="")
        self.incarnations = itertools.count(1)
        self.leaders = [self.new_leader() for _ in range(3)]
        self.jobs: list[Job | None] = [None] * 3
        self.owners = [self.new_owner() for _ in range(3)]
        # The newest round of each partition; a commit is conditional on the one that it was planned on.
        self.rounds: Counter[str] = Counter()
        self.accepted: Counter[tuple[int, str]] = Counter()
        self.unpruned = 0
        self.term = 0
        self.is_blocked = False
        self.holder: str | None = None
        for name in writes:
            self.world.tables.write(name)
        if is_old:
            self.make_old()

    def make_old(self) -> None:
        """Give the service a past, so that pruning has something to do."""
        values = [
            {
                **{column.name: 0 for column in cycle_history.columns if column.name != "trimmed_deltas"},
                "cycle_count": number,
                "status": "COMPLETED",
                "trigger_reason": "interval",
                "leader": "x",
                "failed_partitions": "[]",
            }
            for number in range(1, KEPT_BEFORE + 1)
        ]
        with self.world.database.engine.begin() as connection:
            connection.execute(insert(cycle_history), values)

    def new_leader(self) -> Leader:
        return self.world.leader(f"leader{next(self.incarnations)}")

    def index_of(self, number: int) -> int:
        if number >= 0:
            return number
        for index, each in enumerate(self.leaders):
            if each.lease is not None and each.lease.holder == self.holder:
                return index
        # The one that led is dead: only time helps.
        self.world.clock.advance(self.world.settings.leader_lease_seconds + 1)
        return 0

    def new_owner(self) -> str:
        return f"worker#{next(self.incarnations)}"

    @rule(step=st.sampled_from(STEPS), with_=WITH)
    def something_happens(self, step: str, with_: With) -> None:
        # One rule, because of many the library leaves out some in each run, and most of these need each other.
        getattr(self, step)(with_)

    # Leaders

    def leader_ticks(self, with_: With) -> None:
        self.tick(with_.leader, NO_FAULTS)

    def leader_ticks_while_the_database_fails(self, with_: With) -> None:
        self.tick(with_.leader, with_.faults)

    def tick(self, number: int, faults: list[Fault | None]) -> None:
        index, before = self.index_of(number), self.stored()
        self.world.database.faults = list(faults)
        try:
            self.leaders[index].tick()
        except StorageError:
            pass
        except Killed:
            self.leaders[index] = self.new_leader()
        finally:
            self.world.database.faults = []
        if faults and self.stored() > max(before, 100):
            self.unpruned += 1

    def leader_sleeps_within_a_tick(self, with_: With) -> None:
        def sleep() -> None:
            if with_.is_faulty:
                self.the_clock_is_set(with_)
            else:
                self.world.clock.advance(with_.seconds)
            if self.leaders[with_.worker] is not asleep:
                self.leaders[with_.worker].tick()

        controls.trigger_cycle(self.world.database)
        asleep = self.leaders[self.index_of(with_.leader)]
        self.world.tables.while_finding = sleep
        try:
            asleep.tick()
        finally:
            self.world.tables.while_finding = None

    def a_cycle_is_asked_for_and_begins(self, with_: With) -> None:
        for name in with_.writes:
            self.world.tables.write(name)
        controls.trigger_cycle(self.world.database)
        self.tick(with_.leader, with_.maybe_faults)

    def the_lead_passes_on(self, with_: With) -> None:
        self.world.clock.advance(self.world.settings.leader_lease_seconds + 1)
        self.tick(with_.worker, with_.maybe_faults)

    def claims_without_heartbeats_expire(self, with_: With) -> None:
        self.world.clock.advance(self.world.settings.claim_lease_seconds + 1)
        self.tick(with_.leader, NO_FAULTS)

    # Workers

    def worker_takes_its_next_step(self, with_: With) -> None:
        self.go_on(with_.worker, with_.maybe_faults)

    def go_on(self, number: int, faults: list[Fault | None]) -> None:
        job = self.jobs[number]
        if job is None:
            self.claim(number, faults)
        elif job.planned:
            self.commit_round(job)
        else:
            self.release(number, job, "COMPLETED", faults)

    def all_workers_do_all_there_is(self, with_: With) -> None:
        for number in range(3):
            for _ in range(8):
                self.go_on(number, NO_FAULTS)

    def worker_hands_some_back(self, with_: With) -> None:
        """Hand back what is committed, before the rest is."""
        job = self.jobs[with_.worker]
        if job is not None and job.unsent:
            self.release(with_.worker, job, "COMPLETED", with_.maybe_faults)

    def worker_gives_up(self, with_: With) -> None:
        job = self.jobs[with_.worker]
        if job is not None:
            self.release(with_.worker, job, "FAILED" if with_.flag else "ABANDONED", with_.maybe_faults)

    def worker_sends_a_heartbeat(self, with_: With) -> None:
        job = self.jobs[with_.worker]
        if job is None:
            return
        database, chosen, beat = self.world.database, self.world.settings, Beat(int(with_.flag))
        is_ours = self.attempt(
            with_.worker, with_.maybe_faults, lambda: send_heartbeat(database, job.claim, beat, chosen)
        )
        if is_ours is False:
            self.jobs[with_.worker] = None

    def worker_dies(self, with_: With) -> None:
        self.die(with_.worker)

    def die(self, number: int) -> None:
        self.jobs[number] = None
        self.owners[number] = self.new_owner()

    def claim(self, number: int, faults: list[Fault | None]) -> None:
        database, chosen = self.world.database, self.world.settings
        claim = self.attempt(number, faults, lambda: claim_table(database, self.owners[number], chosen))
        if claim is not None:
            assert len(claim.partitions) <= SETTINGS.claim_partitions
            self.jobs[number] = Job(claim, {name: self.plan(name) for name in names_of(claim)})

    def plan(self, name: str) -> tuple[int, int]:
        return self.rounds[name], self.world.tables.partitions[name].position

    def commit_round(self, job: Job) -> None:
        """Commit a round of one partition if the one it was planned on is still the newest, else plan again."""
        name = next(iter(job.planned))
        round_, position = job.planned[name]
        known = self.world.tables.partitions[name]
        if self.rounds[name] != round_:
            job.planned[name] = self.plan(name)
            return
        assert position >= known.watermark
        known.watermark = position
        self.rounds[name] += 1
        del job.planned[name]
        job.unsent[name] = CheckpointResult(known.watermark, 1, 1, 1, 1)

    def release(self, number: int, job: Job, status: OutcomeStatus, faults: list[Fault | None]) -> None:
        """Hand back what is committed; with another status than COMPLETED, also all the rest."""
        database, chosen = self.world.database, self.world.settings
        outcomes = [Outcome(str(locator(name)), "COMPLETED", result) for name, result in job.unsent.items()]
        if status != "COMPLETED":
            outcomes += [Outcome(str(locator(name)), status, error="x", may_retry=True) for name in job.planned]
        is_taken = self.attempt(number, faults, lambda: release_partitions(database, job.claim, outcomes, chosen))
        if is_taken:
            for name in job.unsent:
                self.accepted[job.claim.cycle, name] += 1
            job.unsent.clear()
        if is_taken is False or (is_taken and (status != "COMPLETED" or not job.planned)):
            self.jobs[number] = None

    def attempt(self, number: int, faults: list[Fault | None], do: Callable[[], R]) -> R | None:
        """Do something with a database that may fail; None where it failed, or where the worker died of it."""
        self.world.database.faults = list(faults)
        try:
            return do()
        except StorageError:
            return None
        except Killed:
            self.die(number)
            return None
        finally:
            self.world.database.faults = []

    # The world

    def time_passes(self, with_: With) -> None:
        self.world.clock.advance(with_.seconds)

    def the_clock_is_set(self, with_: With) -> None:
        """Set the database's clock forward or, more often, back."""
        self.world.clock.step(with_.seconds if with_.flag and with_.is_faulty else -with_.seconds)

    def operator_asks_for_a_trim(self, with_: With) -> None:
        controls.trigger_cycle(self.world.database, trim=True)

    def operator_intervenes(self, with_: With) -> None:
        if self.is_blocked:
            controls.enable(self.world.database)
            controls.unfreeze(self.world.database)
        elif with_.flag:
            controls.disable(self.world.database)
        else:
            controls.freeze(self.world.database, seconds=with_.seconds)

    # What must be true

    def stored(self) -> int:
        return len(self.world.kept())

    @invariant()
    def the_books_are_right(self) -> None:
        stored = self.world.database.read("test", _read_stored)
        self.check_history(stored)
        self.check_claims(stored)
        # Of each checkpoint, one result counts.
        assert all(count == 1 for count in Counter(stored.completed).values())
        assert all(count == 1 for count in self.accepted.values())
        assert stored.term >= self.term
        self.term = stored.term
        self.is_blocked = stored.is_blocked
        self.holder = stored.holder

    def check_history(self, stored: Stored) -> None:
        """At most one cycle runs, and every finished one is recorded once; no more than a hundred are kept."""
        if stored.manager is not None:
            is_running = stored.manager.status == "STARTED"
            last = stored.manager.cycle_count - 1 if is_running else stored.manager.cycle_count
            assert stored.kept == list(range(stored.kept[0] if stored.kept else 1, last + 1))
            assert not stored.kept or stored.kept[0] == 1 or len(stored.kept) >= 100
        assert len(stored.kept) <= 100 + self.unpruned

    def check_claims(self, stored: Stored) -> None:
        """Every partition that is worked on belongs to one claim, which lives, of one table; without a cycle there is none."""
        if stored.manager is not None and stored.manager.status == "STARTED":
            started = [row for row in stored.rows if row.status == "STARTED"]
            assert stored.claims == {row.claim_id for row in started}
            assert len(stored.claims) == len({(row.claim_id, row.table_name, row.failures) for row in started})
            assert {row.cycle for row in stored.rows} <= {stored.manager.cycle_count}
        else:
            assert not stored.claims

    @invariant()
    def only_compacted_deltas_are_trimmed(self) -> None:
        for partition in self.world.tables.partitions.values():
            assert partition.trimmed <= partition.watermark <= partition.position

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.in_the_end_everything_is_compacted()
            finally:
                self.world.database.close()
                self.folder.cleanup()

    def in_the_end_everything_is_compacted(self) -> None:
        """Once failures and operators are at rest, one healthy node finishes what was begun and compacts the rest."""
        controls.enable(self.world.database)
        controls.unfreeze(self.world.database)
        leader, worker = self.new_leader(), self.world.worker("last")
        for _ in range(6):
            self.world.clock.advance(self.world.settings.interval_seconds + 1)
            for _ in range(3):
                leader.tick()
                while worker.step():
                    pass
        status = service_status(self.world.database)
        assert status.status == "COMPLETED"
        assert not status.pending_requests
        assert all(partition.watermark == partition.position for partition in self.world.tables.partitions.values())
        assert self.stored() <= 100


TestCycles = CycleMachine.TestCase
TestCycles.settings = settings(max_examples=15, stateful_step_count=40)
