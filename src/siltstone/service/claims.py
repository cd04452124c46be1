"""Claims: a worker's right to compact partitions of one table in a cycle; taking one, keeping it, handing partitions back."""

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, Row, bindparam, case, delete, func, literal, select

from siltstone.model import PartitionLocator
from siltstone.service.controls import current_controls
from siltstone.service.cycles import cut_error, lock_manager
from siltstone.service.database import Database, Transaction, in_transaction
from siltstone.service.results import CheckpointResult
from siltstone.service.schema import WORK, active_checkpoints, checkpoint_detail, checkpoint_status
from siltstone.service.settings import ServiceSettings, latest_ms, to_ms

OutcomeStatus = Literal["COMPLETED", "FAILED", "ABANDONED"]
_OF_RESULT = ("high_watermark", *WORK)


@dataclass(frozen=True)
class ClaimedPartition:
    """A partition of a claim; the attempt is which one it is at this partition in the cycle."""

    name: str
    locator: PartitionLocator
    attempt: int


@dataclass(frozen=True)
class Claim:
    """A worker's right to compact partitions of a table in a cycle: only its id can send heartbeats and hand them back."""

    cycle: int
    table: str
    claim_id: str
    owner: str
    partitions: tuple[ClaimedPartition, ...]


@dataclass(frozen=True)
class Beat:
    """How far a compaction is: `progress` changes when it moves."""

    progress: int = 0
    buckets_done: int = 0
    buckets_total: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of a partition of a claim. A failure that `may_retry` is tried again in the same cycle."""

    partition: str
    status: OutcomeStatus
    result: CheckpointResult | None = None
    error: str | None = None
    may_retry: bool = False


def claim_table(database: Database, owner: str, settings: ServiceSettings) -> Claim | None:
    """Claim and return what is due of one table, or None, also where as much is claimed as may be. Raises: StorageError.

    Tables of a higher priority come first, of these those with fewer claims in this cycle, so that a very large one does not
    keep the others waiting, and of these the one with the most to do. Of a table that is all its partitions, or as many
    as one job takes, in the order of their names. What this owner has tried before
    comes last, so that another worker may have it. Partitions that have failed are claimed with fewer others each time,
    and for the last time alone, so that one which kills its worker fails alone in the end.
    """
    return _claim_table(database, owner, settings, uuid.uuid4().hex)


@in_transaction("claim a table")
def _claim_table(transaction: Transaction, owner: str, settings: ServiceSettings, claim_id: str) -> Claim | None:
    has_limits = settings.max_claims is not None or settings.max_claimed_bytes is not None
    # Two that claim at the same time would each not see the other one's.
    row = lock_manager(transaction, shared=not has_limits)
    if row is None or row.status != "STARTED":
        return None
    held = {"cycle": row.cycle_count, "status": "STARTED", "claim_id": claim_id}
    mine = select(checkpoint_status).filter_by(**held).order_by(checkpoint_status.c.partition)
    earlier = transaction.execute(mine).all()
    if earlier:
        return _to_claim(earlier)
    now_ms = transaction.now_ms()
    if "disable" in current_controls(transaction, now_ms):
        return None
    free = _find_free(transaction, row.cycle_count, owner, settings, now_ms)
    if has_limits:
        free = _within_limits(transaction, row.cycle_count, free, settings)
    if not free:
        return None
    status = checkpoint_status.c
    transaction.execute(
        checkpoint_status.update()
        .filter_by(cycle=row.cycle_count, status="IDLE")
        .where(status.partition.in_([each.partition for each in free]))
        .values(
            status="STARTED",
            attempt=status.attempt + 1,
            worker=owner,
            claim_id=claim_id,
            changed_at=now_ms,
            started_at=now_ms,
        )
    )
    taken = transaction.execute(mine).all()
    if not taken:
        return None
    first = {name: getattr(taken[0], name) for name in ("partition", "cycle", "attempt", "claim_id", "worker")}
    lease_until = now_ms + to_ms(settings.claim_lease_seconds)
    times = {"claimed_at": now_ms, "heartbeat_at": now_ms, "lease_until": lease_until, "progress_at": now_ms}
    transaction.execute(active_checkpoints.insert().values(**first, **times))
    same = ("cycle", "partition", "attempt", "table_name", "worker", "claim_id", "status", "started_at")
    begun = select(*(status[name] for name in same), *(literal(0).label(name) for name in WORK)).filter_by(**held)
    transaction.execute(checkpoint_detail.insert().from_select([*same, *WORK], begun))
    return _to_claim(taken)


def _find_free(
    transaction: Transaction, cycle: int, owner: str, settings: ServiceSettings, now_ms: int
) -> Sequence[Row[Any]]:
    """Return the partitions of one claim, which nobody else can claim until the transaction ends."""
    status = checkpoint_status.c
    is_due = (status.retry_at <= now_ms) | (status.changed_at > latest_ms(now_ms))
    is_tried: ColumnElement[int] = case((status.worker == owner, 1), else_=0)
    groups = transaction.execute(
        select(
            status.table_name,
            status.failures,
            is_tried.label("is_tried"),
            func.max(status.priority).label("priority"),
            func.sum(status.backlog_bytes).label("bytes"),
        )
        .filter_by(cycle=cycle, status="IDLE")
        .where(is_due)
        .group_by(status.table_name, status.failures, "is_tried")
    ).all()
    claims = _count_claims(transaction, cycle)

    def place(group: Row[Any]) -> tuple[object, ...]:
        size, name = -(group.bytes or 0), group.table_name
        return group.is_tried, -group.priority, claims.get(name, 0), size, name, group.failures

    for group in sorted(groups, key=place):
        free = (
            select(checkpoint_status)
            .filter_by(cycle=cycle, status="IDLE", table_name=group.table_name, failures=group.failures)
            .where(is_due, is_tried == group.is_tried)
            .order_by(status.partition)
            .limit(most_partitions(group.failures, settings))
            .with_for_update(skip_locked=True)
        )
        # None where another worker is about to claim them.
        found = transaction.execute(free).all()
        if found:
            return _that_fit(found, settings.claim_bytes)
    return []


def _count_claims(transaction: Transaction, cycle: int) -> dict[str, int]:
    """Return how many claims each table has had in a cycle, but those that were handed back undone."""
    status = checkpoint_status.c
    counts = select(status.table_name, func.count(status.claim_id.distinct()).label("claims"))
    rows = transaction.execute(counts.filter_by(cycle=cycle).where(status.status != "IDLE").group_by(status.table_name))
    return {row.table_name: row.claims for row in rows}


def _within_limits(
    transaction: Transaction, cycle: int, free: Sequence[Row[Any]], settings: ServiceSettings
) -> Sequence[Row[Any]]:
    """Return as many of these partitions as may be claimed beside what is claimed; one at least where nothing is."""
    claims = transaction.execute(select(func.count()).select_from(active_checkpoints)).scalar_one()
    if settings.max_claims is not None and claims >= settings.max_claims:
        return []
    if settings.max_claimed_bytes is None or not claims:
        return free if settings.max_claimed_bytes is None else _that_fit(free, settings.max_claimed_bytes)
    started = select(func.sum(checkpoint_status.c.backlog_bytes)).filter_by(cycle=cycle, status="STARTED")
    left = settings.max_claimed_bytes - int(transaction.execute(started).scalar() or 0)
    return _that_fit(free, left) if free and free[0].backlog_bytes <= left else []


def most_partitions(failures: int, settings: ServiceSettings) -> int:
    """Return how many partitions that have failed so often are claimed together at most: 1000, 32 and 1, of three tries."""
    if not failures:
        return settings.claim_partitions
    left = 1 - failures / max(settings.max_attempts - 1, 1)
    return max(1, round(math.pow(settings.claim_partitions, left)))


def _that_fit(rows: Sequence[Row[Any]], most_bytes: int) -> Sequence[Row[Any]]:
    """Return the first partitions with no more than so many bytes of deltas, at least one."""
    size = 0
    for number, row in enumerate(rows):
        size += row.backlog_bytes
        if number and size > most_bytes:
            return rows[:number]
    return rows


def _to_claim(rows: Sequence[Row[Any]]) -> Claim:
    partitions = tuple(
        ClaimedPartition(row.partition, PartitionLocator.from_serializable(orjson.loads(row.locator)), row.attempt)
        for row in rows
    )
    first = rows[0]
    return Claim(first.cycle, first.table_name, first.claim_id, owner=first.worker, partitions=partitions)


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


@in_transaction("hand partitions back")
def release_partitions(
    transaction: Transaction, claim: Claim, outcomes: Sequence[Outcome], settings: ServiceSettings
) -> bool:
    """Hand partitions of a claim back, each with what came of it; False, and nothing changed, where the claim was lost.

    With its last partition, the claim ends. A failure that may pass is tried again in this cycle, unless it happened too
    often. What was ABANDONED does not count as a failure. Raises: StorageError.
    """
    row = lock_manager(transaction, shared=True)
    if row is None or row.status != "STARTED" or row.cycle_count != claim.cycle:
        return _were_released(transaction, claim, outcomes)
    # It stays until the transaction ends, or nothing of it is left.
    active = select(active_checkpoints.c.claim_id).filter_by(claim_id=claim.claim_id).with_for_update()
    if transaction.execute(active).first() is None:
        return _were_released(transaction, claim, outcomes)
    now_ms = transaction.now_ms()
    started = select(checkpoint_status).filter_by(cycle=claim.cycle, status="STARTED", claim_id=claim.claim_id)
    held = {each.partition: each for each in transaction.execute(started)}
    new = [outcome for outcome in outcomes if outcome.partition in held]
    if not _were_released(transaction, claim, [outcome for outcome in outcomes if outcome.partition not in held]):
        return False
    if new:
        _record(transaction, [(outcome, held[outcome.partition]) for outcome in new], settings, now_ms)
    if len(held) == len(new):
        transaction.execute(delete(active_checkpoints).filter_by(claim_id=claim.claim_id))
    return True


def _record(
    transaction: Transaction, ended: Sequence[tuple[Outcome, Row[Any]]], settings: ServiceSettings, now_ms: int
) -> None:
    """Write down what came of partitions, and how the attempts at them ended."""
    states, attempts = [], []
    for outcome, row in ended:
        key = {"of_cycle": row.cycle, "of_partition": row.partition, "of_attempt": row.attempt}
        failures = row.failures + int(outcome.status == "FAILED")
        may_retry = outcome.may_retry and failures < settings.max_attempts
        is_again = outcome.status == "ABANDONED" or (outcome.status == "FAILED" and may_retry)
        pause_ms = to_ms(settings.retry_pause_seconds) * failures if outcome.status == "FAILED" else 0
        work = {name: getattr(outcome.result or row, name) for name in _OF_RESULT}
        states.append(
            {
                **key,
                "status": "IDLE" if is_again else outcome.status,
                "failures": failures,
                "retry_at": now_ms + pause_ms,
                "changed_at": now_ms,
                "ended_at": None if is_again else now_ms,
                "error": cut_error(outcome.error),
                **work,
            }
        )
        attempts.append(
            {**key, "status": outcome.status, "ended_at": now_ms, "error": cut_error(outcome.error), **work}
        )
    for table, values in ((checkpoint_status, states), (checkpoint_detail, attempts)):
        same = {name: table.c[name] == bindparam(f"of_{name}") for name in ("cycle", "partition", "attempt")}
        transaction.connection.execute(table.update().where(*same.values()), values)


def _were_released(transaction: Transaction, claim: Claim, outcomes: Sequence[Outcome]) -> bool:
    """Return whether an earlier attempt at this very release was committed and its answer lost."""
    if not outcomes:
        return True
    recorded = transaction.execute(
        select(checkpoint_detail.c.partition, checkpoint_detail.c.status).filter_by(
            cycle=claim.cycle, claim_id=claim.claim_id
        )
    )
    statuses = {each.partition: each.status for each in recorded}
    return all(statuses.get(outcome.partition) == outcome.status for outcome in outcomes)
