"""What waited in each table when cycles began: noted by each cycle, so that a growing backlog shows before anything fails."""

from collections.abc import Sequence
from typing import Literal

from sqlalchemy import delete, select

from siltstone.service.database import Transaction, in_transaction
from siltstone.service.results import BacklogSample, PendingPartition
from siltstone.service.schema import backlogs, cycle_history, manager
from siltstone.service.settings import HISTORY_LIMIT

Trend = Literal["unknown", "growing", "shrinking", "steady"]
# So many cycles are compared with as many before them.
_WINDOW = 4
# A backlog is steady within this factor of what it was.
_FACTOR = 1.25


def record_backlogs(transaction: Transaction, pending: Sequence[PendingPartition], cycle: int, now_ms: int) -> None:
    """Note what waits in each table as a cycle begins, also in those that it leaves out; forget what is older than the history."""
    by_table: dict[str, list[PendingPartition]] = {}
    for partition in pending:
        by_table.setdefault(partition.table, []).append(partition)
    rows = [
        {
            "cycle": cycle,
            "table_name": table,
            "at": now_ms,
            "deltas": sum(partition.deltas for partition in partitions),
            "bytes": sum(partition.bytes for partition in partitions),
            "oldest_at": min((each.oldest_at for each in partitions if each.oldest_at is not None), default=None),
        }
        for table, partitions in by_table.items()
    ]
    transaction.insert_or_update(backlogs, rows)
    transaction.execute(delete(backlogs).where(backlogs.c.cycle <= cycle - HISTORY_LIMIT))


@in_transaction("read the backlogs", reads=True)
def table_backlogs(transaction: Transaction, table: str) -> list[BacklogSample]:
    """Return what waited in a table when each of the newest cycles began, oldest first; nothing, where it was in none.

    Raises: StorageError.
    """
    newest = transaction.execute(select(manager.c.cycle_count, manager.c.started_at)).first()
    began = {
        row.cycle_count: row.start_time_ms
        for row in transaction.execute(select(cycle_history.c.cycle_count, cycle_history.c.start_time_ms))
    }
    if newest is not None and newest.started_at is not None:
        began[newest.cycle_count] = newest.started_at
    found = {row.cycle: row for row in transaction.execute(select(backlogs).filter_by(table_name=table))}
    samples = []
    for cycle in sorted(began):
        row = found.get(cycle)
        if row is not None:
            samples.append(BacklogSample(cycle, row.at, row.deltas, row.bytes, row.oldest_at))
        elif samples:
            samples.append(BacklogSample(cycle, began[cycle], 0, 0, None))
    return samples


def trend_of(samples: Sequence[BacklogSample]) -> Trend:
    """Return whether the bytes that waited in the newest cycles are more or fewer than in those before."""
    if len(samples) < 2 * _WINDOW:
        return "unknown"
    now = sum(sample.bytes for sample in samples[-_WINDOW:])
    before = sum(sample.bytes for sample in samples[-2 * _WINDOW : -_WINDOW])
    if now > before * _FACTOR:
        return "growing"
    return "shrinking" if now * _FACTOR < before else "steady"
