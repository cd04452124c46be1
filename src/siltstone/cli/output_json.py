"""Output for programs: one JSON document on standard output, or one per line where a command streams."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from siltstone.cli.results import Check, DeltaLine, Exported, TableChanged, TableDetails, TableSummary, Written
from siltstone.cli.results_cycles import Controlled, ServiceReport, Serving, Triggered
from siltstone.cli.results_maintenance import KeyStory, Repaired, RolledBack, TableChecked, Vacuumed
from siltstone.cli.results_rounds import Compacted, RoundDetails, RoundLine, TablePlan
from siltstone.text import format_iso_time

if TYPE_CHECKING:
    from siltstone.cli.reading import Rows
    from siltstone.log.inspect import CompactionReport, LogSummary, VerificationReport
    from siltstone.log.opened import Entry
    from siltstone.service.results import CycleDetails, CycleRecord

_TIMES = (
    "created_at",
    "committed_at",
    "completed_at",
    "modified_at",
    "started_at",
    "ended_at",
    "acquired_at",
    "lease_until",
    "heartbeat_at",
    "set_at",
    "expires_at",
    "requested_at",
    "last_completed_at",
    "next_due_at",
    "seen_at",
    "stopped_at",
)


class JsonOutput:
    """Writes records as JSON, field by field; times as ISO 8601 in UTC, sizes as numbers of bytes."""

    def tables(self, tables: Sequence[TableSummary], root: str) -> None:
        """Write an array of tables."""
        self._document([_fields(table) for table in tables])

    def table(self, table: TableDetails) -> None:
        """Write one table."""
        self._document(_fields(table))

    def changed(self, change: TableChanged) -> None:
        """Write what happened, with the table as it is then."""
        self._document(_fields(change))

    def written(self, written: Written) -> None:
        """Write one write."""
        self._document(_fields(written))

    def deltas(self, table: str, deltas: Sequence[DeltaLine]) -> None:
        """Write an array of deltas."""
        self._document([_fields(delta) for delta in deltas])

    def compacted(self, compacted: Compacted) -> None:
        """Write what was done, round by round."""
        self._document(_fields(compacted))

    def planned(self, planned: TablePlan) -> None:
        """Write the plan of each partition."""
        self._document(_fields(planned))

    def rounds(self, table: str, rounds: Sequence[RoundLine]) -> None:
        """Write an array of rounds."""
        self._document([_fields(each) for each in rounds])

    def round(self, details: RoundDetails) -> None:
        """Write one round."""
        self._document(_fields(details))

    def rows(self, table: str, rows: "Rows", shown: int | None) -> None:
        """Write one row per line."""
        from siltstone.ingest.export import plain_rows

        for batch in rows.batches:
            for row in plain_rows(batch):
                sys.stdout.write(_dumps(row) + "\n")

    def found(
        self, table: str, key: Mapping[str, str | None], rows: Sequence[Mapping[str, object]], uncompacted: int
    ) -> None:
        """Write an array of rows."""
        from siltstone.ingest.export import plain

        self._document([plain(row) for row in rows])

    def explained(self, table: str, key: Mapping[str, str | None], stories: Sequence[KeyStory]) -> None:
        """Write an array with a story for each partition."""
        from siltstone.ingest.export import plain

        self._document([plain(_fields(story)) for story in stories])

    def checked(self, checked: Sequence[TableChecked], root: str) -> None:
        """Write an array of tables with their findings."""
        self._document([_fields(each) for each in checked])

    def repaired(self, repaired: Repaired) -> None:
        """Write the partitions with their buckets."""
        self._document(_fields(repaired))

    def vacuumed(self, vacuumed: Vacuumed) -> None:
        """Write the tables with their files, and what was dropped."""
        self._document(_fields(vacuumed))

    def rolled_back(self, rolled_back: RolledBack) -> None:
        """Write the round that is current."""
        self._document(_fields(rolled_back))

    def exported(self, exported: Exported) -> None:
        """Write how much it was."""
        self._document(_fields(exported))

    def checks(self, checks: Iterable[Check]) -> bool:
        """Write an array of findings."""
        found = list(checks)
        self._document([_fields(check) for check in found])
        return all(check.state != "failed" for check in found)

    def log(self, log: "LogSummary") -> None:
        """Write a log with its batches."""
        self._document(_fields(log))

    def log_entries(self, entries: "Iterable[Entry]") -> None:
        """Write one entry per line."""
        for entry in entries:
            sys.stdout.write(_dumps(entry if isinstance(entry, dict) else entry._asdict()) + "\n")

    def log_verified(self, report: "VerificationReport") -> None:
        """Write the findings."""
        self._document(_fields(report))

    def log_compacted(self, report: "CompactionReport") -> None:
        """Write what was done."""
        self._document(_fields(report))

    def serving(self, serving: Serving) -> None:
        """Write one line, so that it can be read while the service runs."""
        sys.stdout.write(_dumps(_fields(serving)) + "\n")
        sys.stdout.flush()

    def service(self, report: ServiceReport) -> None:
        """Write the status, with checkpoints and nodes."""
        self._document(_fields(report))

    def cycles(self, records: "Sequence[CycleRecord]") -> None:
        """Write an array of cycles."""
        self._document([_fields(each) for each in records])

    def cycle(self, details: "CycleDetails") -> None:
        """Write one cycle with its timeline."""
        self._document(_fields(details))

    def triggered(self, triggered: Triggered) -> None:
        """Write the request."""
        self._document(_fields(triggered.request))

    def controlled(self, controlled: Controlled) -> None:
        """Write what was changed."""
        self._document(_fields(controlled))

    def warning(self, message: str) -> None:
        """Write the message to standard error, so that the document stays one."""
        sys.stderr.write(f"Warning: {message}\n")

    def failure(self, kind: str, message: str) -> None:
        """Write an error in place of the result."""
        self._document({"error": {"type": kind, "message": message}})

    def _document(self, value: object) -> None:
        sys.stdout.write(_dumps(value, indent=2) + "\n")


def _dumps(value: object, indent: int | None = None) -> str:
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    return json.dumps(value, indent=indent, ensure_ascii=encoding != "utf8", default=str)


def _fields(record: object) -> dict[str, object]:
    assert dataclasses.is_dataclass(record)
    fields = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    return {name: _plain(name, value) for name, value in fields.items()}


def _plain(name: str, value: object) -> object:
    if name in _TIMES and isinstance(value, int):
        return format_iso_time(value)
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, list | tuple):
        return [_plain("", each) for each in value]
    return value
