"""The transactions of a worker on a partition: claim it, say that it is alive, hand it back."""

import uuid
from dataclasses import dataclass
from typing import Literal

import orjson
from sqlalchemy import Row, case, delete, select

from siltstone.model import PartitionLocator
from siltstone.service.controls import current_controls
from siltstone.service.cycles import cut_error, end_attempt, lock_manager
from siltstone.service.database import Database, Transaction
from siltstone.service.partitions import CheckpointResult
from siltstone.service.schema import active_checkpoints, checkpoint_detail, checkpoint_status
from siltstone.service.settings import ServiceSettings, to_ms
from siltstone.service.times import latest_ms

ReleaseStatus = Literal["COMPLETED", "FAILED", "ABANDONED"]


@dataclass(frozen=True)
class Claim:
    """A worker's right to compact a partition in a cycle; cycle and attempt tell it from all others."""

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
    """Claim the largest partition that nobody works on; None where there is none. Raises: StorageError.

    One that this owner has tried before comes last, so that another worker may have it.
    """
    claim_id = uuid.uuid4().hex

    def change(transaction: Transaction) -> Claim | None:
        row = lock_manager(transaction, shared=True)
        if row is None or row.status != "STARTED":
            return None
        earlier = transaction.execute(
            select(checkpoint_status).where(
                (checkpoint_status.c.claim_id == claim_id) & (checkpoint_status.c.status == "STARTED")
            )
        ).first()
        if earlier is not None:
            return _to_claim(earlier, owner)
        now_ms = transaction.now_ms()
        if "disable" in current_controls(transaction, now_ms):
            return None
        free = transaction.execute(
            select(checkpoint_status)
            .where(
                (checkpoint_status.c.cycle == row.cycle_count)
                & (checkpoint_status.c.status == "IDLE")
                & ((checkpoint_status.c.retry_at <= now_ms) | (checkpoint_status.c.changed_at > latest_ms(now_ms)))
            )
            .order_by(
                case((checkpoint_status.c.worker == owner, 1), else_=0),
                checkpoint_status.c.backlog_bytes.desc(),
                checkpoint_status.c.partition,
            )
            .limit(1)
            .with_for_update(skip_locked=True)
        ).first()
        return None if free is None else _claim(transaction, free, owner, claim_id, settings, now_ms)

    return database.change("claim a partition", change)


def _claim(
    transaction: Transaction,
    row: Row[tuple[object, ...]],
    owner: str,
    claim_id: str,
    settings: ServiceSettings,
    now_ms: int,
) -> Claim | None:
    attempt = row.attempt + 1
    free = (checkpoint_status.c.partition == row.partition) & (checkpoint_status.c.status == "IDLE")
    taken = transaction.execute(
        checkpoint_status.update()
        .where(free)
        .values(
            status="STARTED", attempt=attempt, worker=owner, claim_id=claim_id, changed_at=now_ms, started_at=now_ms
        )
    )
    if taken.rowcount != 1:
        return None
    identity = {"cycle": row.cycle, "partition": row.partition, "attempt": attempt}
    transaction.execute(
        active_checkpoints.insert().values(
            **identity,
            claim_id=claim_id,
            worker=owner,
            claimed_at=now_ms,
            heartbeat_at=now_ms,
            lease_until=now_ms + to_ms(settings.claim_lease_seconds),
            progress_at=now_ms,
        )
    )
    transaction.execute(
        checkpoint_detail.insert().values(
            **identity,
            table_name=row.table_name,
            worker=owner,
            claim_id=claim_id,
            status="STARTED",
            started_at=now_ms,
        )
    )
    now_mine = transaction.execute(select(checkpoint_status).where(checkpoint_status.c.partition == row.partition))
    return _to_claim(now_mine.one(), owner)


def _to_claim(row: Row[tuple[object, ...]], owner: str) -> Claim:
    return Claim(
        cycle=row.cycle,
        partition=row.partition,
        table=row.table_name,
        locator=PartitionLocator.from_serializable(orjson.loads(row.locator)),
        attempt=row.attempt,
        claim_id=row.claim_id,
        owner=owner,
    )


def send_heartbeat(database: Database, claim: Claim, beat: Beat, settings: ServiceSettings) -> bool:
    """Say that a claim is being worked on; False where it is lost. Raises: StorageError."""

    def change(transaction: Transaction) -> bool:
        now_ms = transaction.now_ms()
        has_moved = (active_checkpoints.c.progress != beat.progress) | (
            active_checkpoints.c.progress_at > latest_ms(now_ms)
        )
        done = transaction.execute(
            active_checkpoints.update()
            .where(active_checkpoints.c.claim_id == claim.claim_id)
            .values(
                sync_heartbeat=active_checkpoints.c.sync_heartbeat + 1,
                heartbeat_at=now_ms,
                lease_until=now_ms + to_ms(settings.claim_lease_seconds),
                progress_at=case((has_moved, now_ms), else_=active_checkpoints.c.progress_at),
                progress=beat.progress,
                buckets_done=beat.buckets_done,
                buckets_total=beat.buckets_total,
            )
        )
        return bool(done.rowcount)

    return database.change("send a heartbeat", change)


def release_partition(
    database: Database,
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
    work = {} if result is None else dict(vars(result))

    def change(transaction: Transaction) -> bool:
        row = lock_manager(transaction, shared=True)
        if row is None or row.status != "STARTED" or row.cycle_count != claim.cycle:
            return _was_released(transaction, claim, status)
        given = transaction.execute(delete(active_checkpoints).where(active_checkpoints.c.claim_id == claim.claim_id))
        if given.rowcount != 1:
            return _was_released(transaction, claim, status)
        now_ms = transaction.now_ms()
        mine = (checkpoint_status.c.claim_id == claim.claim_id) & (checkpoint_status.c.status == "STARTED")
        current = transaction.execute(select(checkpoint_status).where(mine)).one()
        failures = current.failures + int(status == "FAILED")
        is_again = status == "ABANDONED" or (status == "FAILED" and may_retry and failures < settings.max_attempts)
        values = {
            "status": "IDLE" if is_again else status,
            "failures": failures,
            "retry_at": now_ms + to_ms(settings.retry_pause_seconds) * failures if status == "FAILED" else now_ms,
            "changed_at": now_ms,
            "ended_at": None if is_again else now_ms,
            "error": cut_error(error),
            **work,
        }
        transaction.execute(checkpoint_status.update().where(mine).values(**values))
        end_attempt(transaction, claim.claim_id, status, now_ms, error=error, **work)
        return True

    return database.change("hand a partition back", change)


def _was_released(transaction: Transaction, claim: Claim, status: ReleaseStatus) -> bool:
    """Tell whether an earlier attempt at this very release was committed and its answer lost."""
    mine = (
        (checkpoint_detail.c.cycle == claim.cycle)
        & (checkpoint_detail.c.partition == claim.partition)
        & (checkpoint_detail.c.attempt == claim.attempt)
        & (checkpoint_detail.c.claim_id == claim.claim_id)
    )
    found = transaction.execute(select(checkpoint_detail.c.status).where(mine)).scalar()
    return bool(found == status)
