"""The history of finished cycles: the newest hundred, newest first, and how older ones are forgotten."""

import logging

import orjson
from sqlalchemy import Row, delete, select

from siltstone.errors import SiltstoneError
from siltstone.service.database import Database, Transaction
from siltstone.service.leadership import Lease, check_lead
from siltstone.service.results import CycleRecord, FailedPartition
from siltstone.service.schema import CycleStatus, checkpoint_detail, cycle_history, manager, trigger_requests
from siltstone.service.settings import HISTORY_LIMIT

_log = logging.getLogger(__name__)


def cycle_records(
    database: Database, limit: int = HISTORY_LIMIT, *, status: CycleStatus | None = None
) -> list[CycleRecord]:
    """Return the newest finished cycles, newest first, of the hundred that are kept. Raises: StorageError."""

    def look(transaction: Transaction) -> list[CycleRecord]:
        newest = select(cycle_history).order_by(cycle_history.c.cycle_count.desc()).limit(HISTORY_LIMIT)
        return [to_record(row) for row in transaction.execute(newest)]

    found = database.look("read the history", look)
    return [each for each in found if status in (None, each.status)][: max(limit, 0)]


def to_record(row: Row[tuple[object, ...]]) -> CycleRecord:
    """Read a row of the history."""
    problems = [FailedPartition(**each) for each in orjson.loads(row.failed_partitions)]
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
