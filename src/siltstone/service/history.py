"""What was and what is: finished cycles, the one that runs, and who takes part."""

import logging
from dataclasses import fields
from typing import Any

import orjson
from sqlalchemy import Row, delete, select

from siltstone.clock import measure
from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.service.controls import current_controls, pending_requests
from siltstone.service.cycles import ManagerRow, node_name
from siltstone.service.database import Database, Transaction
from siltstone.service.leases import Lease, check_lead, is_current
from siltstone.service.results import (
    Attempt,
    Checkpoint,
    CycleDetails,
    CycleRecord,
    FailedPartition,
    LeaderInfo,
    ServiceStatus,
    Totals,
)
from siltstone.service.schema import (
    MAX_NUMBER,
    CycleStatus,
    active_checkpoints,
    checkpoint_detail,
    checkpoint_status,
    cycle_history,
    leader_lease,
    manager,
    trigger_requests,
)
from siltstone.service.settings import HISTORY_LIMIT, ServiceSettings, latest_ms, to_ms

_log = logging.getLogger(__name__)


def cycle_records(
    database: Database, limit: int = HISTORY_LIMIT, *, status: CycleStatus | None = None
) -> list[CycleRecord]:
    """Return the newest finished cycles, newest first, of the hundred that are kept. Raises: StorageError."""

    def read(transaction: Transaction) -> list[CycleRecord]:
        newest = select(cycle_history).order_by(cycle_history.c.cycle_count.desc()).limit(HISTORY_LIMIT)
        return [to_record(row) for row in transaction.execute(newest)]

    records = database.read("read the history", read)
    return [record for record in records if status in (None, record.status)][: max(limit, 0)]


def to_record(row: Row[tuple[object, ...]]) -> CycleRecord:
    """Read a row of the history."""
    problems = [FailedPartition(**problem) for problem in orjson.loads(row.failed_partitions)]
    return CycleRecord(**{**row._mapping, "failed_partitions": problems})


def prune_history(database: Database, lease: Lease) -> int:
    """Forget all but the newest hundred cycles and what belongs to them; return how many.

    Best effort: a failure is logged, and the next cycle prunes what is left.
    """

    def change(transaction: Transaction) -> int:
        check_lead(transaction, lease)
        newest = select(cycle_history.c.cycle_count).order_by(cycle_history.c.cycle_count.desc())
        oldest_kept = transaction.execute(newest.limit(1).offset(HISTORY_LIMIT - 1)).scalar()
        if oldest_kept is None:
            return 0
        gone = transaction.execute(delete(cycle_history).where(cycle_history.c.cycle_count < oldest_kept)).rowcount
        current = select(manager.c.cycle_count).scalar_subquery()
        for table in (checkpoint_detail, trigger_requests):
            transaction.execute(delete(table).where((table.c.cycle < oldest_kept) & (table.c.cycle != current)))
        return int(gone)

    try:
        count = database.change("prune the history", change)
    except SiltstoneError as error:
        _log.warning("history not pruned", extra={"reason": str(error)})
        return 0
    if count:
        _log.info("history pruned", extra={"cycles": count})
    return count


_TOTALS = ("completed_cycles", "failed_cycles", "evictions", "rows", "input_bytes", "written_bytes")


def service_status(database: Database, settings: ServiceSettings | None = None) -> ServiceStatus:
    """Return all about now; without settings, it is not known when a cycle is due. Raises: StorageError."""
    interval_ms = None if settings is None else to_ms(settings.interval_seconds)

    def read(transaction: Transaction) -> ServiceStatus:
        now_ms = transaction.now_ms()
        row: ManagerRow | None = transaction.execute(select(manager)).first()
        checkpoints = _checkpoints(transaction)
        counts = [checkpoint.status for checkpoint in checkpoints]
        controls = current_controls(transaction, now_ms)
        due_at = (
            None if row is None or "disable" in controls else _due_at(row, interval_ms, controls.get("freeze"), now_ms)
        )
        leader = _leader(transaction, now_ms)
        problem = _health_problem(row, due_at, leader, now_ms)
        return ServiceStatus(
            now_ms=now_ms,
            status=row.status if row else None,
            cycle_count=row.cycle_count if row else 0,
            started_at=row.started_at if row else None,
            ended_at=row.ended_at if row else None,
            trigger_reason=row.trigger_reason if row else None,
            cycle_leader=row.leader if row else None,
            is_healthy=problem is None,
            health_problem=problem,
            last_completed_at=row.last_completed_at if row else None,
            next_due_at=None if row is None or row.status == "STARTED" else due_at,
            leader=leader,
            disabled=controls.get("disable"),
            frozen=controls.get("freeze"),
            pending_requests=pending_requests(transaction),
            idle=counts.count("IDLE"),
            active=counts.count("STARTED"),
            completed=counts.count("COMPLETED"),
            failed=counts.count("FAILED"),
            checkpoints=checkpoints,
            totals=Totals(**{name: getattr(row, name) if row else 0 for name in _TOTALS}),
        )

    return database.read("read the status", read)


def measured_status(database: Database, settings: ServiceSettings | None = None) -> tuple[ServiceStatus, int]:
    """Return the status, and by how much this machine's clock is ahead of the database's. Raises: StorageError."""
    statuses: list[ServiceStatus] = []

    def ask() -> int:
        statuses.append(service_status(database, settings))
        return statuses[0].now_ms

    _, skew_ms = measure(ask)
    return statuses[0], skew_ms


def cycle_details(database: Database, cycle: int) -> CycleDetails:
    """Return one cycle, finished or running, with its checkpoints and attempts. Raises: NotFoundError, StorageError."""

    def read(transaction: Transaction) -> CycleDetails:
        row: ManagerRow | None = transaction.execute(select(manager)).first()
        kept = None
        if 0 <= cycle <= MAX_NUMBER:
            kept = transaction.execute(select(cycle_history).where(cycle_history.c.cycle_count == cycle)).first()
        record = None if kept is None else to_record(kept)
        is_newest = row is not None and row.cycle_count == cycle and row.started_at is not None
        if record is None and not is_newest:
            raise NotFoundError(f"cycle {cycle}: not in the history, which keeps the newest 100; choose a later one")
        source: Any = row if record is None else record
        return CycleDetails(
            cycle_count=cycle,
            status=source.status,
            start_time_ms=source.started_at if record is None else record.start_time_ms,
            end_time_ms=source.ended_at if record is None else record.end_time_ms,
            trigger_reason=source.trigger_reason,
            leader=source.leader,
            record=record,
            checkpoints=_checkpoints(transaction) if is_newest else [],
            timeline=_timeline(transaction, cycle),
        )

    return database.read("read the cycle", read)


def _due_at(row: ManagerRow, interval_ms: int | None, freeze: object, now_ms: int) -> int | None:
    """Return when the cycle after the last one that began is due."""
    if interval_ms is None:
        return None
    is_ahead = row.last_started_at > latest_ms(now_ms)
    due_at = now_ms if is_ahead else int(row.last_started_at) + interval_ms
    thawed_at: int | None = getattr(freeze, "expires_at", None)
    return due_at if thawed_at is None else max(due_at, thawed_at)


def _health_problem(row: ManagerRow | None, due_at: int | None, leader: LeaderInfo | None, now_ms: int) -> str | None:
    if due_at is not None and due_at <= now_ms and (leader is None or not leader.is_current):
        last = "" if leader is None else f" (the last one was {leader.node})"
        return f"a cycle is overdue, and no node leads{last}; start one with `siltstone serve`"
    return "the last cycle failed" if row is not None and row.last_result == "FAILED" else None


def _leader(transaction: Transaction, now_ms: int) -> LeaderInfo | None:
    row = transaction.execute(select(leader_lease)).one()
    if row.holder is None:
        return None
    return LeaderInfo(node_name(row.holder), row.term, row.acquired_at, row.lease_until, is_current(row, now_ms))


def _checkpoints(transaction: Transaction) -> list[Checkpoint]:
    active = {row.partition: row for row in transaction.execute(select(active_checkpoints))}
    rows = transaction.execute(
        select(checkpoint_status).order_by(checkpoint_status.c.backlog_bytes.desc(), checkpoint_status.c.partition)
    )
    return [_to_checkpoint(row, active.get(row.partition)) for row in rows]


def _to_checkpoint(row: Row[tuple[object, ...]], claim: Row[tuple[object, ...]] | None) -> Checkpoint:
    return Checkpoint(
        **_same_columns(Checkpoint, row),
        heartbeats=None if claim is None else claim.sync_heartbeat,
        heartbeat_at=None if claim is None else claim.heartbeat_at,
        lease_until=None if claim is None else claim.lease_until,
        buckets_done=None if claim is None else claim.buckets_done,
        buckets_total=None if claim is None else claim.buckets_total,
    )


def _timeline(transaction: Transaction, cycle: int) -> list[Attempt]:
    rows = transaction.execute(
        select(checkpoint_detail)
        .where(checkpoint_detail.c.cycle == cycle)
        .order_by(checkpoint_detail.c.started_at, checkpoint_detail.c.partition, checkpoint_detail.c.attempt)
    )
    return [Attempt(**_same_columns(Attempt, row)) for row in rows]


def _same_columns(kind: type[Checkpoint] | type[Attempt], row: Row[tuple[object, ...]]) -> dict[str, Any]:
    """Return the fields that a row has as columns; owners become names of nodes."""
    values = {field.name: getattr(row, field.name) for field in fields(kind) if field.name in row._mapping}
    worker = None if row.worker is None else node_name(row.worker)
    return {**values, "table": row.table_name, "worker": worker}
