"""How a table is, in one answer: what fails and how it is cured, how far it lags behind, and which way its backlog goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from siltstone.ingest.drop_log import IngestReport
from siltstone.publish.outcomes import Publication
from siltstone.service.backlogs import Trend, table_backlogs, trend_of
from siltstone.service.database import Database
from siltstone.service.history import service_status
from siltstone.service.results import BacklogSample, FailingTable, Pause
from siltstone.table.report import TableReport

TableState = Literal["unreadable", "failing", "paused", "well"]


@dataclass(frozen=True)
class TableHealth:
    """How a table is. Errors end with what to do; `lag_ms` is the age of the oldest delta that no round has read."""

    table: str
    state: TableState
    problem: str | None
    failing: FailingTable | None
    paused: Pause | None
    lag_ms: int | None
    backlog_deltas: int
    backlog_bytes: int
    backlog_trend: Trend
    # What waited when each of the newest cycles began, oldest first.
    backlogs: Sequence[BacklogSample]
    write_amplification: float | None
    read_amplification: float | None
    ingests: Sequence[IngestReport]
    publications: Sequence[Publication]


def table_health(
    database: Database, report: TableReport, ingests: Sequence[IngestReport], publications: Sequence[Publication]
) -> TableHealth:
    """Return how a table is, by its report and by what the service knows of it. Raises: StorageError."""
    status = service_status(database)
    failing = next((each for each in status.failing if each.table == report.name), None)
    paused = next((each for each in status.paused if each.table == report.name), None)
    samples = table_backlogs(database, report.name)
    state: TableState = "paused" if paused else "failing" if failing else "well"
    errors = [
        error
        for error in (*(each.error for each in ingests), *(each.error for each in publications))
        if error is not None
    ]
    problem = report.problem or (failing.partitions[0].error if failing else None) or next(iter(errors), None)
    return TableHealth(
        table=report.name,
        state="unreadable" if report.problem else state if problem is None or paused else "failing",
        problem=problem,
        failing=failing,
        paused=paused,
        lag_ms=None if report.oldest_at is None else max(status.now_ms - report.oldest_at, 0),
        backlog_deltas=report.backlog_deltas,
        backlog_bytes=report.backlog_bytes,
        backlog_trend=trend_of(samples),
        backlogs=samples,
        write_amplification=report.write_amplification,
        read_amplification=report.read_amplification,
        ingests=ingests,
        publications=publications,
    )
