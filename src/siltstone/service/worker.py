"""A worker: it claims partitions of the current cycle, compacts them and records what came of it."""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from sqlalchemy import Row, case, delete, select

from siltstone.errors import (
    AccessDeniedError,
    CorruptionError,
    InvalidInputError,
    LeaseLostError,
    NotFoundError,
    StorageError,
)
from siltstone.model import PartitionLocator
from siltstone.rounds.events import BucketMerged, Event, JobAwaited, RoundStarted
from siltstone.service.controls import current_controls
from siltstone.service.cycles import cut_error, end_attempt, lock_manager
from siltstone.service.database import Database, Transaction, in_transaction
from siltstone.service.results import CheckpointResult, Tables
from siltstone.service.schema import active_checkpoints, checkpoint_detail, checkpoint_status
from siltstone.service.settings import ServiceSettings, latest_ms, to_ms
from siltstone.text import mask_secrets

ReleaseStatus = Literal["COMPLETED", "FAILED", "ABANDONED"]
# Trying these again in the same cycle would fail in the same way.
_LASTING = (InvalidInputError, CorruptionError, NotFoundError, AccessDeniedError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Claim:
    """A worker's right to compact a partition in a cycle; cycle and attempt identify it."""

    cycle: int
    partition: str
    table: str
    locator: PartitionLocator
    attempt: int
    claim_id: str
    owner: str


@dataclass(frozen=True)
class Beat:
    """How far a compaction is: `progress` changes when it moves."""

    progress: int = 0
    buckets_done: int = 0
    buckets_total: int = 0


def claim_partition(database: Database, owner: str, settings: ServiceSettings) -> Claim | None:
    """Claim and return the largest partition that nobody works on, or None. Raises: StorageError.

    One that this owner has tried before comes last, so that another worker may have it.
    """
    return _claim_partition(database, owner, settings, uuid.uuid4().hex)


@in_transaction("claim a partition")
def _claim_partition(transaction: Transaction, owner: str, settings: ServiceSettings, claim_id: str) -> Claim | None:
    row = lock_manager(transaction, shared=True)
    if row is None or row.status != "STARTED":
        return None
    status = checkpoint_status.c
    mine = select(checkpoint_status).filter_by(claim_id=claim_id, status="STARTED")
    earlier = transaction.execute(mine).first()
    if earlier is not None:
        return _to_claim(earlier)
    now_ms = transaction.now_ms()
    if "disable" in current_controls(transaction, now_ms):
        return None
    is_due = (status.retry_at <= now_ms) | (status.changed_at > latest_ms(now_ms))
    free = transaction.execute(
        select(checkpoint_status)
        .filter_by(cycle=row.cycle_count, status="IDLE")
        .where(is_due)
        .order_by(case((status.worker == owner, 1), else_=0), status.backlog_bytes.desc(), status.partition)
        .limit(1)
        .with_for_update(skip_locked=True)
    ).first()
    if free is None:
        return None
    attempt = free.attempt + 1
    identity = {"attempt": attempt, "worker": owner, "claim_id": claim_id}
    taken = transaction.execute(
        checkpoint_status.update()
        .filter_by(partition=free.partition, status="IDLE")
        .values(**identity, status="STARTED", changed_at=now_ms, started_at=now_ms)
    )
    if taken.rowcount != 1:
        return None
    identity |= {"cycle": free.cycle, "partition": free.partition}
    lease_until = now_ms + to_ms(settings.claim_lease_seconds)
    times = {"claimed_at": now_ms, "heartbeat_at": now_ms, "lease_until": lease_until, "progress_at": now_ms}
    transaction.execute(active_checkpoints.insert().values(**identity, **times))
    detail = {"table_name": free.table_name, "status": "STARTED", "started_at": now_ms}
    transaction.execute(checkpoint_detail.insert().values(**identity, **detail))
    return _to_claim(transaction.execute(mine).one())


def _to_claim(row: Row[Any]) -> Claim:
    locator = PartitionLocator.from_serializable(orjson.loads(row.locator))
    return Claim(row.cycle, row.partition, row.table_name, locator, row.attempt, row.claim_id, owner=row.worker)


@in_transaction("send a heartbeat")
def send_heartbeat(transaction: Transaction, claim: Claim, beat: Beat, settings: ServiceSettings) -> bool:
    """Record that a claim is being worked on; False where it is lost. Raises: StorageError."""
    active = active_checkpoints.c
    now_ms = transaction.now_ms()
    has_moved = (active.progress != beat.progress) | (active.progress_at > latest_ms(now_ms))
    updated = transaction.execute(
        active_checkpoints.update()
        .filter_by(claim_id=claim.claim_id)
        .values(
            sync_heartbeat=active.sync_heartbeat + 1,
            heartbeat_at=now_ms,
            lease_until=now_ms + to_ms(settings.claim_lease_seconds),
            progress_at=case((has_moved, now_ms), else_=active.progress_at),
            **vars(beat),
        )
    )
    return bool(updated.rowcount)


@in_transaction("hand a partition back")
def release_partition(
    transaction: Transaction,
    claim: Claim,
    status: ReleaseStatus,
    settings: ServiceSettings,
    *,
    result: CheckpointResult | None = None,
    error: str | None = None,
    may_retry: bool = False,
) -> bool:
    """Hand a claim back with what came of it; False, and nothing changed, where the claim was lost meanwhile.

    A failure that may pass is tried again in this cycle, unless it happened too often. What was ABANDONED does not
    count as a failure. Raises: StorageError.
    """
    row = lock_manager(transaction, shared=True)
    if row is None or row.status != "STARTED" or row.cycle_count != claim.cycle:
        return _was_released(transaction, claim, status)
    deleted = transaction.execute(delete(active_checkpoints).filter_by(claim_id=claim.claim_id))
    if deleted.rowcount != 1:
        return _was_released(transaction, claim, status)
    now_ms = transaction.now_ms()
    held = {"claim_id": claim.claim_id, "status": "STARTED"}
    current = transaction.execute(select(checkpoint_status).filter_by(**held)).one()
    failures = current.failures + int(status == "FAILED")
    is_again = status == "ABANDONED" or (status == "FAILED" and may_retry and failures < settings.max_attempts)
    work = {} if result is None else vars(result)
    values = {
        "status": "IDLE" if is_again else status,
        "failures": failures,
        "retry_at": now_ms + to_ms(settings.retry_pause_seconds) * failures if status == "FAILED" else now_ms,
        "changed_at": now_ms,
        "ended_at": None if is_again else now_ms,
        "error": cut_error(error),
        **work,
    }
    transaction.execute(checkpoint_status.update().filter_by(**held).values(**values))
    end_attempt(transaction, claim.claim_id, status, now_ms, error=error, **work)
    return True


def _was_released(transaction: Transaction, claim: Claim, status: ReleaseStatus) -> bool:
    """Return whether an earlier attempt at this very release was committed and its answer lost."""
    identity = {name: getattr(claim, name) for name in ("cycle", "partition", "attempt", "claim_id")}
    recorded = transaction.execute(select(checkpoint_detail.c.status).filter_by(**identity)).scalar()
    return bool(recorded == status)


class Heartbeat:
    """Keeps a claim alive from a thread of its own, and stops the compaction once the claim is lost."""

    def __init__(
        self,
        database: Database,
        claim: Claim,
        settings: ServiceSettings,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_lost = False
        # Set to make the compaction stop at its next step.
        self.stop_reason: str | None = None
        self._database = database
        self._claim = claim
        self._settings = settings
        self._monotonic = monotonic
        self._beat_at = monotonic()
        self._done = threading.Event()
        self._progress = self._buckets_done = self._buckets_total = 0
        self._thread = threading.Thread(target=self._run, name=f"heartbeat {claim.partition}", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()

    def on_progress(self, event: Event) -> None:
        """Note a step of the compaction, and end it where it has lost the right to go on. Raises: LeaseLostError."""
        # Being waited for is no step, or a compaction that hangs would seem to move.
        self._progress += not isinstance(event, JobAwaited)
        if isinstance(event, RoundStarted):
            self._buckets_done, self._buckets_total = 0, event.buckets
        elif isinstance(event, BucketMerged):
            self._buckets_done += 1
        # After a pause of the whole process, the thread may not have noticed yet what happened meanwhile.
        if self._monotonic() - self._beat_at > self._settings.claim_lease_seconds / 2:
            self.beat()
        reason = self.stop_reason
        if reason is None and self.is_lost:
            reason = f"the claim of cycle {self._claim.cycle}, attempt {self._claim.attempt}, is lost"
        if reason is not None:
            raise LeaseLostError(f"{self._claim.partition}: {reason}, so nothing more is committed")

    def beat(self) -> None:
        """Send one heartbeat. A database that is not reached for a whole lease means that the claim is lost."""
        beat = Beat(self._progress, self._buckets_done, self._buckets_total)
        started_at = self._monotonic()
        try:
            is_ours = send_heartbeat(self._database, self._claim, beat, self._settings)
        except StorageError as error:
            is_ours = self._monotonic() - self._beat_at <= self._settings.claim_lease_seconds
            _log.warning("heartbeat failed", extra={"partition": self._claim.partition, "reason": str(error)})
        else:
            self._beat_at = started_at
        if not is_ours:
            self.is_lost = True

    def _run(self) -> None:
        while not self._done.wait(self._settings.heartbeat_seconds) and not self.is_lost:
            self.beat()


class Worker:
    """One node's worker; `step` does one partition. Several threads may each have one."""

    def __init__(self, database: Database, tables: Tables, settings: ServiceSettings, *, owner: str) -> None:
        self._database = database
        self._tables = tables
        self._settings = settings
        self._owner = owner
        self._current: Heartbeat | None = None
        self._stop_reason: str | None = None
        self._lock = threading.Lock()

    def step(self) -> bool:
        """Claim a partition, compact it and release it; False if there is nothing to claim. Raises: StorageError."""
        claim = claim_partition(self._database, self._owner, self._settings)
        if claim is None:
            return False
        self.work(claim)
        return True

    def work(self, claim: Claim) -> bool:
        """Compact a claimed partition and hand it back; False where the claim was lost. Raises: StorageError."""
        fields = {"cycle": claim.cycle, "partition": claim.partition, "attempt": claim.attempt, "worker": claim.owner}
        with self._watched(claim) as heartbeat:
            try:
                result = self._tables.compact(claim.locator, heartbeat.on_progress)
            except LeaseLostError as error:
                _log.warning("checkpoint stopped", extra={**fields, "reason": str(error)})
                if heartbeat.is_lost or heartbeat.stop_reason is None:
                    return False
                return release_partition(self._database, claim, "ABANDONED", self._settings, error=str(error))
            except Exception as error:  # noqa: BLE001 - whatever a compaction fails with is an outcome of the checkpoint
                reason = mask_secrets(str(error) or type(error).__name__)
                _log.error("checkpoint failed", extra={**fields, "reason": reason}, exc_info=error)
                is_lasting = isinstance(error, _LASTING)
                return release_partition(
                    self._database, claim, "FAILED", self._settings, error=reason, may_retry=not is_lasting
                )
            is_taken = release_partition(self._database, claim, "COMPLETED", self._settings, result=result)
            if is_taken:
                _log.info("checkpoint completed", extra={**fields, **vars(result)})
            else:
                _log.warning("late result refused", extra=fields)
            return is_taken

    def abandon(self, reason: str) -> None:
        """Make the compaction that runs stop at its next step and hand its partition back, for others to take."""
        with self._lock:
            self._stop_reason = reason
            if self._current is not None:
                self._current.stop_reason = reason

    def _watched(self, claim: Claim) -> Heartbeat:
        with self._lock:
            self._current = Heartbeat(self._database, claim, self._settings)
            self._current.stop_reason = self._stop_reason
            return self._current
