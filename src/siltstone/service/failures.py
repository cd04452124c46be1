"""Partitions whose checkpoints fail: how many cycles in a row, when they are tried again; and tables that are paused."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, delete, select

from siltstone.service.database import Transaction
from siltstone.service.results import FailingPartition, FailingTable, Pause, PendingPartition
from siltstone.service.schema import failures, pauses
from siltstone.service.settings import ServiceSettings, latest_ms, to_ms

# So many doublings are more than any pause lasts.
_MOST_DOUBLINGS = 30


def choose_work(
    transaction: Transaction, pending: Sequence[PendingPartition], requested: Collection[str] | None, now_ms: int
) -> list[PendingPartition]:
    """Return what a cycle takes up: not what is paused, nor what has failed and is not to be tried yet.

    Tables that somebody has `requested`, or all where that is None, are tried whatever happened before. What had failed, is due and has nothing to do
    any more, since somebody cured or dropped it, is forgotten.
    """
    paused = read_pauses(transaction)
    failed = {row.partition: row for row in transaction.execute(select(failures))}
    names = {partition.name for partition in pending}
    settled = [
        row.partition
        for row in failed.values()
        if row.partition not in names and row.table_name not in paused and _is_due(row, now_ms)
    ]
    for name in settled:
        transaction.execute(delete(failures).filter_by(partition=name))
    return [
        partition
        for partition in pending
        if partition.table not in paused
        and (
            requested is None
            or partition.table in requested
            or partition.name not in failed
            or _is_due(failed[partition.name], now_ms)
        )
    ]


def skipped_tables(transaction: Transaction, now_ms: int) -> frozenset[str]:
    """Return the tables whose backlog begins no cycle: those that are paused, or wait after a failure."""
    waiting = (row.table_name for row in transaction.execute(select(failures)) if not _is_due(row, now_ms))
    return frozenset((*read_pauses(transaction), *waiting))


def record_outcomes(
    transaction: Transaction, checkpoints: Sequence[Row[Any]], settings: ServiceSettings, started_at: int, now_ms: int
) -> None:
    """Note which partitions of a cycle failed, and forget the failures of those that were compacted.

    The time until the next try counts from the start of the cycle, as intervals do.
    """
    failed = {row.partition: row for row in transaction.execute(select(failures))}
    for row in checkpoints:
        if row.status == "COMPLETED" and row.partition in failed:
            transaction.execute(delete(failures).filter_by(partition=row.partition))
    rows = []
    for row in checkpoints:
        if row.status != "FAILED":
            continue
        before = failed.get(row.partition)
        count = 1 if before is None else before.failures + 1
        rows.append(
            {
                "partition": row.partition,
                "table_name": row.table_name,
                "cycle": row.cycle,
                "failures": count,
                "failed_at": now_ms,
                "retry_at": started_at + to_ms(backoff_seconds(count, settings)),
                "error": row.error or "",
            }
        )
    transaction.insert_or_update(failures, rows)


def backoff_seconds(failed: int, settings: ServiceSettings) -> float:
    """Return how long a partition is left alone that has failed in so many cycles in a row.

    That is until the next cycle, the second, the fourth, the eighth; half an interval less, since none begins to the second.
    """
    intervals: float = 2 ** min(failed - 1, _MOST_DOUBLINGS) - 0.5
    return min(intervals * settings.interval_seconds, settings.max_backoff_seconds)


def _is_due(row: Row[Any], now_ms: int) -> bool:
    return bool(row.retry_at <= now_ms or row.failed_at > latest_ms(now_ms))


def read_pauses(transaction: Transaction) -> Mapping[str, Pause]:
    """Return the tables that are paused."""
    rows = transaction.execute(select(pauses).order_by(pauses.c.table_name))
    return {row.table_name: Pause(row.table_name, row.paused_at, row.requester) for row in rows}


def read_failing(transaction: Transaction) -> list[FailingTable]:
    """Return the tables with partitions that failed the last time, those that failed most often first."""
    by_table: dict[str, list[FailingPartition]] = {}
    newest_first = failures.c.failures.desc(), failures.c.table_name, failures.c.partition
    for row in transaction.execute(select(failures).order_by(*newest_first)):
        partition = FailingPartition(
            row.partition, row.error, row.failures, row.cycle, row.failed_at, retry_at=row.retry_at
        )
        by_table.setdefault(row.table_name, []).append(partition)
    return [FailingTable(name, partitions) for name, partitions in by_table.items()]
