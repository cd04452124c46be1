"""Trimming: forgetting source deltas that a COMPLETED cycle has compacted, and that are past their retention."""

import logging
from collections.abc import Callable

import orjson
from sqlalchemy import delete, select

from siltstone.errors import SiltstoneError
from siltstone.model import PartitionLocator
from siltstone.service.database import Database, Transaction
from siltstone.service.leadership import Lease, check_lead
from siltstone.service.partitions import Tables
from siltstone.service.schema import cycle_history, manager, trigger_requests, trim_marks

_log = logging.getLogger(__name__)


def trim_tables(database: Database, lease: Lease, tables: Tables, keep_alive: Callable[[], None]) -> int:
    """Trim all partitions up to their marks and answer the requests that wait for it; return the count of deltas.

    A partition that cannot be trimmed now is left for the next time. Raises: LeaseLostError, StorageError.
    """

    def look(transaction: Transaction) -> list[tuple[str, str, int]]:
        check_lead(transaction, lease)
        marks = transaction.execute(select(trim_marks).order_by(trim_marks.c.partition)).all()
        return [(each.partition, each.locator, each.high_watermark) for each in marks]

    marks = database.change("read the trim marks", look)
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
