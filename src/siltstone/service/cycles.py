"""The transactions of the leader: take the lead; begin a cycle, take back expired claims, finish it.

Those on a cycle lock the lease row, then the manager row, then others, and refuse to act for a leader whose term is over.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Row, delete, func, select

from siltstone.errors import LeaseLostError
from siltstone.service import schema
from siltstone.service.backlogs import record_backlogs
from siltstone.service.controls import clear_expired, current_controls
from siltstone.service.database import Transaction, in_transaction
from siltstone.service.failures import choose_work, record_outcomes
from siltstone.service.results import CycleRecord, FailedPartition, PendingPartition
from siltstone.service.settings import ServiceSettings, latest_ms, to_ms

# What is said of partitions that a cycle left when it ended before its time.
_WHY_EARLY: Mapping[schema.FailureReason, str] = {
    "disabled": "the service was disabled",
    "stalled": "no worker claimed it in time",
    "partitions": "",
}
_ERRORS_KEPT = 100
_ERROR_CHARACTERS = 2000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """The right to lead, under a term, until a time unless renewed."""

    holder: str
    term: int
    acquired_at: int
    renewed_at: int
    lease_until: int


@dataclass(frozen=True)
class Begun:
    """A cycle that has begun, and of how many partitions it is."""

    cycle: int
    partitions: int


@in_transaction("take or renew the lead")
def take_lead(transaction: Transaction, holder: str, lease_ms: int) -> Lease | None:
    """Take or renew the lead, and return the term, or None if another node leads. Raises: StorageError.

    A holder whose lease had run out gets a new term, so that nothing it began before can still be committed.
    """
    row = transaction.execute(select(schema.leader_lease).with_for_update()).one()
    now_ms = transaction.now_ms()
    is_free = not is_current(row, now_ms)
    if not is_free and row.holder != holder:
        return None
    lease = Lease(
        holder=holder,
        term=row.term + 1 if is_free else row.term,
        acquired_at=now_ms if is_free else row.acquired_at,
        renewed_at=now_ms,
        lease_until=now_ms + lease_ms,
    )
    transaction.execute(schema.leader_lease.update().values(**vars(lease)))
    return lease


@in_transaction("give up the lead")
def give_up_lead(transaction: Transaction, lease: Lease) -> None:
    """Let others lead at once. Raises: StorageError."""
    own = schema.leader_lease.update().filter_by(holder=lease.holder, term=lease.term)
    transaction.execute(own.values(lease_until=0))


def check_lead(transaction: Transaction, lease: Lease) -> int:
    """Make sure, until the end of the transaction, that a lease holds; return the time. Raises: LeaseLostError."""
    row = transaction.execute(select(schema.leader_lease).with_for_update()).one()
    now_ms = transaction.now_ms()
    if row.holder != lease.holder or row.term != lease.term or not is_current(row, now_ms):
        raise LeaseLostError(
            f"{lease.holder}: no longer leads: its term is {lease.term}, the newest is {row.term} of {row.holder}; "
            "it takes part again when the lead is free"
        )
    return now_ms


def is_current(row: Row[Any], now_ms: int) -> bool:
    """Return whether a lease holds: one that begins ahead does not, whatever its end says."""
    return bool(row.lease_until >= now_ms and max(row.renewed_at, row.acquired_at) <= latest_ms(now_ms))


def lock_manager(transaction: Transaction, *, shared: bool = False) -> Row[Any] | None:
    """Return the manager row; nobody changes it until the transaction ends. None before the first leader."""
    return transaction.execute(select(schema.manager).with_for_update(read=shared)).first()


@in_transaction("create the manager row")
def bootstrap(transaction: Transaction, lease: Lease) -> None:
    """Create the manager row if it is missing. Raises: LeaseLostError, StorageError."""
    now_ms = check_lead(transaction, lease)
    values = {"status": "IDLE", "cycle_count": _newest_cycle(transaction), "last_started_at": now_ms}
    transaction.insert_if_absent(schema.manager, id=schema.SINGLETON, **values)


@in_transaction("begin a cycle")
def begin_cycle(
    transaction: Transaction,
    lease: Lease,
    pending: Sequence[PendingPartition],
    reason: schema.TriggerReason,
    node: str,
    *,
    planning_ms: int = 0,
    settings: ServiceSettings | None = None,
) -> Begun | None:
    """Begin a cycle over partitions, take up all waiting requests, and return it. Raises: LeaseLostError, StorageError.

    Where all requests are about some tables and nothing else is due, it is about those alone. None if one runs already, or if
    the service was disabled or frozen meanwhile.
    """
    now_ms = check_lead(transaction, lease)
    row = lock_manager(transaction)
    if row is None or row.status == "STARTED" or current_controls(transaction, now_ms):
        return None
    clear_expired(transaction, now_ms)
    # Also above every number in the history, should the manager row have been lost and made anew.
    cycle: int = max(row.cycle_count, _newest_cycle(transaction)) + 1
    transaction.execute(delete(schema.active_checkpoints))
    transaction.execute(delete(schema.checkpoint_status))
    requests = _take_up_requests(transaction, cycle)
    requested = {name for request in requests for name in orjson.loads(request.tables or "[]")}
    is_of_all = any(request.tables is None for request in requests)
    is_partial = reason == "request" and bool(requests) and not is_of_all
    chosen = choose_work(transaction, pending, None if is_of_all else requested, now_ms)
    if is_partial:
        chosen = [partition for partition in chosen if partition.table in requested]
    if chosen:
        rows = [_checkpoint_row(partition, cycle, now_ms) for partition in chosen]
        transaction.connection.execute(schema.checkpoint_status.insert(), rows)
    record_backlogs(transaction, pending, cycle, now_ms)
    settings = settings or ServiceSettings()
    transaction.execute(
        schema.manager.update().values(
            status="STARTED",
            cycle_count=cycle,
            leader=node,
            trigger_reason=reason,
            failure_reason=None,
            trims_after=any(request.trim for request in requests),
            trim_due=False,
            # A cycle of some tables does not put off that of all.
            last_started_at=row.last_started_at if is_partial else now_ms,
            started_at=now_ms,
            ended_at=None,
            planning_ms=planning_ms,
            interval_ms=to_ms(settings.interval_seconds),
            quiet_hours=str(settings.quiet_hours) if settings.quiet_hours else None,
        )
    )
    return Begun(cycle, len(chosen))


def _newest_cycle(transaction: Transaction) -> int:
    return transaction.execute(select(func.max(schema.cycle_history.c.cycle_count))).scalar() or 0


def _checkpoint_row(pending: PendingPartition, cycle: int, now_ms: int) -> dict[str, object]:
    is_broken = pending.problem is not None
    return {
        "partition": pending.name,
        "cycle": cycle,
        "table_name": pending.table,
        "locator": orjson.dumps(pending.locator).decode() if pending.locator is not None else "",
        "status": "FAILED" if is_broken else "IDLE",
        "backlog_deltas": pending.deltas,
        "backlog_bytes": pending.bytes,
        "priority": pending.priority,
        "changed_at": now_ms,
        "ended_at": now_ms if is_broken else None,
        "error": cut_error(pending.problem),
    }


def _take_up_requests(transaction: Transaction, cycle: int) -> Sequence[Row[Any]]:
    """Let waiting requests belong to a cycle; return them."""
    pending = select(schema.trigger_requests).filter_by(state="PENDING").with_for_update()
    requests = transaction.execute(pending).all()
    for request in requests:
        taken_up = schema.trigger_requests.update().filter_by(request_id=request.request_id)
        transaction.execute(taken_up.values(state="RUNNING", cycle=cycle))
    return requests


def is_expired(now_ms: int, settings: ServiceSettings) -> ColumnElement[bool]:
    """Return the condition of claims whose worker is dead or stuck, or from before the clock was set back."""
    claim = schema.active_checkpoints.c
    return (
        (claim.lease_until < now_ms)
        | (claim.progress_at < now_ms - to_ms(settings.stuck_seconds))
        | (claim.heartbeat_at > latest_ms(now_ms))
        | (claim.progress_at > latest_ms(now_ms))
    )


@in_transaction("take back expired claims")
def evict_expired(transaction: Transaction, lease: Lease, settings: ServiceSettings) -> list[str]:
    """Take claims from workers that are dead or stuck; return the partitions that they had not handed back.

    A partition can be claimed again until it has failed often enough. Raises: LeaseLostError, StorageError.
    """
    now_ms = check_lead(transaction, lease)
    row = lock_manager(transaction)
    if row is None or row.status != "STARTED":
        return []
    expired = select(schema.active_checkpoints).where(is_expired(now_ms, settings))
    claims = transaction.execute(expired.with_for_update()).all()
    evicted = [partition for claim in claims for partition in _evict(transaction, claim, settings, now_ms)]
    if claims:
        transaction.execute(schema.manager.update().values(evictions=schema.manager.c.evictions + len(claims)))
    return evicted


def _evict(transaction: Transaction, claim: Row[Any], settings: ServiceSettings, now_ms: int) -> list[str]:
    worker = node_name(claim.worker)
    is_set_back = max(claim.heartbeat_at, claim.progress_at) > latest_ms(now_ms)
    why = "it sent no heartbeat in time" if claim.lease_until < now_ms else "it made no progress in time"
    why = "the clock of the database was set back" if is_set_back else why
    error = f"the claim of {worker} expired: {why}"
    transaction.execute(delete(schema.active_checkpoints).filter_by(claim_id=claim.claim_id))
    end_attempts(transaction, claim, "EXPIRED", now_ms, error)
    held = {"cycle": claim.cycle, "status": "STARTED", "claim_id": claim.claim_id}
    rows = transaction.execute(select(schema.checkpoint_status).filter_by(**held)).all()
    if not rows:
        return []
    # All have failed as often as each other, or they would not have been claimed together. The clock is nobody's failure.
    failures = rows[0].failures + int(not is_set_back)
    is_last = failures >= settings.max_attempts
    values = {
        "status": "FAILED" if is_last else "IDLE",
        "failures": failures,
        "changed_at": now_ms,
        "ended_at": now_ms if is_last else None,
        "error": f"{error}; tried {failures} times" if is_last else error,
    }
    transaction.execute(schema.checkpoint_status.update().filter_by(**held).values(**values))
    about = {"cycle": claim.cycle, "table": rows[0].table_name, "partitions": len(rows), "worker": worker}
    _log.warning("claim expired", extra={**about, "reason": why, "is_last": is_last})
    return [row.partition for row in rows]


def end_attempts(transaction: Transaction, claim: Row[Any], status: str, now_ms: int, error: str) -> None:
    """Write down how the attempts of a claim ended that have not ended already."""
    begun = schema.checkpoint_detail.update().filter_by(cycle=claim.cycle, claim_id=claim.claim_id, status="STARTED")
    transaction.execute(begun.values(status=status, ended_at=now_ms, error=cut_error(error)))


@in_transaction("finish the cycle")
def finish_cycle(
    transaction: Transaction,
    lease: Lease,
    cycle: int,
    *,
    why_early: schema.FailureReason | None = None,
    settings: ServiceSettings | None = None,
) -> CycleRecord | None:
    """End a cycle: COMPLETED if every checkpoint is, else FAILED. Its record enters the history in the same transaction.

    None if that cycle is not running. Raises: LeaseLostError, StorageError.
    """
    now_ms = check_lead(transaction, lease)
    row = lock_manager(transaction)
    if row is None or row.status != "STARTED" or row.cycle_count != cycle:
        return None
    checkpoints = transaction.execute(select(schema.checkpoint_status).filter_by(cycle=cycle)).all()
    record = _make_record(row, checkpoints, now_ms, why_early)
    _end_open_attempts(transaction, checkpoints, now_ms, None if why_early is None else _WHY_EARLY[why_early])
    record_outcomes(transaction, checkpoints, settings or ServiceSettings(), row.started_at, now_ms)
    problems = orjson.dumps(record.failed_partitions).decode()
    transaction.execute(schema.cycle_history.insert().values(**{**vars(record), "failed_partitions": problems}))
    is_completed = record.status == "COMPLETED"
    is_stopped = record.outcome == "STOPPED"
    _set_trim_marks(transaction, checkpoints)
    transaction.execute(
        schema.manager.update().values(
            status=record.status,
            ended_at=now_ms,
            failure_reason=record.failure_reason,
            last_result=row.last_result if is_stopped else record.status,
            # Whatever came of the cycle: what was compacted may go, and deltas below old marks may be past their retention.
            trim_due=True,
            last_completed_at=now_ms if is_completed else row.last_completed_at,
            completed_cycles=schema.manager.c.completed_cycles + int(is_completed),
            failed_cycles=schema.manager.c.failed_cycles + int(not is_completed and not is_stopped),
            stopped_cycles=schema.manager.c.stopped_cycles + int(is_stopped),
            rows=schema.manager.c.rows + record.rows,
            input_bytes=schema.manager.c.input_bytes + record.input_bytes,
            written_bytes=schema.manager.c.written_bytes + record.written_bytes,
        )
    )
    _answer_requests(transaction, record, now_ms)
    return record


def _make_record(
    row: Row[Any], checkpoints: Sequence[Row[Any]], now_ms: int, why_early: schema.FailureReason | None
) -> CycleRecord:
    failed = [checkpoint for checkpoint in checkpoints if checkpoint.status == "FAILED"]
    unfinished = [checkpoint for checkpoint in checkpoints if checkpoint.status in ("IDLE", "STARTED")]
    problems = [FailedPartition(checkpoint.partition, checkpoint.error or "") for checkpoint in failed]
    problems += [
        FailedPartition(
            checkpoint.partition, _WHY_EARLY[why_early or "partitions"] or checkpoint.error or "not finished"
        )
        for checkpoint in unfinished
    ]
    # What was stopped is said to be so even where a partition had failed before: nobody can say what the rest would have done.
    reason: schema.FailureReason = why_early if why_early and unfinished else "partitions"
    return CycleRecord(
        cycle_count=row.cycle_count,
        status="FAILED" if problems else "COMPLETED",
        # From the manager row: it is right whoever began the cycle.
        start_time_ms=row.started_at,
        end_time_ms=now_ms,
        trigger_reason=row.trigger_reason,
        leader=row.leader,
        partitions=len(checkpoints),
        completed=len(checkpoints) - len(problems),
        failed=len(failed),
        unfinished=len(unfinished),
        attempts=sum(checkpoint.attempt for checkpoint in checkpoints),
        failed_partitions=problems[:_ERRORS_KEPT],
        trimmed_deltas=None,
        tables=len({checkpoint.table_name for checkpoint in checkpoints}),
        failed_tables=len({checkpoint.table_name for checkpoint in failed}),
        planning_ms=row.planning_ms,
        failure_reason=reason if problems else None,
        **{name: sum(getattr(checkpoint, name) for checkpoint in checkpoints) for name in schema.WORK},
    )


def _end_open_attempts(
    transaction: Transaction, checkpoints: Sequence[Row[Any]], now_ms: int, why_early: str | None
) -> None:
    """End the claims that are left, and record in the timeline the partitions that nobody tried."""
    transaction.execute(delete(schema.active_checkpoints))
    for row in {row.claim_id: row for row in checkpoints if row.status == "STARTED"}.values():
        end_attempts(transaction, row, "ABANDONED", now_ms, why_early or "the cycle ended")
    same = ("cycle", "partition", "attempt", "table_name", "status")
    untried = [
        {
            **{name: getattr(row, name) for name in same},
            "started_at": now_ms,
            "ended_at": now_ms,
            "error": row.error or why_early,
        }
        for row in checkpoints
        if row.attempt == 0
    ]
    transaction.insert_or_update(schema.checkpoint_detail, untried)


def _set_trim_marks(transaction: Transaction, checkpoints: Sequence[Row[Any]]) -> None:
    """Let what was compacted be trimmed, also where others failed."""
    names = [column.name for column in schema.trim_marks.c]
    marks = [
        {name: getattr(row, name) for name in names}
        for row in checkpoints
        if row.status == "COMPLETED" and row.high_watermark is not None
    ]
    transaction.insert_or_update(schema.trim_marks, marks)


def _answer_requests(transaction: Transaction, record: CycleRecord, now_ms: int) -> None:
    requests = schema.trigger_requests.update().filter_by(cycle=record.cycle_count, state="RUNNING")
    if record.outcome != "STOPPED":
        transaction.execute(requests.filter_by(trim=True).values(state="TRIMMING", outcome=record.status))
    transaction.execute(requests.values(state="DONE", outcome=record.status, ended_at=now_ms))


def node_name(owner: str) -> str:
    """Return the name of the node that an owner of a lease or claim belongs to."""
    return owner.rpartition("#")[0] or owner


def cut_error(error: str | None) -> str | None:
    """Shorten an error that would fill the database."""
    return error if error is None or len(error) <= _ERROR_CHARACTERS else f"{error[:_ERROR_CHARACTERS]}…"
