"""The leader: when a cycle begins, is watched and finished, and what is trimmed after it."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from sqlalchemy import Row, delete, func, select

from siltstone.errors import LeaseLostError, SiltstoneError
from siltstone.model import PartitionLocator, StreamLocator
from siltstone.publish.outcomes import PublishFailure
from siltstone.service import schema
from siltstone.service.controls import current_controls, pending_requests
from siltstone.service.cycles import (
    Lease,
    begin_cycle,
    bootstrap,
    check_lead,
    evict_expired,
    finish_cycle,
    give_up_lead,
    is_expired,
    take_lead,
)
from siltstone.service.database import Database, Transaction, in_transaction
from siltstone.service.failures import skipped_tables
from siltstone.service.history import prune_history
from siltstone.service.results import CycleRecord, PendingPartition, Tables
from siltstone.service.settings import ServiceSettings, latest_ms, to_ms

TickAction = Literal["follows", "waits", "watches", "begun", "finished", "trimmed"]
_OF_MANAGER = (
    "status",
    "last_started_at",
    "ended_at",
    "cycle_count",
    "started_at",
    "trims_after",
    "trim_due",
    "failure_reason",
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backlog:
    """The deltas that wait for compaction in all tables."""

    bytes: int
    oldest_at: int | None


@dataclass(frozen=True)
class Situation:
    """What the next step of the leader depends on: the state in the database when a tick begins."""

    now_ms: int
    status: schema.CycleStatus
    is_disabled: bool
    is_frozen: bool
    has_requests: bool
    last_started_at: int
    ended_at: int | None
    # Of the cycle that runs, or the last one.
    cycle_count: int = 0
    started_at: int | None = None
    trims_after: bool = False
    trim_due: bool = False
    failure_reason: schema.FailureReason | None = None
    # Tables that are paused, or wait after a failure: their backlog begins no cycle.
    skipped_tables: frozenset[str] = frozenset()
    # Of its checkpoints: whether some are left to do, are claimed, have expired; when one changed last.
    has_open: bool = False
    has_claims: bool = False
    has_expired: bool = False
    changed_at: int = 0


@dataclass(frozen=True)
class Tick:
    """What a tick did."""

    action: TickAction
    # The number of the cycle that it began, and of its partitions.
    begun: int | None = None
    partitions: int = 0
    record: CycleRecord | None = None
    evicted: Sequence[str] = ()


class Leader:
    """One node's part in leading; on most nodes, most of the time, it finds that another one leads."""

    def __init__(
        self,
        database: Database,
        tables: Tables,
        settings: ServiceSettings,
        *,
        owner: str,
        name: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease: Lease | None = None
        self._database = database
        self._tables = tables
        self._settings = settings
        self._owner = owner
        self._name = name
        self._monotonic = monotonic
        self._renewed_at = 0.0
        self._measured_at: int | None = None

    def tick(self) -> Tick:
        """Lead if the lead is free or ours: begin a cycle that is due, watch one that runs, finish one that is over.

        Raises: StorageError; the next tick goes on from what the database says.
        """
        try:
            lease = self._take_lead()
            return Tick("follows") if lease is None else self._lead(lease)
        except LeaseLostError as error:
            _log.warning("lead lost", extra={"node": self._name, "reason": str(error)})
            self.lease = None
            return Tick("follows")

    def resign(self) -> None:
        """Let another node lead at once. Raises: StorageError."""
        if self.lease is not None:
            give_up_lead(self._database, self.lease)
            self.lease = None

    def _take_lead(self) -> Lease | None:
        before = self.lease
        lease = take_lead(self._database, self._owner, to_ms(self._settings.leader_lease_seconds))
        self._renewed_at = self._monotonic()
        if lease is not None and (before is None or before.term != lease.term):
            _log.info("leads now", extra={"node": self._name, "term": lease.term})
        self.lease = lease
        return lease

    def _keep_alive(self) -> None:
        """Renew the lease from within long work. Raises: LeaseLostError."""
        if self._monotonic() - self._renewed_at < self._settings.leader_lease_seconds / 3:
            return
        before = self.lease
        lease = self._take_lead()
        if before is None or lease is None or lease.term != before.term:
            raise LeaseLostError(f"{self._name}: lost the lead while it worked; another node goes on")

    def _lead(self, lease: Lease) -> Tick:
        situation = self._situation(lease)
        if situation.status == "STARTED":
            return self._watch(lease, situation)
        if situation.trim_due and situation.trims_after and not situation.is_disabled:
            self._trim(lease)
            return Tick("trimmed")
        return self._begin_if_due(lease, situation)

    def _situation(self, lease: Lease) -> Situation:
        situation = _read_situation(self._database, self._settings)
        if situation is None:
            bootstrap(self._database, lease)
            situation = _read_situation(self._database, self._settings)
            assert situation is not None
        return situation

    def _watch(self, lease: Lease, situation: Situation) -> Tick:
        if situation.is_disabled:
            return self._finish(lease, situation, "disabled")
        evicted = []
        if situation.has_expired:
            evicted = evict_expired(self._database, lease, self._settings)
            situation = self._situation(lease)
        if not situation.has_open:
            return self._finish(lease, situation, None, evicted)
        # A leader that has just begun to lead gives workers time, too: they may have been down together with all leaders.
        times = (situation.changed_at, situation.started_at or 0, lease.acquired_at)
        moved_at = max((time_ms for time_ms in times if time_ms <= latest_ms(situation.now_ms)), default=0)
        if not situation.has_claims and situation.now_ms - moved_at > to_ms(self._settings.stall_seconds):
            return self._finish(lease, situation, "stalled", evicted)
        return Tick("watches", evicted=evicted)

    def _finish(
        self,
        lease: Lease,
        situation: Situation,
        why_early: schema.FailureReason | None,
        evicted: Sequence[str] = (),
    ) -> Tick:
        count = situation.cycle_count
        record = finish_cycle(self._database, lease, count, why_early=why_early, settings=self._settings)
        if record is None:
            return Tick("watches", evicted=evicted)
        counts = ("duration_ms", "tables", "failed_tables", "partitions", "completed", "failed", "unfinished", "rows")
        _log.log(
            logging.ERROR if record.outcome == "FAILED" else logging.INFO,
            "cycle finished",
            extra={
                "cycle": record.cycle_count,
                "status": record.outcome,
                **{name: getattr(record, name) for name in counts},
            },
        )
        prune_history(self._database, lease)
        self._publish()
        if situation.trims_after and not situation.is_disabled:
            self._trim(lease)
        return Tick("finished", record=record, evicted=evicted)

    def _publish(self) -> None:
        """Publish what the cycle has compacted; what fails now is tried again after the next one. Raises: LeaseLostError."""
        try:
            for done in self._tables.publish(self._keep_alive):
                if isinstance(done, PublishFailure):
                    _log.warning("table not published", extra={"table": done.table, "reason": done.error})
                else:
                    about = {"table": done.table, "format": done.format, "version": done.version}
                    _log.info("table published", extra=about)
        except LeaseLostError:
            raise
        except SiltstoneError as error:
            _log.warning("tables not published", extra={"reason": str(error)})

    def _begin_if_due(self, lease: Lease, situation: Situation) -> Tick:
        work: list[PendingPartition] = []
        planning_started = self._monotonic()

        def measure() -> Backlog | None:
            # Looking through all tables costs more than a tick may.
            pause_ms = to_ms(self._settings.backlog_check_seconds)
            if self._measured_at is not None and 0 <= situation.now_ms - self._measured_at < pause_ms:
                return None
            self._measured_at = situation.now_ms
            work[:] = self._tables.find_work(self._keep_alive)
            due = [partition for partition in work if partition.table not in situation.skipped_tables]
            times = [partition.oldest_at for partition in due if partition.oldest_at is not None]
            return Backlog(sum(partition.bytes for partition in due), min(times, default=None))

        reason = decide(situation, self._settings, measure)
        if reason is None:
            return Tick("waits")
        if situation.trim_due:
            self._trim(lease)
        pending = work or self._tables.find_work(self._keep_alive)
        # The longest work first.
        ordered = sorted(pending, key=lambda partition: (-partition.bytes, -partition.deltas, partition.name))
        planning_ms = to_ms(self._monotonic() - planning_started)
        begun = begin_cycle(
            self._database, lease, ordered, reason, self._name, planning_ms=planning_ms, settings=self._settings
        )
        if begun is None:
            return Tick("waits")
        _log.info(
            "cycle begun",
            extra={"cycle": begun.cycle, "reason": reason, "partitions": begun.partitions, "node": self._name},
        )
        return Tick("begun", begun=begun.cycle, partitions=begun.partitions)

    def _trim(self, lease: Lease) -> None:
        """Trim all partitions up to their marks, and answer the requests that wait for it.

        A partition that cannot be trimmed now is left for the next time. Raises: LeaseLostError, StorageError.
        """
        trimmed = 0
        gone = []
        by_table: dict[StreamLocator, dict[PartitionLocator, int]] = {}
        for mark in _read_trim_marks(self._database, lease):
            try:
                locator = PartitionLocator.from_serializable(orjson.loads(mark.locator))
            except SiltstoneError as error:
                _log.warning("partition not trimmed", extra={"partition": mark.partition, "reason": str(error)})
            else:
                by_table.setdefault(locator.stream_locator, {})[locator] = mark.high_watermark
        for marks in by_table.values():
            self._keep_alive()
            for partition, count in self._tables.trim(marks, self._keep_alive):
                if isinstance(count, SiltstoneError):
                    _log.warning("partition not trimmed", extra={"partition": str(partition), "reason": str(count)})
                elif count is None:
                    gone.append(str(partition))
                else:
                    trimmed += count
        _record_trim(self._database, lease, trimmed, gone)
        if trimmed:
            _log.info("deltas trimmed", extra={"deltas": trimmed})


@in_transaction("read the state of the cycle", reads=True)
def _read_situation(transaction: Transaction, settings: ServiceSettings) -> Situation | None:
    """Return the state in the database, or None if there has never been a leader."""
    now_ms = transaction.now_ms()
    row = transaction.execute(select(schema.manager)).first()
    if row is None:
        return None
    controls = current_controls(transaction, now_ms)
    statuses = transaction.execute(select(schema.checkpoint_status.c.status).distinct()).scalars().all()
    claim = select(schema.active_checkpoints.c.claim_id).limit(1)
    return Situation(
        now_ms=now_ms,
        is_disabled="disable" in controls,
        is_frozen="freeze" in controls,
        has_requests=bool(pending_requests(transaction)),
        has_open="IDLE" in statuses or "STARTED" in statuses,
        has_claims=transaction.execute(claim).first() is not None,
        has_expired=transaction.execute(claim.where(is_expired(now_ms, settings))).first() is not None,
        skipped_tables=skipped_tables(transaction, now_ms),
        changed_at=transaction.execute(select(func.max(schema.checkpoint_status.c.changed_at))).scalar() or 0,
        **{name: getattr(row, name) for name in _OF_MANAGER},
    )


def decide(
    situation: Situation, settings: ServiceSettings, measure: Callable[[], Backlog | None]
) -> schema.TriggerReason | None:
    """Return why a cycle begins now, or None if none does. `measure` is called only if nothing else decides."""
    now_ms = situation.now_ms
    if situation.status == "STARTED" or situation.is_disabled or situation.is_frozen:
        return None
    if situation.has_requests:
        return "request"
    if settings.quiet_hours is not None and settings.quiet_hours.is_quiet(now_ms):
        return None
    if _is_past(situation.last_started_at, settings.interval_seconds, now_ms):
        return "interval"
    # After a cycle that nobody worked on only the interval decides, or there would be cycles without end.
    has_paused = situation.ended_at is None or _is_past(situation.ended_at, settings.min_pause_seconds, now_ms)
    if situation.failure_reason == "stalled" or not has_paused:
        return None
    if settings.backlog_bytes is None and settings.backlog_age_seconds is None:
        return None
    backlog = measure()
    if backlog is None:
        return None
    if settings.backlog_bytes is not None and backlog.bytes >= settings.backlog_bytes:
        return "backlog_bytes"
    max_age = settings.backlog_age_seconds
    is_old = max_age is not None and backlog.oldest_at is not None and now_ms - backlog.oldest_at >= to_ms(max_age)
    return "backlog_age" if is_old else None


def _is_past(since_ms: int, seconds: float, now_ms: int) -> bool:
    """Return whether this much time has passed since a stored time; a time in the future counts as long ago."""
    return now_ms - since_ms > to_ms(seconds) or since_ms > latest_ms(now_ms)


@in_transaction("read the trim marks")
def _read_trim_marks(transaction: Transaction, lease: Lease) -> Sequence[Row[Any]]:
    check_lead(transaction, lease)
    return transaction.execute(select(schema.trim_marks).order_by(schema.trim_marks.c.partition)).all()


@in_transaction("write down what was trimmed")
def _record_trim(transaction: Transaction, lease: Lease, trimmed: int, gone: Sequence[str]) -> None:
    now_ms = check_lead(transaction, lease)
    for partition in gone:
        transaction.execute(delete(schema.trim_marks).filter_by(partition=partition))
    transaction.execute(schema.manager.update().values(trim_due=False))
    newest = select(schema.manager.c.cycle_count).scalar_subquery()
    transaction.execute(schema.cycle_history.update().filter_by(cycle_count=newest).values(trimmed_deltas=trimmed))
    waiting = schema.trigger_requests.update().filter_by(state="TRIMMING")
    transaction.execute(waiting.values(state="DONE", ended_at=now_ms))
