"""When a cycle begins: not while disabled or frozen; when asked for; when the interval is over; when much is waiting."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson
from sqlalchemy import delete, func, select

from siltstone.errors import LeaseLostError, SiltstoneError
from siltstone.model import PartitionLocator
from siltstone.service.controls import current_controls, pending_requests
from siltstone.service.cycles import (
    BegunCycle,
    ManagerRow,
    begin_cycle,
    bootstrap,
    evict_expired,
    finish_cycle,
    is_expired,
)
from siltstone.service.database import Database, Transaction
from siltstone.service.history import prune_history
from siltstone.service.leases import Lease, check_lead, give_up_lead, take_lead
from siltstone.service.results import CycleRecord, PendingPartition, Tables, largest_first
from siltstone.service.schema import (
    CycleStatus,
    TriggerReason,
    active_checkpoints,
    checkpoint_status,
    cycle_history,
    manager,
    trigger_requests,
    trim_marks,
)
from siltstone.service.settings import ServiceSettings, latest_ms, to_ms


@dataclass(frozen=True)
class Backlog:
    """The deltas that wait for compaction in all tables."""

    bytes: int
    oldest_at: int | None


@dataclass(frozen=True)
class Situation:
    """What the decision depends on."""

    now_ms: int
    status: CycleStatus
    is_disabled: bool
    is_frozen: bool
    has_requests: bool
    last_started_at: int
    ended_at: int | None


def decide(
    situation: Situation, settings: ServiceSettings, measure: Callable[[], Backlog | None]
) -> TriggerReason | None:
    """Return why a cycle begins now, or None if none does. `measure` is called only if nothing else decides."""
    now_ms = situation.now_ms
    if situation.status == "STARTED" or situation.is_disabled or situation.is_frozen:
        return None
    if situation.has_requests:
        return "request"
    if _is_past(situation.last_started_at, settings.interval_seconds, now_ms):
        return "interval"
    # After a failure only the interval decides, or a partition that cannot be compacted would start cycles without end.
    has_paused = situation.ended_at is None or _is_past(situation.ended_at, settings.min_pause_seconds, now_ms)
    if situation.status == "FAILED" or not has_paused:
        return None
    if settings.backlog_bytes is None and settings.backlog_age_seconds is None:
        return None
    backlog = measure()
    return None if backlog is None else _by_backlog(backlog, now_ms, settings)


def _is_past(since_ms: int, seconds: float, now_ms: int) -> bool:
    """Return whether this much time has passed since a stored time; a time in the future counts as long ago."""
    return now_ms - since_ms > to_ms(seconds) or since_ms > latest_ms(now_ms)


def _by_backlog(backlog: Backlog, now_ms: int, settings: ServiceSettings) -> TriggerReason | None:
    if settings.backlog_bytes is not None and backlog.bytes >= settings.backlog_bytes:
        return "backlog_bytes"
    limit = settings.backlog_age_seconds
    if limit is not None and backlog.oldest_at is not None and now_ms - backlog.oldest_at >= to_ms(limit):
        return "backlog_age"
    return None


def trim_tables(database: Database, lease: Lease, tables: Tables, keep_alive: Callable[[], None]) -> int:
    """Trim all partitions up to their marks and answer the requests that wait for it; return the count of deltas.

    A partition that cannot be trimmed now is left for the next time. Raises: LeaseLostError, StorageError.
    """

    def read(transaction: Transaction) -> list[tuple[str, str, int]]:
        check_lead(transaction, lease)
        marks = transaction.execute(select(trim_marks).order_by(trim_marks.c.partition)).all()
        return [(mark.partition, mark.locator, mark.high_watermark) for mark in marks]

    marks = database.change("read the trim marks", read)
    trimmed = 0
    gone = []
    for partition, locator, watermark in marks:
        keep_alive()
        try:
            count = tables.trim(PartitionLocator.from_serializable(orjson.loads(locator)), watermark)
        except SiltstoneError as error:
            _log.warning("partition not trimmed", extra={"partition": partition, "reason": str(error)})
            continue
        if count is None:
            gone.append(partition)
        trimmed += count or 0
    _remember(database, lease, trimmed, gone)
    if trimmed:
        _log.info("deltas trimmed", extra={"deltas": trimmed})
    return trimmed


def _remember(database: Database, lease: Lease, trimmed: int, gone: list[str]) -> None:
    def change(transaction: Transaction) -> None:
        now_ms = check_lead(transaction, lease)
        for partition in gone:
            transaction.execute(delete(trim_marks).where(trim_marks.c.partition == partition))
        transaction.execute(manager.update().values(trim_due=False))
        current = select(manager.c.cycle_count).scalar_subquery()
        transaction.execute(
            cycle_history.update().where(cycle_history.c.cycle_count == current).values(trimmed_deltas=trimmed)
        )
        waiting = trigger_requests.c.state == "TRIMMING"
        transaction.execute(trigger_requests.update().where(waiting).values(state="DONE", ended_at=now_ms))

    database.change("write down what was trimmed", change)


TickAction = Literal["follows", "waits", "watches", "begun", "finished", "trimmed"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tick:
    """What a tick did."""

    action: TickAction
    begun: BegunCycle | None = None
    record: CycleRecord | None = None
    evicted: Sequence[str] = ()


@dataclass(frozen=True)
class _View:
    """The state in the database when a tick begins."""

    now_ms: int
    manager: ManagerRow | None
    is_disabled: bool
    is_frozen: bool
    has_requests: bool
    counts: dict[str, int]
    has_claims: bool
    has_expired: bool
    changed_at: int


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
        view = self._database.read("read the state of the cycle", self._read)
        if view.manager is None:
            bootstrap(self._database, lease)
            view = self._database.read("read the state of the cycle", self._read)
            assert view.manager is not None
        if view.manager.status == "STARTED":
            return self._watch(lease, view, view.manager)
        if view.manager.trim_due and view.manager.trims_after and not view.is_disabled:
            trim_tables(self._database, lease, self._tables, self._keep_alive)
            return Tick("trimmed")
        return self._begin_if_due(lease, view, view.manager)

    def _read(self, transaction: Transaction) -> _View:
        now_ms = transaction.now_ms()
        controls = current_controls(transaction, now_ms)
        by_status = select(checkpoint_status.c.status, func.count()).group_by(checkpoint_status.c.status)
        claims = transaction.execute(select(active_checkpoints)).all()
        expired = select(active_checkpoints).where(is_expired(now_ms, self._settings)).limit(1)
        return _View(
            now_ms=now_ms,
            manager=transaction.execute(select(manager)).first(),
            is_disabled="disable" in controls,
            is_frozen="freeze" in controls,
            has_requests=bool(pending_requests(transaction)),
            counts=dict(transaction.execute(by_status).all()),
            has_claims=bool(claims),
            has_expired=transaction.execute(expired).first() is not None,
            changed_at=transaction.execute(select(func.max(checkpoint_status.c.changed_at))).scalar() or 0,
        )

    def _watch(self, lease: Lease, view: _View, row: ManagerRow) -> Tick:
        if view.is_disabled:
            return self._finish(lease, row, "the service was disabled")
        if view.has_expired:
            evicted = evict_expired(self._database, lease, self._settings)
            view = self._database.read("read the state of the cycle", self._read)
        else:
            evicted = []
        if not view.counts.get("IDLE", 0) and not view.counts.get("STARTED", 0):
            return self._finish(lease, row, None, evicted)
        # A leader that has just begun to lead gives workers time, too: they may have been down together with all leaders.
        times = (view.changed_at, row.started_at, lease.acquired_at)
        moved_at = max((time_ms for time_ms in times if time_ms <= latest_ms(view.now_ms)), default=0)
        if not view.has_claims and view.now_ms - moved_at > to_ms(self._settings.stall_seconds):
            return self._finish(lease, row, "no worker claimed it in time", evicted)
        return Tick("watches", evicted=evicted)

    def _finish(self, lease: Lease, row: ManagerRow, why_early: str | None, evicted: Sequence[str] = ()) -> Tick:
        record = finish_cycle(self._database, lease, row.cycle_count, why_early=why_early)
        if record is None:
            return Tick("watches", evicted=evicted)
        _log.log(
            logging.INFO if record.status == "COMPLETED" else logging.ERROR,
            "cycle finished",
            extra={
                "cycle": record.cycle_count,
                "status": record.status,
                "duration_ms": record.duration_ms,
                **{name: getattr(record, name) for name in ("partitions", "completed", "failed", "unfinished", "rows")},
            },
        )
        prune_history(self._database, lease)
        if record.status == "COMPLETED" and row.trims_after:
            trim_tables(self._database, lease, self._tables, self._keep_alive)
        return Tick("finished", record=record, evicted=evicted)

    def _begin_if_due(self, lease: Lease, view: _View, row: ManagerRow) -> Tick:
        work: list[PendingPartition] = []

        def measure() -> Backlog | None:
            # Looking through all tables costs more than a tick may.
            pause_ms = to_ms(self._settings.backlog_check_seconds)
            if self._measured_at is not None and 0 <= view.now_ms - self._measured_at < pause_ms:
                return None
            self._measured_at = view.now_ms
            work[:] = self._tables.find_work(self._keep_alive)
            times = [partition.oldest_at for partition in work if partition.oldest_at is not None]
            return Backlog(sum(partition.bytes for partition in work), min(times, default=None))

        situation = Situation(
            now_ms=view.now_ms,
            status=row.status,
            is_disabled=view.is_disabled,
            is_frozen=view.is_frozen,
            has_requests=view.has_requests,
            last_started_at=row.last_started_at,
            ended_at=row.ended_at,
        )
        reason = decide(situation, self._settings, measure)
        if reason is None:
            return Tick("waits")
        if row.trim_due:
            trim_tables(self._database, lease, self._tables, self._keep_alive)
        pending = work or self._tables.find_work(self._keep_alive)
        begun = begin_cycle(self._database, lease, largest_first(pending), reason, self._name)
        if begun is None:
            return Tick("waits")
        _log.info(
            "cycle begun",
            extra={"cycle": begun.cycle_count, "reason": reason, "partitions": begun.partitions, "node": self._name},
        )
        return Tick("begun", begun=begun)
