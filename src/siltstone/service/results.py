"""What the service reports: cycles, checkpoints, nodes, and the partitions that wait."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from siltstone.errors import SiltstoneError
from siltstone.maintenance.audit import AuditEntry as AuditEntry
from siltstone.model import PartitionLocator
from siltstone.publish.outcomes import Published, PublishFailure
from siltstone.rounds.events import Progress
from siltstone.service.schema import AttemptStatus, CheckpointStatus, CycleStatus, FailureReason, RequestState

KeepAlive = Callable[[], None]


@dataclass(frozen=True)
class PendingPartition:
    """A partition with something to do; one with a problem cannot be read, and has no locator."""

    name: str
    table: str
    locator: PartitionLocator | None
    deltas: int = 0
    bytes: int = 0
    oldest_at: int | None = None
    problem: str | None = None
    # Of its table: those with more are compacted first.
    priority: int = 0


@dataclass(frozen=True)
class CheckpointResult:
    """What the compaction of a partition did; no watermark where the partition is gone."""

    high_watermark: int | None
    rounds: int = 0
    rows: int = 0
    input_bytes: int = 0
    written_bytes: int = 0


Checkpointed = tuple[PartitionLocator, CheckpointResult | SiltstoneError]
"""A partition, and what its compaction did, or why it failed by itself."""

Trimmed = tuple[PartitionLocator, int | SiltstoneError | None]
"""A partition, and how many of its deltas are forgotten, None where it is gone, or why none is."""


class Tables(Protocol):
    """The tables that the service compacts."""

    def find_work(self, keep_alive: KeepAlive) -> Sequence[PendingPartition]:
        """Return the partitions that have something to do; `keep_alive` is called in between. Raises: StorageError."""

    def compact(self, partitions: Sequence[PartitionLocator], progress: Progress) -> Iterator[Checkpointed]:
        """Compact partitions of one table, and yield each with what came of it, as they end.

        One that fails by itself does not stop the others. What is raised ends those that were not yielded; what
        `progress` raises, before the next commit. Raises: SiltstoneError.
        """

    def trim(self, marks: Mapping[PartitionLocator, int], keep_alive: KeepAlive) -> Iterator[Trimmed]:
        """Forget compacted deltas of partitions of one table, up to the watermark of each, that are past their retention.

        Yields each with how many they were, None if it is gone, or why it cannot be trimmed now. `keep_alive` is called
        in between; what it raises ends it.
        """

    def publish(self, keep_alive: KeepAlive) -> Iterator[Published | PublishFailure]:
        """Publish each table whose property says so, unless it is as compacted; yield what came of each that is not.

        `keep_alive` is called in between; what it raises ends it.
        """


@dataclass(frozen=True)
class FailedPartition:
    """A partition that a cycle did not compact, and why."""

    partition: str
    error: str


@dataclass(frozen=True)
class CycleRecord:
    """A finished cycle, as the history keeps it."""

    cycle_count: int
    status: CycleStatus
    start_time_ms: int
    end_time_ms: int
    trigger_reason: str
    leader: str
    partitions: int
    completed: int
    failed: int
    unfinished: int
    attempts: int
    failed_partitions: Sequence[FailedPartition]
    trimmed_deltas: int | None
    rounds: int
    rows: int
    input_bytes: int
    written_bytes: int
    # Tables with something to do, and those of them with a partition that failed.
    tables: int
    failed_tables: int
    planning_ms: int
    failure_reason: FailureReason | None

    @property
    def outcome(self) -> str:
        """The status, in a word for people: a cycle that somebody stopped has not failed."""
        return outcome_of(self.status, self.failure_reason)

    @property
    def duration_ms(self) -> int:
        """From start to end; 0 where the clock was set back meanwhile."""
        return max(self.end_time_ms - self.start_time_ms, 0)


def outcome_of(status: str, failure_reason: str | None) -> str:
    """Return a cycle's status, or STOPPED where it ended because the service was disabled."""
    return "STOPPED" if status == "FAILED" and failure_reason == "disabled" else status


@dataclass(frozen=True)
class FailingPartition:
    """A partition whose last checkpoint failed, in how many cycles in a row, and when the next one tries again."""

    partition: str
    error: str
    failures: int
    cycle: int
    failed_at: int
    retry_at: int


@dataclass(frozen=True)
class FailingTable:
    """A table with partitions whose last checkpoint failed."""

    table: str
    partitions: Sequence[FailingPartition]

    @property
    def error(self) -> str:
        """What one of them failed with."""
        return self.partitions[0].error


@dataclass(frozen=True)
class Pause:
    """A table that no cycle compacts until it is resumed."""

    table: str
    paused_at: int
    requester: str


@dataclass(frozen=True)
class BacklogSample:
    """What waited in a table when a cycle began."""

    cycle: int
    at: int
    deltas: int
    bytes: int
    oldest_at: int | None


@dataclass(frozen=True)
class Checkpoint:
    """One partition in the current or last cycle."""

    partition: str
    table: str
    status: CheckpointStatus
    attempt: int
    failures: int
    worker: str | None
    backlog_deltas: int
    backlog_bytes: int
    started_at: int | None
    ended_at: int | None
    error: str | None
    high_watermark: int | None
    rounds: int
    rows: int
    input_bytes: int
    written_bytes: int
    # While a worker has it:
    heartbeats: int | None
    heartbeat_at: int | None
    lease_until: int | None
    buckets_done: int | None
    buckets_total: int | None


@dataclass(frozen=True)
class Attempt:
    """One worker's try at a partition: a bar in the timeline of a cycle. Attempt 0 means nobody tried."""

    partition: str
    table: str
    attempt: int
    worker: str | None
    status: AttemptStatus
    started_at: int
    ended_at: int | None
    error: str | None
    high_watermark: int | None
    rounds: int
    rows: int
    input_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class CycleDetails:
    """A cycle, finished or running, and all attempts at its partitions by time."""

    cycle_count: int
    status: CycleStatus
    start_time_ms: int
    end_time_ms: int | None
    trigger_reason: str
    leader: str
    # None while it runs.
    record: CycleRecord | None
    # Only of the newest cycle.
    checkpoints: Sequence[Checkpoint]
    timeline: Sequence[Attempt]


@dataclass(frozen=True)
class TriggerRequest:
    """Somebody's wish for a cycle, and what became of it."""

    request_id: str
    requested_at: int
    requester: str
    trim: bool
    state: RequestState
    cycle: int | None
    outcome: CycleStatus | None
    ended_at: int | None
    # The tables it is about; None for all.
    tables: Sequence[str] | None = None

    @property
    def is_done(self) -> bool:
        """Whether its cycle is over, and trimmed if that was asked for."""
        return self.state == "DONE"


@dataclass(frozen=True)
class Control:
    """A freeze or a disablement that holds; one without an end has `expires_at` None."""

    name: str
    set_at: int
    expires_at: int | None
    requester: str


@dataclass(frozen=True)
class LeaderInfo:
    """Who leads; one whose lease has run out leads no more."""

    node: str
    term: int
    acquired_at: int
    lease_until: int
    is_current: bool


@dataclass(frozen=True)
class Totals:
    """Sums over all cycles ever, for metrics."""

    completed_cycles: int
    failed_cycles: int
    stopped_cycles: int
    evictions: int
    rows: int
    input_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class ServiceStatus:
    """All about now: the current or last cycle, who leads, what is asked for, and what comes next."""

    now_ms: int
    # None before the first leader.
    status: CycleStatus | None
    cycle_count: int
    started_at: int | None
    ended_at: int | None
    trigger_reason: str | None
    cycle_leader: str | None
    failure_reason: FailureReason | None
    # False while a table fails, after a cycle that nobody worked on, and while one is overdue and nobody leads.
    is_healthy: bool
    health_problem: str | None
    last_completed_at: int | None
    # When the interval is over; None while a cycle runs, or is disabled, or where the interval is not known.
    next_due_at: int | None
    leader: LeaderInfo | None
    disabled: Control | None
    frozen: Control | None
    failing: Sequence[FailingTable]
    paused: Sequence[Pause]
    pending_requests: Sequence[TriggerRequest]
    # Of the current or last cycle: tables with something to do, those of them that failed, and partitions by status.
    tables: int
    failed_tables: int
    idle: int
    active: int
    completed: int
    failed: int
    checkpoints: Sequence[Checkpoint]
    totals: Totals

    @property
    def outcome(self) -> str | None:
        """The status, in a word for people: a cycle that somebody stopped has not failed."""
        return None if self.status is None else outcome_of(self.status, self.failure_reason)

    @property
    def is_running(self) -> bool:
        """Whether a cycle runs now."""
        return self.status == "STARTED"


@dataclass(frozen=True)
class NodeInfo:
    """A process of the service."""

    name: str
    owner: str
    host: str
    pid: int
    version: str
    is_worker: bool
    is_leader: bool
    is_alive: bool
    started_at: int
    seen_at: int
    stopped_at: int | None
    claims: int
