"""What was and what is: finished cycles, the one that runs, and who takes part."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import orjson
from sqlalchemy import Row, delete, select

from siltstone.clock import measure
from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.service import schema
from siltstone.service.controls import ALL_TABLES, TABLE_ACTIONS, current_controls, pending_requests
from siltstone.service.cycles import Lease, check_lead, is_current, node_name
from siltstone.service.database import Database, Transaction, in_transaction
from siltstone.service.failures import read_failing, read_pauses
from siltstone.service.results import (
    Attempt,
    AuditEntry,
    Checkpoint,
    Control,
    CycleDetails,
    CycleRecord,
    FailedPartition,
    FailingTable,
    LeaderInfo,
    NodeInfo,
    ServiceStatus,
    Totals,
)
from siltstone.service.settings import HISTORY_LIMIT, QuietHours, ServiceSettings, latest_ms, parse_quiet_hours, to_ms

T = TypeVar("T", Checkpoint, Attempt)
_OF_MANAGER = ("status", "started_at", "ended_at", "trigger_reason", "failure_reason", "last_completed_at")
# So many problems are named in one sentence.
_NAMED = 3
_log = logging.getLogger(__name__)


@in_transaction("read the history", reads=True)
def cycle_records(
    transaction: Transaction, limit: int = HISTORY_LIMIT, *, status: schema.CycleStatus | None = None
) -> list[CycleRecord]:
    """Return the newest finished cycles, newest first, of the hundred that are kept. Raises: StorageError."""
    newest = select(schema.cycle_history).order_by(schema.cycle_history.c.cycle_count.desc()).limit(HISTORY_LIMIT)
    records = [_to_record(row) for row in transaction.execute(newest)]
    return [record for record in records if status in (None, record.status)][: max(limit, 0)]


def _to_record(row: Row[Any]) -> CycleRecord:
    problems = [FailedPartition(**problem) for problem in orjson.loads(row.failed_partitions)]
    return CycleRecord(**{**row._mapping, "failed_partitions": problems})


def prune_history(database: Database, lease: Lease) -> int:
    """Forget all but the newest hundred cycles and what belongs to them; return how many.

    Best effort: a failure is logged, and the next cycle prunes what is left.
    """
    try:
        count = _prune(database, lease)
    except SiltstoneError as error:
        _log.warning("history not pruned", extra={"reason": str(error)})
        return 0
    if count:
        _log.info("history pruned", extra={"cycles": count})
    return count


@in_transaction("prune the history")
def _prune(transaction: Transaction, lease: Lease) -> int:
    check_lead(transaction, lease)
    newest = select(schema.cycle_history.c.cycle_count).order_by(schema.cycle_history.c.cycle_count.desc())
    oldest_kept = transaction.execute(newest.limit(1).offset(HISTORY_LIMIT - 1)).scalar()
    if oldest_kept is None:
        return 0
    deleted = transaction.execute(delete(schema.cycle_history).where(schema.cycle_history.c.cycle_count < oldest_kept))
    current = select(schema.manager.c.cycle_count).scalar_subquery()
    for table in (schema.checkpoint_detail, schema.trigger_requests):
        transaction.execute(delete(table).where((table.c.cycle < oldest_kept) & (table.c.cycle != current)))
    return deleted.rowcount


@in_transaction("read the status", reads=True)
def service_status(transaction: Transaction, settings: ServiceSettings | None = None) -> ServiceStatus:
    """Return all about now; without settings, a cycle is due by those of whoever began the last one. Raises: StorageError."""
    now_ms = transaction.now_ms()
    row = transaction.execute(select(schema.manager)).first()
    checkpoints = _checkpoints(transaction)
    counts = [checkpoint.status for checkpoint in checkpoints]
    controls = current_controls(transaction, now_ms)
    due_at = None
    if row is not None and "disable" not in controls:
        due_at = _due_at(row, settings, controls.get("freeze"), now_ms)
    leader = _leader(transaction, now_ms)
    failing, paused = read_failing(transaction), read_pauses(transaction)
    counted = [table for table in failing if table.table not in paused]
    problem = _overdue_problem(due_at, leader, now_ms) or _failure_problem(row, counted)
    return ServiceStatus(
        now_ms=now_ms,
        **{name: getattr(row, name, None) for name in _OF_MANAGER},
        cycle_count=row.cycle_count if row else 0,
        cycle_leader=row.leader if row else None,
        is_healthy=problem is None,
        health_problem=problem,
        next_due_at=None if row is None or row.status == "STARTED" else due_at,
        leader=leader,
        disabled=controls.get("disable"),
        frozen=controls.get("freeze"),
        failing=failing,
        paused=list(paused.values()),
        pending_requests=pending_requests(transaction),
        tables=len({checkpoint.table for checkpoint in checkpoints}),
        failed_tables=len({checkpoint.table for checkpoint in checkpoints if checkpoint.status == "FAILED"}),
        idle=counts.count("IDLE"),
        active=counts.count("STARTED"),
        completed=counts.count("COMPLETED"),
        failed=counts.count("FAILED"),
        checkpoints=checkpoints,
        totals=Totals(**{field.name: getattr(row, field.name) if row else 0 for field in fields(Totals)}),
    )


def measured_status(database: Database, settings: ServiceSettings | None = None) -> tuple[ServiceStatus, int]:
    """Return the status, and by how much this machine's clock is ahead of the database's. Raises: StorageError."""
    statuses: list[ServiceStatus] = []

    def ask() -> int:
        statuses.append(service_status(database, settings))
        return statuses[0].now_ms

    _, skew_ms = measure(ask)
    return statuses[0], skew_ms


@in_transaction("read the cycle", reads=True)
def cycle_details(transaction: Transaction, cycle: int) -> CycleDetails:
    """Return one cycle, finished or running, with its checkpoints and attempts. Raises: NotFoundError, StorageError."""
    row = transaction.execute(select(schema.manager)).first()
    finished = None
    if 0 <= cycle <= schema.MAX_NUMBER:
        finished = transaction.execute(select(schema.cycle_history).filter_by(cycle_count=cycle)).first()
    is_newest = row is not None and row.cycle_count == cycle and row.started_at is not None
    source = finished or (row if is_newest else None)
    if source is None:
        raise NotFoundError(f"cycle {cycle}: not in the history, which keeps the newest 100; choose a later one")
    return CycleDetails(
        cycle_count=cycle,
        status=source.status,
        start_time_ms=source.start_time_ms if finished else source.started_at,
        end_time_ms=source.end_time_ms if finished else source.ended_at,
        trigger_reason=source.trigger_reason,
        leader=source.leader,
        record=_to_record(finished) if finished else None,
        checkpoints=_checkpoints(transaction) if is_newest else [],
        timeline=_timeline(transaction, cycle),
    )


@in_transaction("read the audit trail", reads=True)
def audit_trail(transaction: Transaction, limit: int = HISTORY_LIMIT) -> list[AuditEntry]:
    """Return what operators asked of the service, newest first. Raises: StorageError."""
    newest = select(schema.audit).order_by(schema.audit.c.id.desc()).limit(max(limit, 0))
    return [_to_audit_entry(row) for row in transaction.execute(newest)]


def _to_audit_entry(row: Row[Any]) -> AuditEntry:
    names = row.about.split(", ") if row.action in TABLE_ACTIONS and row.about != ALL_TABLES else []
    table = names[0] if len(names) == 1 else None
    return AuditEntry(
        row.at, row.requester, row.action, row.about, table=table, details={"tables": names} if len(names) > 1 else {}
    )


@in_transaction("read the nodes", reads=True)
def list_nodes(transaction: Transaction, settings: ServiceSettings | None = None) -> list[NodeInfo]:
    """Return the nodes of the last day by name, the newest process of a name first. Raises: StorageError."""
    alive_ms = to_ms(3 * (settings or ServiceSettings()).tick_seconds)
    now_ms = transaction.now_ms()
    lease = transaction.execute(select(schema.leader_lease)).one()
    claims = Counter(transaction.execute(select(schema.active_checkpoints.c.worker)).scalars())
    node = schema.nodes.c
    rows = transaction.execute(select(schema.nodes).order_by(node.name, node.started_at.desc()))
    return [
        NodeInfo(
            **row._mapping,
            is_leader=row.owner == lease.holder and is_current(lease, now_ms),
            is_alive=row.stopped_at is None and now_ms - alive_ms <= row.seen_at <= latest_ms(now_ms),
            claims=claims[row.owner],
        )
        for row in rows
    ]


def _due_at(row: Row[Any], settings: ServiceSettings | None, freeze: Control | None, now_ms: int) -> int | None:
    """Return when the cycle after the last one that began is due, or None where no leader has said how often."""
    interval_ms = row.interval_ms if settings is None else to_ms(settings.interval_seconds)
    if interval_ms is None:
        return None
    hours: QuietHours | None = parse_quiet_hours(row.quiet_hours) if row.quiet_hours else None
    hours = hours if settings is None else settings.quiet_hours
    is_ahead = row.last_started_at > latest_ms(now_ms)
    due_at: int = now_ms if is_ahead else row.last_started_at + interval_ms
    if freeze is not None and freeze.expires_at is not None:
        due_at = max(due_at, freeze.expires_at)
    return due_at if hours is None else hours.over_at(due_at)


def _overdue_problem(due_at: int | None, leader: LeaderInfo | None, now_ms: int) -> str | None:
    if due_at is not None and due_at <= now_ms and (leader is None or not leader.is_current):
        last = "" if leader is None else f" (the last one was {leader.node})"
        return f"a cycle is overdue, and no node leads{last}; start one with `siltstone serve`"
    return None


def _failure_problem(row: Row[Any] | None, failing: Sequence[FailingTable]) -> str | None:
    if failing:
        names = ", ".join(table.table for table in failing[:_NAMED])
        more = f" and {len(failing) - _NAMED} more" if len(failing) > _NAMED else ""
        return f"{'1 table fails' if len(failing) == 1 else f'{len(failing)} tables fail'}: {names}{more}"
    is_stalled = row is not None and row.last_result == "FAILED" and row.failure_reason == "stalled"
    return "the last cycle ended because no worker claimed what was left" if is_stalled else None


def _leader(transaction: Transaction, now_ms: int) -> LeaderInfo | None:
    row = transaction.execute(select(schema.leader_lease)).one()
    if row.holder is None:
        return None
    return LeaderInfo(node_name(row.holder), row.term, row.acquired_at, row.lease_until, is_current(row, now_ms))


def _checkpoints(transaction: Transaction) -> list[Checkpoint]:
    status, claim = schema.checkpoint_status.c, schema.active_checkpoints.c
    of_claim = (claim.heartbeat_at, claim.lease_until, claim.buckets_done, claim.buckets_total)
    rows = transaction.execute(
        select(schema.checkpoint_status, claim.sync_heartbeat.label("heartbeats"), *of_claim)
        .outerjoin(schema.active_checkpoints, (claim.claim_id == status.claim_id) & (status.status == "STARTED"))
        .order_by(status.backlog_bytes.desc(), status.partition)
    )
    return [_from_row(Checkpoint, row) for row in rows]


def _timeline(transaction: Transaction, cycle: int) -> list[Attempt]:
    attempt = schema.checkpoint_detail.c
    attempts = select(schema.checkpoint_detail).filter_by(cycle=cycle)
    rows = transaction.execute(attempts.order_by(attempt.started_at, attempt.partition, attempt.attempt))
    return [_from_row(Attempt, row) for row in rows]


def _from_row(kind: type[T], row: Row[Any]) -> T:
    """Return a checkpoint or an attempt with the values of a row, but names of nodes instead of owners."""
    worker = None if row.worker is None else node_name(row.worker)
    values = {**row._mapping, "table": row.table_name, "worker": worker}
    return kind(**{field.name: values[field.name] for field in fields(kind)})
